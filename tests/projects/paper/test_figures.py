"""The paper's figures as jobs: what they compare, what they read, and the page that shows them."""

import json
import re
import subprocess
from dataclasses import replace

import pytest
import torch
from commands import popen
from trees import refused

from projects.Paper import training_time
from projects.Paper.cells import JobBuilder
from projects.Paper.figures import figure_jobs, figure_page
from projects.Paper.paper_tables import DATA_SETS, ROWS
from projects.Paper.snapshots import checkpoints_at_parts, training_seconds
from projects.Paper.training_time import read_curve
from revisit.checkpoint.run_folder import remove_outdated
from revisit.engine.setup import make_config
from revisit.jobs.commands import missing_inputs, run_jobs


def jobs_of(profile, root):
    return {job.name: job for job in figure_jobs(JobBuilder(profile, root), seed=1)}


def after(name, command):
    """The word after another one."""
    return command[command.index(name) + 1]


def finish(job, content="{}"):
    job.result.parent.mkdir(parents=True, exist_ok=True)
    job.result.write_text(content)


def test_the_page_shows_the_table_of_data_sets_pictures_and_how_far_the_others_are(toy_datasets, tmp_path):
    jobs = [*jobs_of("toy", tmp_path).values()]
    page = figure_page(jobs, tmp_path)
    assert "- figure: IoU of crops: not run" in page and "| COCO | 118K | 7.3 | – | no | yes |" in page
    for job in jobs:  # all but one
        if job.name.startswith("table"):
            (command,) = job.commands
            finish(job, json.dumps({"images": 60, "objects_per_image": 5.04, "annotations": command[2]}))
        elif job.name != "figure: class activation maps":
            finish(job)
    for picture in ("figures/iou/seed1/runs.png", "evaluate/toy-ablation-moco/ImageNet/seed1/curves.png"):
        (tmp_path / picture).touch()
    page = figure_page(jobs, tmp_path)
    counted = "5.0, 60 images of toy_scenes/coco/annotations/instances_train2017.json"
    assert f"| COCO | 118K | 7.3 | {counted} | no | yes |" in page
    assert "| BDD100K | 90K | – | – | no | no |" in page
    assert "![runs.png](figures/iou/seed1/runs.png)" in page
    assert "- figure: class activation maps: not run" in page
    assert "ImageNet/seed1" not in page  # the classifiers' own curves


@pytest.mark.parametrize("profile", ["paper", "toy"])
def test_figures_compare_what_the_paper_compares(profile, toy_datasets, tmp_path):
    jobs = jobs_of(profile, tmp_path)
    rows = ROWS["ablation"]
    two, multi = (rows[label][profile].name for label in ("MoCo", "+MC"))
    (cams,) = jobs["figure: class activation maps"].commands
    assert f"/{two}/" in after("--weights", cams) and f"/{two}/" in after("CAM.CLASSIFIER", cams)
    assert f"/{multi}/" in after("CAM.OTHER_WEIGHTS", cams) and f"/{multi}/" in after("CAM.OTHER_CLASSIFIER", cams)
    limits = [limit for name in jobs if (limit := re.search(r"MAX_IOU_(\S+), seed 1: pretraining", name))]
    assert [float(limit[1]) for limit in limits] == [0.6, 0.4, 0.2, 0.0]
    (retrieval,) = jobs["figure: retrieved segments, K 5"].commands
    assert after("SEGMENT_RETRIEVAL.NUM_REGIONS", retrieval) == "5" and f"/{multi}/" in after("--weights", retrieval)


def test_every_part_of_a_training_is_judged_by_the_weights_of_that_part(toy_datasets, tmp_path):
    jobs = jobs_of("toy", tmp_path)
    for column in ("seg_VOC", "VOC_SVM_mAP"):
        figure = jobs[f"figure: {column} over training time"]
        (command,) = figure.commands
        by_result = {str(job.result): job for job in figure.needs}
        for start in (n for n, word in enumerate(command) if word == "--run"):
            name, times, *results = command[start + 1 : start + 7]
            run = {"MoCo": "toy-ablation-moco", "MoCo + multi-crop": "toy-ablation-moco_mc"}[name]
            folder = tmp_path / "snapshots" / run / "seed1"
            assert times == str(folder / "times.json")
            texts = (" ".join(by_result[result].commands[0]) for result in results)
            weights = [re.search(r"(?:--weights|MODEL.WEIGHTS) (\S+)", text)[1] for text in texts]
            final = str(tmp_path / "pretrain" / run / "seed1" / "backbone.pth")
            assert weights == [*(str(folder / f"part_{part}.pth") for part in (1, 2, 3)), final]


