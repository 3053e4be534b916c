"""Starts compared from the command line: jobs, table, plot, sentence; done once; what is refused."""

import json
import os
import re
import runpy
import sys
from dataclasses import replace

import cv2
import pytest
from commands import ROOT, one_line_error, run
from tiny import tiny_config
from trees import refusal, refused, write

from projects.CompareStarts import comparison
from projects.CompareStarts.comparison import check_labels, make_cells, read_labels
from projects.CompareStarts.starts import read_starts
from projects.CompareStarts.task import read_task
from projects.CompareStarts.write_comparison import tables_in, write_comparison
from projects.Paper.cells import Cell, JobBuilder
from projects.Reports.collect import collect
from projects.Reports.kinds import STUDY, by_kind, study_of
from revisit.data.sources.catalog import drop_records
from revisit.errors import UserError
from revisit.jobs.commands import Job

TOOL = "python tools/compare_starts.py"
DEPTH, FROZEN = "configs/toy/depth.yaml", "projects/FrozenEvaluations/configs/linear/toy.yaml"
NARROW = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
SHORT = (
    "SOLVER.EPOCHS 0 SOLVER.MAX_ITER 2 SOLVER.IMS_PER_BATCH 4 SOLVER.WARMUP_ITERS 0 "
    f"MODEL.SEM_SEG_HEAD.CONVS_DIM 8 INPUT.CROP.SIZE [65,65] {NARROW}"
)


@pytest.fixture
def depth_task(toy_datasets):
    return read_task(DEPTH, SHORT.split(), frozen=False)


def test_the_help_has_its_options_in_groups_that_say_what_they_are_for():
    text = run(f"{TOOL} --help", ROOT)
    heads = re.findall(r"^(\S.*):\n(?=  -)", text, re.MULTILINE)
    parts = {head.partition(":")[0]: text.partition(f"{head}:\n")[2].partition("\n\n")[0] for head in heads}
    options = {head: set(re.findall(r"^  --([\w-]+)", part, re.MULTILINE)) for head, part in parts.items()}
    assert options.pop("options") == {"debug", "version", "opts"}
    assert options["With --how until-flat"] == {"held-out", "rule", "spent", "reference"}
    assert options["On which labels"] == {"labels", "labelled", "seeds", "unlabelled"}
    assert len(options) == 5 and max(map(len, options.values())) <= 8


def cells_of(task, root, *paths, labels=("8", "all"), seeds=(1, 2)):
    starts = read_starts(paths, task.load(task.options), "configs/own_images/continue.yaml")
    return make_cells(task, starts, read_labels(labels, task, seeds), seeds, root=root)


def finish(cell: Cell, *values: float | None) -> None:
    for job, value in zip(cell.jobs, values, strict=False):
        job.claim()
        content: object = value
        for name in reversed(cell.score):
            content = {name: content}
        job.result.write_text(json.dumps(content))


def recipe(job: Job) -> list[str]:
    return [word for word in job.commands[0] if "/" not in word or word.startswith("(")]


def test_a_length_in_epochs_which_few_labels_make_shorter_is_warned_of(toy_datasets, capsys):
    options = ["SOLVER.IMS_PER_BATCH", "4", "SOLVER.EPOCHS", "4", "SOLVER.STEP_EPOCHS", "(2,3)"]
    for lengths, warned in (([], True), (["SOLVER.MAX_ITER", "60", "SOLVER.STEP_EPOCHS", "()"], False)):
        task = read_task(DEPTH, [*NARROW.split(), *options, *lengths], frozen=False)
        check_labels(task, [8, 60], (1,))
        remedy = 'SOLVER.MAX_ITER 60 SOLVER.STEP_EPOCHS "()" SOLVER.STEPS "(30, 45)"'
        assert (remedy in capsys.readouterr().err) == warned


