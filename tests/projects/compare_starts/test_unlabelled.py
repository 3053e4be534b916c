"""Starts compared with and without a teacher: what its trainings share, what is written, what is refused."""

import json
import re
from collections.abc import Callable

import pytest
from commands import one_line_error, run
from trees import refused

from projects.CompareStarts.comparison import make_cells
from projects.CompareStarts.labelled_parts import HeldOut
from projects.CompareStarts.starts import Start, read_starts
from projects.CompareStarts.task import read_task
from projects.CompareStarts.trainings import Training, Trainings
from projects.CompareStarts.unlabelled import with_teachers
from projects.CompareStarts.write_comparison import write_comparison
from projects.Paper.cells import Cell

TOOL = "python tools/compare_starts.py"
DETECTOR = "configs/toy/faster_rcnn_fpn.yaml"
SMALL = (
    "SOLVER.EPOCHS 0 SOLVER.MAX_ITER 4 SOLVER.STEPS (3,) SOLVER.IMS_PER_BATCH 2 SOLVER.WARMUP_ITERS 0 "
    "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 MODEL.FPN.OUT_CHANNELS 8 "
    "MODEL.ROI_BOX_HEAD.FC_DIM 16 INPUT.MIN_SIZE_TRAIN (64,) TEST.PRECISE_BN.ENABLED False DATALOADER.NUM_WORKERS 0"
)


@pytest.fixture
def photographs(tmp_path, write_pictures) -> str:
    write_pictures(tmp_path / "photographs", 5)
    return f"folder:{tmp_path}/photographs"


@pytest.fixture
def starts(task, photographs, tmp_path) -> dict[str, Start]:
    (tmp_path / "a.pth").write_bytes(b"a")
    plain = read_starts(["random", f"{tmp_path}/a.pth"], task.load(task.options), "")
    return with_teachers(task, plain, [photographs])


@pytest.fixture
def finish() -> Callable[..., None]:
    def write(cell: Cell, seconds: float, *values: float) -> None:
        for job, value in zip(cell.jobs, values, strict=True):
            job.claim()
            job.result.write_text(json.dumps({"bbox": {"AP": value}}))
            metrics = {"iteration": 1, "cpu_seconds": seconds, "wall_seconds": 1.0}
            (job.result.parent / "metrics.json").write_text(json.dumps(metrics))

    return write


def test_a_teachers_trainings_differ_from_the_plain_ones_by_the_teacher_alone(task, starts, photographs, tmp_path):
    assert list(starts) == ["random weights", "random weights + teacher", "a", "a + teacher"]
    cells = make_cells(task, starts, [8, 16], (1, 2), root=tmp_path)
    photographs_of = f"DATASETS.UNLABELLED ('{photographs}',)"
    teacher = f"MODEL.META_ARCHITECTURE TeacherDetector TEACHER.DETECTOR GeneralizedRCNN {photographs_of}"
    assert len({job.result for cell in cells for job in cell.jobs}) == 16
    for plain, taught in zip([*cells[:2], *cells[4:6]], [*cells[2:4], *cells[6:]], strict=True):
        for one, two in zip(plain.jobs, taught.jobs, strict=True):
            words = " ".join(two.commands[0])
            assert teacher in words and "_labels_teacher/" in words
            same = words.replace(f" {teacher}", "").replace("_labels_teacher/", "_labels/")
            assert same == " ".join(one.commands[0])
            assert [fact.partition(" of ")[0] for fact in two.facts[len(one.facts) :]] == [
                "number",
                "names",
                "files' sizes",
            ]


def test_the_table_has_both_with_their_costs_and_compares_each_with_the_same_start(task, starts, finish, tmp_path):
    cells = make_cells(task, starts, [8, 16], (1, 2, 3), root=tmp_path)
    plain, taught = [(10, 12, 11), (20, 22, 21)], [(18.1, 20, 18.9), (30.1, 32, 30.9)]
    of_a, of_a_taught = [(11, 12, 10.6), (21, 22.5, 20.6)], [(41.1, 42, 40.5), (51.1, 52.5, 50.5)]
    scores = [*plain, *taught, *of_a, *of_a_taught]
    for cell, values in zip(cells, scores, strict=True):
        finish(cell, 230.4 if "teacher" in cell.row else 100.0, *values)
    folder = tmp_path / "comparison"
    folder.mkdir()
    text = write_comparison(task, cells, [1, 2, 3], folder)
    assert "| labelled images | 8 | 16 (all) | CPU-seconds of a training |" in text
    assert "| random weights + teacher | 19.0 ± 1.0 | 31.0 ± 1.0 | 230, 230 |" in text
    assert "| a | 11.2 ± 0.7 | 21.4 ± 1.0 | 100, 100 |" in text
    assert "With random weights + teacher 8 labelled images do what 14 do with random weights (" in text
    assert "No difference between a and random weights at 8 and 16" in text
    assert "With a + teacher 8 labelled images do more than 16 do with a, the most measured" in text
    results = json.loads((folder / "results.json").read_text())
    assert results["weights"] == "random weights, random weights + teacher, a, a + teacher"
    assert len(results["worth"]) == 6
    lines = (folder / "scores.csv").read_text().splitlines()
    assert lines[0].endswith(",seeds,seconds") and lines[-1] == "a + teacher,16,51.3667,1.0263,51.1 52.5 50.5,3,230.4"