def test_figures_of_the_paper_say_which_files_they_lack(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    jobs = jobs_of("paper", tmp_path / "out")
    for name in DATA_SETS:
        missing = missing_inputs(jobs[f"table: objects per image, {name}"])
        assert missing.count(str(tmp_path)) == 1 + name.endswith(("118K", "LT"))
    assert missing_inputs(jobs["figure: classes of IN-118K-LT"]) == str(tmp_path / "subsets/imagenet_118k_lt.txt")
    assert not missing_inputs(jobs["figure: IoU of crops in existing frameworks"])


def test_drawn_images_are_where_the_runs_look_for_them(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", popen)
    builder = JobBuilder("toy", tmp_path)
    source = replace(ROWS["scaling"]["IN 1x 118K"]["toy"], toy_data=("object_centric/train", "--count", "10"))
    job = builder.drawn(source)
    job.claim()
    run_jobs([job], parallel=1)
    images = tmp_path / builder.images_of(job, source).removeprefix("folder:")
    assert job.done and len([*images.rglob("*.jpg")]) == 10


@pytest.fixture
def finished_run(tmp_path):
    """The folder of a run of so many iterations, with checkpoints after those that are named."""

    def make(total, *kept):
        for done in kept:
            (tmp_path / f"model_{done - 1:07d}.pth").touch()
        torch.save({"iteration": total - 1, "trainer": {}}, tmp_path / "model_final.pth")
        return tmp_path

    return make


def test_the_nearest_checkpoint_stands_for_a_part_of_the_run(finished_run):
    found = checkpoints_at_parts(finished_run(700, 100, 200, 300, 400, 500, 600, 700), 4)
    assert [done for done, _ in found] in ([200, 300, 500, 700], [200, 400, 500, 700])
    assert [path.name for _, path in found][::3] == ["model_0000199.pth", "model_final.pth"]


@pytest.mark.parametrize("profile", ["paper", "toy", "toy, full"])
@pytest.mark.parametrize("label", ["MoCo", "+MC"])
def test_the_recipes_keep_the_checkpoints_that_the_figure_needs(profile, label, finished_run):
    source = ROWS["ablation"][label][profile.partition(",")[0]]
    length = () if profile.endswith("full") else source.length
    solver = make_config(source.config, (*length, *source.options), for_here=False).SOLVER
    total, period = 10 * solver.EPOCHS, 10 * solver.CHECKPOINT_EPOCHS
    folder = finished_run(total, *range(period, total + 1, period))
    every = period * solver.CHECKPOINT_KEPT_EVERY
    for done in range(period, total + 1, period):
        remove_outdated(folder, done - 1, newest=solver.CHECKPOINTS_KEPT, every=every)
    assert [done / total for done, _ in checkpoints_at_parts(folder, 4)] == pytest.approx([0.25, 0.5, 0.75, 1], abs=0.1)


def test_a_part_without_a_checkpoint_and_an_unfinished_run_are_refused(finished_run, tmp_path):
    refused("SOLVER.CHECKPOINTS_KEPT", checkpoints_at_parts, finished_run(700, 400, 500, 600, 700), 4)
    (tmp_path / "model_final.pth").unlink()
    refused("model_final.pth", checkpoints_at_parts, tmp_path, 4)


def test_training_time_is_the_sum_of_the_steps(tmp_path):
    """Records of 20 steps each; one that a resumed run repeated counts once, and its evaluations do not."""
    steps = {19: 0.5, 39: 0.25, 59: 1.0}
    lines = [{"iteration": 39, "time": 9.0}, *({"iteration": n, "time": step} for n, step in steps.items())]
    lines.insert(2, {"iteration": 30, "eta_seconds": 3.0})
    metrics = tmp_path / "metrics.json"
    metrics.write_text("\n".join(map(json.dumps, lines)))
    each = [0.5] * 20 + [0.25] * 20 + [1.0] * 20
    for iterations in (20, 30, 45, 60):
        assert training_seconds(metrics, iterations) == pytest.approx(sum(each[:iterations]))
    assert training_seconds(metrics, 66) == pytest.approx(sum(each) * 1.1)
    refused("metrics.json", training_seconds, tmp_path / "no" / "metrics.json", 10)


def test_scores_are_drawn_against_the_time_of_their_checkpoint(tmp_path, monkeypatch):
    def write(name, content):
        (tmp_path / name).write_text(json.dumps(content))
        return str(tmp_path / name)

    times = write("times.json", [{"iterations": 10, "seconds": 60.0}, {"iterations": 20, "seconds": 120.0}])
    results = [write(f"{n}.json", {"sem_seg": {"mIoU": value}}) for n, value in enumerate((8.0, 9.5))]
    words = ["--run", "MoCo", times, *results, "--run", "+MC", times, *results[::-1], "--score", "sem_seg", "mIoU"]
    monkeypatch.setattr("sys.argv", ["", *words, "--title", "mIoU (%)", "--output", str(tmp_path / "out")])
    training_time.main()
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert found["MoCo"] == {"name": "MoCo", "seconds": [60.0, 120.0], "scores": [8.0, 9.5]}
    assert found["+MC"]["scores"] == [9.5, 8.0] and (tmp_path / "out/training_time.png").stat().st_size > 5000
    words[words.index("+MC")] = "MoCo"
    monkeypatch.setattr("sys.argv", ["", *words, "--title", "mIoU (%)", "--output", str(tmp_path / "again")])
    refused("--run MoCo, MoCo: expected a name of its own", training_time.main)
    refused("times.json", read_curve, ["MoCo", times, results[0]], ["sem_seg", "mIoU"])
    refused("MoCo: .*bbox AP", read_curve, ["MoCo", times, *results], ["bbox", "AP"])