def test_all_starts_learn_from_the_same_nested_images_by_the_same_recipe(depth_task, tmp_path):
    (tmp_path / "a.pth").touch()
    cells = cells_of(depth_task, tmp_path, "random", f"{tmp_path}/a.pth", labels=("20", "8", "all", "60"))
    assert [(cell.row, cell.column) for cell in cells] == [
        (start, count) for start in ("random weights", "a") for count in ("8", "20", "60")
    ]
    for mine, other in zip(cells[:3], cells[3:], strict=True):
        for one, two in zip(mine.jobs, other.jobs, strict=True):
            assert recipe(two)[:-1] == recipe(one) and recipe(two)[-1] == "MODEL.WEIGHTS"
    sets = [re.search(r"DATASETS.TRAIN \('(\S+)',\)", " ".join(job.commands[0]))[1] for job in cells[0].jobs]
    assert sets == ["subset:8:1:toy_nyud_depth_train", "subset:8:2:toy_nyud_depth_train"]
    assert all("('toy_nyud_depth_train',)" in job.commands[0] for job in cells[2].jobs)
    assert len({job.result for cell in cells for job in cell.jobs}) == 12


def test_other_labels_of_the_same_images_are_other_data(tmp_path, write_pictures):
    write_pictures(tmp_path / "images", 16)
    facts = []
    for time, side in enumerate((9, 9, 10)):
        os.utime(tmp_path / "images/000.png", ns=(time, time))  # as of a copy
        boxes = [{"id": n + 1, "image_id": n, "category_id": 1, "bbox": [1, 1, 9, side]} for n in range(16)]
        pictures = [{"id": n, "file_name": f"{n:03d}.png"} for n in range(16)]
        content = {"images": pictures, "annotations": boxes, "categories": [{"id": 1, "name": "crate"}]}
        (tmp_path / "a.json").write_text(json.dumps(content))
        data = f"('coco:{tmp_path}/images:{tmp_path}/a.json',)"
        options = ("DATASETS.TRAIN", data, "DATASETS.TEST", data, "MODEL.ROI_HEADS.NUM_CLASSES", "1")
        task = read_task("configs/own_images/detection.yaml", options, frozen=False)
        check_labels(task, [8, 16], [1, 2])
        facts.append(task.facts)
    message = f"labels of coco:{tmp_path}"
    job = Job("a job", (), tmp_path / "job/result.json", facts[0])
    job.claim()
    assert message in refusal(replace(job, facts=facts[2]).claim)
    assert task.total == 16 and task.score == ("bbox", "AP") and facts[0] == facts[1] != facts[2]


def test_a_comparison_is_run_resumed_written_and_shown_on_a_report(pretrained, toy_root, tmp_path):
    command = (
        f"{TOOL} --config-file {DEPTH} --weights random {pretrained}/backbone.pth --labels 8 --seeds 1 2 "
        f"--output {tmp_path}/out"
    )
    text = run(f"{command} --opts {SHORT}", toy_root)
    row = next(line for line in text.splitlines() if line.startswith("| backbone |"))
    assert re.fullmatch(r"\| backbone \| \d\.\d{3} ± \d\.\d{3} \| \d+ \|", row)
    folder = tmp_path / "out/comparison"
    assert {path.name for path in folder.iterdir()} == {"table.md", "scores.csv", "labels.png", "results.json"}
    assert cv2.imread(str(folder / "labels.png")).shape[0] == 440
    results = json.loads((folder / "results.json").read_text())
    assert results["sentence"] in text and "depth/rmse, lower is better" in results["protocol"]
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/evaluate").rglob("*") if path.is_file()}
    assert "4 jobs, 4 done before" in run(f"{command} --opts {SHORT}", toy_root)
    assert times == {path: path.stat().st_mtime_ns for path in times}
    line = one_line_error(f"{command} --opts {SHORT} SOLVER.GAMMA 0.5", toy_root)
    assert "was made by other commands" in line
    runs, _ = collect([tmp_path / "out"])
    assert [run.name for _, run in by_kind(runs)[STUDY]] == ["comparison"]
    assert study_of(runs[0])["sentence"] == results["sentence"]