def test_until_it_is_flat_a_teacher_is_trained_for_the_same_lengths_on_the_same_images(task, starts, tmp_path):
    trainings = Trainings(task, starts, [16], HeldOut(), tmp_path)
    names = ("a", "a + teacher")
    plain, taught = (trainings.job(Training(name, 16, 2, 10, 3.0)).commands[0] for name in names)
    options = [dict(zip(words, words[1:], strict=False)) for words in (plain, taught)]
    for key in ("DATASETS.TRAIN", "DATASETS.TEST", "SOLVER.MAX_ITER", "SOLVER.STEPS", "SOLVER.BASE_LR", "SEED"):
        assert options[0][key] == options[1][key]
    assert options[1]["MODEL.META_ARCHITECTURE"] == "TeacherDetector"
    assert "13_labels_teacher_3_held_out_10x" in options[1]["OUTPUT_DIR"]


def test_a_comparison_with_test_images_as_photographs_runs_resumes_and_warns(toy_root, pretrained, tmp_path):
    command = (
        f"{TOOL} --config-file {DETECTOR} --weights {pretrained}/backbone.pth --labels 8 --seeds 1 "
        f"--unlabelled toy_coco_val --output {tmp_path}/out"
    )
    text = run(f"{command} --opts {SMALL}", toy_root)
    seconds = [re.search(rf"\| {name} \| \S+ \| (\d+) \|", text) for name in ("backbone", r"backbone \+ teacher")]
    assert all(seconds) and "One seed: nothing says how much of it is chance" in text
    assert re.search(r"\d+ images of toy_coco_val are among DATASETS.UNLABELLED: scores on them say too much", text)
    (log,) = tmp_path.glob("out/evaluate/*/8_labels_teacher/seed1/metrics.json")
    assert "loss_cls_unlabelled" in log.read_text()
    assert "2 jobs, 2 done before" in run(f"{command} --opts {SMALL}", toy_root)
    other = command.replace("toy_coco_val", "toy_coco_train")
    assert "number of DATASETS.UNLABELLED" in one_line_error(f"{other} --opts {SMALL}", toy_root)


@pytest.mark.parametrize(
    ("config", "frozen", "named"),
    [
        (
            "configs/toy/depth.yaml",
            False,
            "configs/toy/depth.yaml trains a DepthEstimator: expected a recipe of a detector",
        ),
        ("projects/FrozenEvaluations/configs/linear/toy.yaml", True, "toy.yaml classifies by frozen features"),
    ],
)
def test_recipes_of_no_detector_are_refused(config, frozen, named, toy_datasets):
    task = read_task(config, [], frozen=frozen)
    refused(f"--unlabelled: .*{re.escape(named)}", with_teachers, task, {}, ["toy_coco_val"])


def test_a_recipe_with_a_teacher_of_its_own_is_refused(toy_datasets):
    task = read_task(DETECTOR, ["MODEL.META_ARCHITECTURE", "TeacherDetector"], frozen=False)
    refused("trains a TeacherDetector", with_teachers, task, {}, ["toy_coco_val"])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--unlabelled folder:{}/nowhere", "nowhere"),
        ("--unlabelled folder:{}", "no images in"),
        ("--unlabelled toy_coco_train --how probe", "expected neither --how probe nor --time"),
        ("--unlabelled toy_coco_train --time 60m", "expected neither --how probe nor --time"),
    ],
)
def test_mistakes_are_one_line_before_any_training(words, named, toy_root, tmp_path):
    command = f"{TOOL} --config-file {DETECTOR} --weights random --labels 8 --output {tmp_path}/out"
    assert named in one_line_error(f"{command} {words.format(tmp_path)} --opts {SMALL}", toy_root)
    assert not (tmp_path / "out").exists()
