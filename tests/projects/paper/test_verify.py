"""Published weights that agree, disagree, or are not what they are said to be, on ToyScenes."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from commands import one_line_error, run

from projects.Paper.paper_tables import ROWS, paper_values
from projects.Paper.published import PUBLISHED, read_published
from projects.Paper.verify import Verification
from revisit.files import read_yaml

WIDTH = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
KNN = {"score": "top1", "paper": f"LinearClassification/toy LINEAR.METHOD knn {WIDTH}"}


@pytest.fixture(scope="module")
def checkpoint(pretrained) -> Path:
    """As others would publish it: a run's checkpoint."""
    return pretrained / "model_final.pth"


@pytest.fixture
def command(checkpoint, tmp_path_factory, tmp_path):
    """The command line for a made-up published file; facts replace its own, None takes one away."""
    root = tmp_path_factory.getbasetemp() / "verify"  # what is evaluated once is not evaluated again

    def of(low: float = 0.0, high: float = 100.0, **facts: object) -> str:
        score = {"value": low, "range": [low, high], "printed": "nowhere"}
        entry = {"title": "toy", "url": "https://example.org/toy.pth", "licence": "CC0", "layout": "--source revisit"}
        entry |= {"scores": {"knn": score}, **facts}
        entry = {key: value for key, value in entry.items() if value is not None}
        path = tmp_path / "published.yaml"
        path.write_text(yaml.safe_dump({"columns": {"knn": KNN}, "files": {"toy": entry}}))
        layout = str(entry["layout"]).split()[-1]
        return f"python tools/verify.py toy {checkpoint} --table {path} --output {root}_{layout}"

    return of


def test_score_within_the_range_agrees_and_is_recorded(command, checkpoint, toy_root):
    sha256 = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    text = run(command(sha256=sha256[:8], md5=hashlib.md5(checkpoint.read_bytes()).hexdigest()), toy_root)
    value = float(re.search(r"^knn ([\d.]+), published 0.0, range 0.0 to 100.0: agrees$", text, re.M)[1])
    folder = Path(re.search(r"^wrote (.*)/verify.json", text, re.M)[1])
    record = json.loads((folder / "verify.json").read_text())
    (score,) = record["scores"]
    assert score["agrees"] and score["value"] == pytest.approx(value, abs=0.01)
    assert record["sha256"] == sha256 and record["licence"] == "CC0" and record["environment"]["torch"]
    assert "| toy | knn |" in (folder / "verify.md").read_text()


def test_score_outside_the_range_disagrees_with_code_1(command, toy_root):
    text = run(command(100.5, 101.0), toy_root, expect=1)
    assert "published 100.5, range 100.5 to 101.0: disagrees" in text


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"md5": "00000000"}, r"another file than toy: its md5 begins with [0-9a-f]{8}, expected 00000000"),
        ({"layout": "--source moco"}, "is not of the layout of toy: "),
        ({"licence": None}, "toy states no licence"),
        ({"scores": {"knn": {"value": 5, "range": [6, 7], "printed": ""}}}, "6 to 7 does not hold the published 5"),
        ({"scores": {"mAP": {}}}, "has a column mAP: expected one of "),
        ({"scores": {"knn": {"value": 5, "range": [4, 6]}}}, "reading .*: printed is missing"),
    ],
)
def test_wrong_file_or_record_is_refused_in_a_line(command, facts, message, toy_root):
    assert re.search(message, one_line_error(command(**facts), toy_root))


def test_missing_data_are_named_before_anything_runs(command, toy_root, tmp_path):
    line = one_line_error(f"{command()}_elsewhere", tmp_path)
    assert "cannot be evaluated here; missing: toy_classification_train" in line


def test_unknown_name_column_and_missing_file_are_refused(command, toy_root):
    words = command()
    assert "has no file 'toi': expected one of toy; did you mean" in one_line_error(
        words.replace("verify.py toy", "verify.py toi"), toy_root
    )
    assert "was not published with it, expected of knn" in one_line_error(f"{words} --only mAP", toy_root)
    assert "expected your copy of moco-v2-200, or --how fetch" in one_line_error(
        "python tools/verify.py moco-v2-200", toy_root
    )


def test_dry_run_shows_the_evaluation_and_runs_none(command, toy_root):
    text = run(f"{command()} --dry-run", toy_root)
    assert "FrozenEvaluations/linear.py" in text and "missing: nothing" in text and "agrees" not in text


def test_list_names_every_file_with_its_licence(toy_root):
    text = run("python tools/verify.py", toy_root)
    for name, facts in read_yaml(PUBLISHED)["files"].items():
        assert re.search(rf"^{name} .*{facts['licence']}", text, re.M)


def test_fetch_takes_the_published_url(command, checkpoint, served, tmp_path, toy_root):
    (tmp_path / "served/toy.pth").write_bytes(checkpoint.read_bytes())
    words = command(url=f"{served}/toy.pth").replace(str(checkpoint), "--how fetch")
    assert "missing: nothing" in run(f"{words}_fetched --dry-run", toy_root)


def test_a_whole_detector_is_evaluated_as_it_is(tmp_path):
    torch.save({"model": {}}, tmp_path / "detector.pth")
    published = read_published(PUBLISHED, "zoo-faster-rcnn-r50-fpn")
    verification = Verification(published, tmp_path / "detector.pth", [], root=tmp_path, seed=1, gpus=1)
    job = verification.jobs()["COCO_trained_faster_rcnn"]
    assert hashlib.sha256((tmp_path / "detector.pth").read_bytes()).hexdigest() in str(job.facts)  # another file: again
    (command,) = job.commands
    assert "--eval-only" in command
    assert command[command.index("MODEL.WEIGHTS") + 1] == str(tmp_path / "detector.pth")


def test_every_published_file_can_be_read_with_all_its_columns():
    for name in read_yaml(PUBLISHED)["files"]:
        assert read_published(PUBLISHED, name).scores


def test_values_of_the_papers_weights_are_those_of_its_tables():
    """The README of the authors has 63.2 for MoCo's J&F after 800 epochs, the paper 63.3."""
    rows = {
        "paper-moco-200": ("ablation", "MoCo"),
        "paper-all-200": ("ablation", "+MC+CC+m+A+NN"),
        "paper-moco-800": ("sota", "MoCo"),
        "paper-all-800": ("sota", "+CC+A+kNN"),
        "densecl-coco-800": ("sota", "DenseCL"),
        "virtex-coco": ("sota", "VirTex"),
    }
    for name, (table, row) in rows.items():
        assert row in ROWS[table]
        printed = paper_values(table)[row]
        for score in read_published(PUBLISHED, name).scores:
            assert score.value == pytest.approx(printed[score.column], abs=0.11 if score.value == 63.2 else 0)