def test_a_start_may_be_what_a_recipe_first_makes_of_the_images_without_their_labels(toy_root, tmp_path):
    recipe = tmp_path / "simclr.yaml"
    recipe.write_text(
        f"_BASE_: {ROOT}/configs/toy/demo.yaml\n"
        "MODEL: {RESNETS: {STEM_OUT_CHANNELS: 8, RES2_OUT_CHANNELS: 8}}\n"
        "SOLVER: {EPOCHS: 0, MAX_ITER: 2, IMS_PER_BATCH: 4, CHECKPOINT_EPOCHS: 0}\n"
    )
    command = f"{TOOL} --config-file {DEPTH} --labels 8 --seeds 1 --output {tmp_path}/out"
    starts = f"--weights random pretrain:{recipe}"
    planned = run(f"{command} {starts} --dry-run --opts {SHORT}", toy_root)
    assert "seed 1: pretraining (2 iterations of 4 images)" in planned and "3 jobs" in planned
    assert 'DATASETS.TRAIN "(' in planned  # as one types it
    text = run(f"{command} {starts} --opts {SHORT}", toy_root)
    assert re.search(r"\| simclr, these images \| \d\.\d{3} \|", text) and "3 jobs, 0 done" in text
    other = f"{command} --weights random pretrain:{ROOT}/configs/toy/demo.yaml --opts {SHORT}"
    assert "MODEL.RESNETS.STEM_OUT_CHANNELS is 8 here and 16 there" in one_line_error(other, toy_root)
    assert "is no pretraining" in one_line_error(
        f"{command} --weights random pretrain:{DEPTH} --opts {SHORT}", toy_root
    )


def test_a_pretraining_of_other_images_is_not_taken_for_this_one(tmp_path, write_pictures):
    paths = [str(path) for path in write_pictures(tmp_path / "photos", 3)]
    cfg = tiny_config("DATASETS.TRAIN", (f"list:{tmp_path}/list.txt",))

    def job(*chosen: str) -> Job:
        write(tmp_path / "list.txt", chosen)
        drop_records()
        (start,) = read_starts(["pretrain:configs/toy/pretrain.yaml"], cfg, "").values()
        return JobBuilder("", tmp_path / "out").backbone(start.source, 1)

    job(*paths).claim()
    job(*paths).claim()
    refused("from other data", job(*paths[:2]).claim)


def test_frozen_features_choose_lambda_among_the_labelled_images_and_are_computed_once(pretrained, toy_root, tmp_path):
    small = "LINEAR.IMAGE_SIZE 32 LINEAR.LAMBDAS '(1e-3,1e3,3)' LINEAR.MAX_ITER 50"
    text = run(
        f"{TOOL} --config-file {FROZEN} --how frozen --weights random {pretrained}/backbone.pth "
        f"--labels 20 all --seeds 1 --output {tmp_path}/out --opts {NARROW} {small}",
        toy_root,
    )
    assert "top1, by frozen features" in text and "One seed" in text
    jobs = sorted((tmp_path / "out/evaluate").glob("*/*/seed1"))
    assert len(jobs) == 4
    for job in jobs:
        assert "chosen on 0.2 of the training images" in json.loads((job / "results.json").read_text())["protocol"]
        read = "features of toy_classification_test read from" in (job / "job.log").read_text()
        assert read == ("20_labels" not in str(job))
    assert len([*(tmp_path / "out/features").glob("*/seed1/toy_classification_test-*.npy")]) == 2


def test_the_table_says_how_far_a_comparison_has_come(depth_task, tmp_path):
    (tmp_path / "a.pth").touch()
    cells = cells_of(depth_task, tmp_path / "out", "random", f"{tmp_path}/a.pth")
    folder = tmp_path / "comparison"
    folder.mkdir()
    text = write_comparison(depth_task, cells, [1, 2], folder)
    assert "| a | not run | not run |" in text and "cannot be compared yet" in text
    assert "So far: 4 of 4 cells are not finished." in text and not (folder / "labels.png").exists()
    finish(cells[0], 0.9, 1.0)
    finish(cells[1], 0.4, 0.5)
    finish(cells[2], 0.6, 0.7001)  # not the same difference with every seed
    finish(cells[3], 0.5)
    text = write_comparison(depth_task, cells, [1, 2], folder)
    assert "| random weights | 0.950 ± 0.071 | 0.450 ± 0.071 |" in text and "0.500 (1 of 2 seeds)" in text
    assert "by a paired t-test over seeds" in text
    assert "Of one seed every difference is named." in write_comparison(depth_task, cells, [1], folder)
    assert "With a 8 labelled images do what" not in text  # nothing lies between the one number that both have
    assert "With a 8 labelled images do more than 8 do with random weights, the most measured." in text
    finish(cells[3], 0.4, 0.5)
    text = write_comparison(depth_task, cells, [1, 2], folder)
    assert "With a 8 labelled images do what 27 do with random weights (15 to 47)." in text
    assert "No difference at 60." in text and "So far" not in text
    assert (folder / "scores.csv").read_text().splitlines()[1].startswith("random weights,8,0.9500,0.0707,0.9 1.0,2")
    finish(cells[3], None, 0.5)
    text = write_comparison(depth_task, cells, [1, 2], folder)
    assert "| a | 0.650 ± 0.071 | undefined |" in text and "1 of 4 cells have no depth/rmse" in text
    assert "With a 8 labelled images do more than 8 do" in text and "at 60" not in text


def test_a_folder_has_the_tables_of_one_way_of_comparing(tmp_path):
    for _ in range(2):
        assert tables_in(tmp_path, "finetune").is_dir()
    refused("made with other settings .--how.: give another --output", tables_in, tmp_path, "frozen")


def test_one_image_of_each_class_leaves_none_to_choose_lambda_on(toy_datasets):
    task = replace(read_task(FROZEN, ["LINEAR.IMAGE_SIZE", "32"], frozen=True), by_class=True)
    labels = read_labels(["1/class"], task, [1])
    problem = f"chooses lambda on some labelled images, and {labels[0]} show each class once: expected --labels 2/class"
    refused(problem, check_labels, task, labels, [1])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--labels 8 61", "not 61"),
        ("--labels 3 8", "subset:3:1:toy_nyud_depth_train"),
        ("--labels 8 --opts MODEL.RESNETS.DEPTH 34", "MODEL.RESNETS.DEPTH is 34"),
        ("--labels 8 --opts SEED", "--opts"),
        ("--labels 8 --held-out 0.3 --rule longest=3", "--held-out, --rule: expected with --how until-flat alone"),
    ],
)
def test_mistakes_are_one_line_before_any_job(words, named, pretrained, toy_root, tmp_path):
    given, _, more = words.partition("--opts ")
    command = f"{TOOL} --config-file {DEPTH} --weights random {pretrained}/backbone.pth --output {tmp_path}/out"
    assert named in one_line_error(f"{command} {given} --opts {SHORT} {more}", toy_root)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "frozen", "options", "score", "named"),
    [
        ("configs/toy/pretrain.yaml", False, "", "", "configs/toy/pretrain.yaml"),
        (FROZEN, False, "", "", "--how frozen"),
        (DEPTH, False, "DATASETS.TEST ()", "", "DATASETS.TEST"),
        (DEPTH, False, "DATASETS.TRAIN ('nothing',)", "", "'nothing'"),
        (DEPTH, False, "MODEL.WEIGHTS README.md", "", "MODEL.WEIGHTS"),  # the random start would learn from them
        (FROZEN, True, "MODEL.WEIGHTS README.md", "", "MODEL.WEIGHTS"),
        (DEPTH, False, "", "depth/abs_rel", "--score depth/abs_rel"),
        ("configs/toy/detection.yaml", False, "", "bbox", "--score bbox"),
        (FROZEN, True, "", "mAP", "--score mAP"),
        (FROZEN, True, "LINEAR.METHOD sgd", "top-1", "--score top-1"),
    ],
)
def test_recipes_of_another_kind_and_scores_that_they_lack_are_refused(
    config, frozen, options, score, named, toy_datasets
):
    refused(re.escape(named), read_task, config, options.split(), frozen=frozen, score=score)


@pytest.mark.parametrize("ending", [KeyboardInterrupt, None])
def test_a_score_that_no_result_has_is_one_line_and_never_instead_of_what_ended_the_jobs(
    ending, toy_datasets, tmp_path, monkeypatch
):
    tool = runpy.run_path(f"{ROOT}/tools/compare_starts.py")["main"]

    def end(jobs: list[Job], *_: object, **__: object) -> None:
        for job in jobs:
            job.result.write_text('{"depth": {"rmse": 1.5, "rmse-cat": 2.5}}')
        if ending:
            raise ending

    (tmp_path / "a.pth").touch()
    words = f"--config-file {DEPTH} --weights random {tmp_path}/a.pth --labels 8 --seeds 1 --score depth/rmse-dog "
    monkeypatch.setattr(sys, "argv", ["compare_starts.py", *f"{words} --output {tmp_path}/out --opts {SHORT}".split()])
    monkeypatch.setattr(comparison, "check_starts", lambda *_: None)
    monkeypatch.setattr("revisit.jobs.commands.run_jobs", end)
    with pytest.raises(ending or UserError, match=None if ending else "expected one of depth/rmse, or of a class$"):
        tool()
