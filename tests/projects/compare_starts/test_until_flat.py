"""Finetuning until the score is flat: what is trained and chosen, what is written, and that nothing is repeated."""

import contextlib
import fcntl
import json
import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from commands import ROOT, documented, one_line_error, popen, run, wait_until
from trees import refused

from projects.CompareStarts.flatness import Rule
from projects.CompareStarts.labelled_parts import HeldOut
from projects.CompareStarts.start_costs import read_spent, seconds_before
from projects.CompareStarts.starts import Start, read_starts
from projects.CompareStarts.trainings import Training, Trainings
from projects.CompareStarts.until_flat import UntilFlat
from projects.CompareStarts.write_until_flat import FlatReport
from projects.Paper.paper_tables import GivenBackbone
from projects.Reports.collect import collect
from projects.Reports.kinds import STUDY, by_kind, study_of
from revisit.checkpoint.named_weights import cache_folder
from revisit.errors import UserError
from revisit.jobs.commands import Job

FULL = 400  # iterations of the task
ITERATION = 0.5  # CPU-seconds
DIVERGED = "error: the loss of iteration 7 is not finite. Lower SOLVER.BASE_LR or lengthen its warm-up\n"


class Machine:
    """Runs jobs by writing what they would leave behind.

    Start a reaches 20, 40, 50, 55, 55 with 1, 3, 10, 30, 100 times the length, b the same a length later; the rate x3
    is best for a, and makes b diverge.
    """

    SCORES = (20.0, 40.0, 50.0, 55.0, 55.0, 55.0)

    def __init__(self, task, fails_at: int | None = None):
        self.ran, self.fails_at = [], fails_at
        self.rate = task.load(task.options).SOLVER.BASE_LR
        self.diverges = lambda name, factor: (name, factor) == ("b", 3)

    def __call__(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.claim()
            if job.done:
                continue
            if len(self.ran) == self.fails_at:
                raise KeyboardInterrupt
            words = job.commands[0]
            options = dict(zip(words, words[1:], strict=False))
            iterations, seed = int(options.get("SOLVER.MAX_ITER", FULL)), int(options["SEED"])
            factor = round(float(options["SOLVER.BASE_LR"]) / self.rate, 1)
            name = job.name[0]
            self.ran.append((name, iterations // FULL, factor, seed))
            if self.diverges(name, factor):
                job.log.write_text(DIVERGED)
                continue
            self.write(job, options, name, iterations // FULL, factor, seed)
        if not all(job.done for job in jobs):
            raise UserError("some jobs failed")

    def write(self, job: Job, options: dict, name: str, times: int, factor: float, seed: int) -> None:
        place = (1, 3, 10, 30, 100).index(times) - (name == "b")
        score = (self.SCORES[place] if place >= 0 else 0.0) - 2 * abs(factor - (3 if name == "a" else 1)) + seed / 5
        held_out, test = re.findall(r"'(.*?)'", options["DATASETS.TEST"])
        scores = {held_out: {"bbox": {"AP": score}}, test: {"bbox": {"AP": score - 1}}}
        seconds = {"cpu_seconds": 10 + times * FULL * ITERATION, "wall_seconds": 20.0, "time": 0.1}
        (job.result.parent / "metrics.json").write_text(json.dumps({"iteration": 1, **seconds}))
        for network in ("model_0000199.pth", "model_final.pth"):
            (job.result.parent / network).touch()
        job.result.write_text(json.dumps(scores))


@pytest.fixture
def compare(task, tmp_path) -> Callable[..., UntilFlat]:
    def make(machine: Machine, names: str = "ab", seeds: tuple[int, ...] = (1, 2), **options: object) -> UntilFlat:
        for name in names:
            (tmp_path / f"{name}.pth").write_bytes(name.encode())
        starts = {name: Start(GivenBackbone(str(tmp_path / f"{name}.pth"))) for name in names}
        trainings = Trainings(task, starts, [16], HeldOut(), tmp_path / "out")
        return UntilFlat(trainings, [16], seeds, Rule(1.0, **options), run=machine)

    return make


def trained(comparison: UntilFlat) -> None:
    comparison.claim()
    comparison.train()


def written(comparison: UntilFlat, tmp_path: Path, before: float = 100.0, unknown: tuple[str, ...] = ()) -> str:
    return FlatReport(comparison, {"a": before, "b": 0.0}, unknown, "b").write(tmp_path / "comparison")


def test_each_start_is_trained_at_its_best_rate_until_it_is_flat(compare, task, tmp_path):
    machine = Machine(task)
    comparison = compare(machine)
    trained(comparison)
    searched = {(name, 1, rate, seed) for name in "ab" for rate in (0.3, 1, 3) for seed in (1, 2)}
    longer = {("a", times, 3, seed) for times in (3, 10, 30, 100) for seed in (1, 2)}
    longer |= {("b", times, 1, seed) for times in (3, 10, 30, 100) for seed in (1, 2)}
    assert set(machine.ran) == searched | longer and len(machine.ran) == len(set(machine.ran))
    curves = comparison.curves()
    assert [curve.last.times for curve in curves] == [30, 30, 100, 100]
    assert [curve.is_flat for curve in curves] == [True, True, False, False]  # b has reached the longest
    assert all(curve.has_ended for curve in curves)
    networks = [file.relative_to(tmp_path).parts for file in tmp_path.rglob("out/**/model_*.pth")]
    ends = {(name[0], place.split("_")[5], seed) for *_, name, place, seed, _ in networks}
    assert ends == {(*end, seed) for end in (("a", "30x"), ("b", "100x")) for seed in ("seed1", "seed2")}
    assert {name for *_, name in networks} == {"model_final.pth"}


def test_all_trainings_of_a_seed_learn_from_and_choose_by_the_same_images(compare, task):
    comparison = compare(Machine(task))
    jobs = [comparison.trainings.job(Training(name, 16, 2, times, 1.0)) for name in "ab" for times in (1, 10)]
    for job in jobs:
        options = dict(zip(job.commands[0], job.commands[0][1:], strict=False))
        assert options["DATASETS.TRAIN"] == f"('subset:13:2:{task.data}',)"
        assert options["DATASETS.TEST"] == f"('held_out:{task.data}:13:16:2', '{task.data}')"
    assert options["SOLVER.MAX_ITER"] == "4000" and options["SOLVER.STEPS"] == "(3000,)"
    named = Trainings(task, comparison.trainings.starts, [16], HeldOut(name="others"), comparison.trainings.root)
    words = named.job(Training("a", 16, 2)).commands[0]
    assert f"('{task.data}',)" in words and f"('others', '{task.data}')" in words


def test_other_images_to_choose_by_make_other_trainings(compare, task):
    starts, root = (getattr(compare(Machine(task)).trainings, name) for name in ("starts", "root"))
    for facts, is_taken in (("boxes: 1",), True), (("boxes: 1",), True), (("boxes: 2",), False):
        trainings = Trainings(task, starts, [16], HeldOut(name="others", facts=facts), root)
        job = trainings.job(Training("a", 16, 2))
        if is_taken:
            job.claim()
        else:
            refused(r"from other data \(boxes\)", job.claim)


@pytest.mark.parametrize("fails_at", [0, 5, 11, 13, 20, 26])
def test_an_interrupted_comparison_repeats_nothing_and_ends_alike(compare, task, tmp_path, fails_at):
    machine = Machine(task, fails_at)
    with pytest.raises(KeyboardInterrupt):
        trained(compare(machine))
    written(compare(machine), tmp_path)
    machine.fails_at = None
    comparison = compare(machine)
    trained(comparison)
    assert len(machine.ran) == len(set(machine.ran)) == 28
    assert comparison.next_round() == []


def test_a_failure_that_is_not_the_learning_rates_ends_the_command(compare, task):
    machine = Machine(task)

    def break_down(jobs: list[Job]) -> None:
        jobs[0].claim()
        jobs[0].log.write_text("error: the disk is full\n")
        raise UserError("1 of 12 jobs failed")

    comparison = replace(compare(machine), run=break_down)
    refused("1 of 12 jobs failed", comparison.train)


def test_the_tables_have_scores_costs_and_the_time_to_the_reference(compare, task, tmp_path):
    comparison = compare(Machine(task))
    assert "not all starts have trained yet" in written(comparison, tmp_path)
    assert not (tmp_path / "comparison/curves.png").exists()
    trained(comparison)
    text = written(comparison, tmp_path)
    header, _, of_a, of_b = (line.split(" | ") for line in text.splitlines() if line.startswith("|"))
    assert header[3:8] == ["1x", "3x", "10x", "30x", "100x"]
    assert header[-1] == "s in all to the end of b (54.3) |"
    assert of_a[:5] == ["| a", "100", "0.03", "19.3 ± 0.1 (210 s)", "39.3 ± 0.1 (610 s)"]
    assert of_a[8:] == ["54.3 ± 0.1", "30x", "6,110", "6,110 |"]
    assert of_b[:4] == ["| b", "0", "0.01", "-0.7 ± 0.1 (210 s)"]
    assert of_b[8:] == ["54.3 ± 0.1 (still rising)", "100x", "20,010", "20,010 |"]
    assert "a is best at the end, bbox/AP 54.3 ± 0.1; equal to it: b (54.3 ± 0.1)" in text
    assert "13 to learn from, 3 held out" in text and "Not yet flat: b." in text
    results = json.loads((tmp_path / "comparison/results.json").read_text())
    assert results["sentence"] in text and len(results["curves"]) == 4
    lines = (tmp_path / "comparison/scores.csv").read_text().splitlines()
    assert len(lines) == 1 + 26 and "a,16,1,1,400,0.03,20.2,19.2,210.0,100.0" in lines
    assert (tmp_path / "comparison/curves.png").is_file()
    ((_, study),) = by_kind(collect([tmp_path / "comparison"])[0])[STUDY]
    assert study_of(study)["sentence"] == results["sentence"]


def test_a_start_of_unknown_cost_is_marked_and_one_seed_says_nothing(compare, task, tmp_path):
    comparison = compare(Machine(task), seeds=(1,), longest=3)
    trained(comparison)
    text = written(comparison, tmp_path, 0.0, ("a",))
    assert "| a | unknown | 0.03 |" in text and "a: nothing says what it has cost" in text
    assert "One seed says nothing of chance. Not yet flat: a, b." in text


def test_a_start_has_cost_what_its_run_and_those_before_it_say(tmp_path):
    for name, weights, seconds in (("first", "", 100.0), ("second", f"{tmp_path}/first/backbone.pth", 20.0)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "backbone.pth").touch()
        (folder / "config.yaml").write_text(f"MODEL: {{WEIGHTS: '{weights}'}}\n")
        (folder / "metrics.json").write_text(json.dumps({"iteration": 1, "cpu_seconds": seconds}) + "\n")
    costs = [(f"{tmp_path}/second/backbone.pth", 120.0), ("random", 0.0)]
    for path, seconds in costs:
        assert seconds_before(Start(GivenBackbone(path)), [1, 2], tmp_path, "cpu_seconds") == seconds
    (tmp_path / "first/metrics.json").unlink()
    assert math.isnan(seconds_before(Start(GivenBackbone(costs[0][0])), [1], tmp_path, "cpu_seconds"))


def test_weights_of_others_before_a_run_cost_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = cache_folder() / "imagenet/x.pth"
    kept.parent.mkdir(parents=True)
    kept.touch()
    (tmp_path / "backbone.pth").touch()
    (tmp_path / "metrics.json").write_text('{"iteration": 1, "cpu_seconds": 7.0}\n')
    start = Start(GivenBackbone(f"{tmp_path}/backbone.pth"))
    for weights in (kept, "imagenet:efficientnet_lite0"):
        (tmp_path / "config.yaml").write_text(f"MODEL: {{WEIGHTS: '{weights}'}}\n")
        assert seconds_before(start, [1], tmp_path, "cpu_seconds") == 7


def test_a_run_whose_own_network_was_written_over_its_start_has_an_unknown_cost(tmp_path):
    (tmp_path / "model_final.pth").touch()
    (tmp_path / "config.yaml").write_text(f"MODEL: {{WEIGHTS: '{tmp_path}/model_final.pth'}}\n")
    (tmp_path / "metrics.json").write_text('{"iteration": 1, "cpu_seconds": 7.0}\n')
    assert math.isnan(seconds_before(Start(GivenBackbone(f"{tmp_path}/model_final.pth")), [1], tmp_path, "cpu_seconds"))


def test_a_start_is_best_where_the_other_diverges(compare, task, tmp_path):
    machine = Machine(task)
    machine.diverges = lambda name, factor: name == "b"
    comparison = compare(machine, longest=3)
    trained(comparison)
    text = written(comparison, tmp_path)
    assert "a is best at the end, bbox/AP 39.3 ± 0.1: no other start has one." in text


def test_starts_that_all_diverge_have_no_score(compare, task, tmp_path):
    machine = Machine(task)
    machine.diverges = lambda name, factor: True
    comparison = compare(machine, longest=3)
    trained(comparison)
    text = written(comparison, tmp_path)
    assert "With 16 labelled images no start has a bbox/AP." in text and "undefined (" in text
    assert not (tmp_path / "comparison/curves.png").exists()


def test_what_a_start_has_cost_may_be_given():
    assert read_spent(["a=30", "x=y=0.5"], ["a", "x=y"]) == {"a": 30, "x=y": 0.5}
    refused("expected NAME=SECONDS with NAME one of a, b", read_spent, ["c=3"], ["a", "b"])
    for wrong in ("a=x", "a=-1", "a=inf"):
        refused("expected a number of seconds", read_spent, ["a=30", wrong], ["a"])


def test_published_weights_are_a_start_by_their_name(task, tmp_path):
    starts = read_starts(["random", "imagenet:efficientnet_lite0"], task.load(task.options), "")
    assert list(starts) == ["random weights", "imagenet:efficientnet_lite0"]
    trainings = Trainings(task, starts, [16], HeldOut(), tmp_path)
    words = trainings.job(Training("imagenet:efficientnet_lite0", 16, 1)).commands[0]
    assert words[-2:] == ("MODEL.WEIGHTS", "imagenet:efficientnet_lite0")
    assert seconds_before(starts["imagenet:efficientnet_lite0"], [1], tmp_path, "cpu_seconds") == 0


SHORT = (
    "SOLVER.EPOCHS 0 SOLVER.MAX_ITER 2 SOLVER.IMS_PER_BATCH 4 SOLVER.WARMUP_ITERS 0 MODEL.SEM_SEG_HEAD.CONVS_DIM 8 "
    "INPUT.CROP.SIZE [65,65] MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--held-out 0.7", "--held-out 0.7"),
        ("--held-out nothing", "'nothing'"),
        ("--held-out toy_nyud_depth_val", "would choose on it"),
        ("--held-out toy_nyud_depth_train", "in toy_nyud_depth_train, too, and would choose on it"),
        ("--reference c", "--reference c"),
        ("--spent c=3", "--spent c=3"),
        ("--on slurm", "no --on slurm"),
        ("--labels 5", "subset:3:1"),  # fewer than a batch
    ],
)
def test_mistakes_are_one_line_before_any_training(words, named, pretrained, toy_root, tmp_path):
    command = f"python tools/compare_starts.py --config-file configs/toy/depth.yaml --how until-flat --labels 8 {words}"
    starts = f"--weights random {pretrained}/backbone.pth --output {tmp_path}/out"
    assert named in one_line_error(f"{command} {starts} --opts {SHORT}", toy_root)
    assert not (tmp_path / "out").exists()


def test_windows_to_choose_by_are_refused_before_any_training(pretrained, toy_root, tmp_path):
    command = "python tools/compare_starts.py --config-file configs/toy/depth.yaml --how until-flat --labels 8"
    starts = f"--weights random {pretrained}/backbone.pth --output {tmp_path}/out"
    data = "DATASETS.TRAIN \"('tiles:64:toy_nyud_depth_train',)\" DATASETS.TEST \"('tiles:64:toy_nyud_depth_val',)\""
    line = one_line_error(f"{command} {starts} --opts {SHORT} {data}", toy_root)
    assert "no score on whole images: expected --held-out NAME, windows of other images" in line
    assert not (tmp_path / "out").exists()


def test_the_documented_command_plans_all_rates_of_all_seeds(pretrained, toy_root):
    (command,) = (each for each in documented("projects/CompareStarts/README.md") if "--how until-flat" in each)
    narrow = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
    short = command.replace("output/demo", str(pretrained)).replace("--labels 50", "--labels 20")
    assert "36 jobs, 0 done" in run(f"{short} --dry-run --opts {narrow}", toy_root)


def is_free(log: Path) -> bool:
    """Whether the training that writes this log has ended."""
    with log.open() as file, contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def test_a_command_that_is_killed_twice_repeats_nothing(pretrained, toy_root, tmp_path):
    own = {"DETECTRON2_DATASETS": str(toy_root), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment = os.environ | own
    command = (
        "python tools/compare_starts.py --config-file configs/toy/depth.yaml --how until-flat --labels 8 --seeds 1 "
        f"--weights random {pretrained}/backbone.pth --rule longest=1 --processes 1 "
        f"--output {tmp_path}/out --opts {SHORT}"
    )
    times: dict[Path, int] = {}
    words = [sys.executable, *shlex.split(command)[1:]]
    for number, end in enumerate((signal.SIGKILL, signal.SIGTERM), start=1):
        with (tmp_path / "shown.txt").open("a") as shown:
            process = popen(words, cwd=ROOT, env=environment, stdout=shown, stderr=shown)
            wait_until(lambda number=number: len([*tmp_path.rglob("evaluation.json")]) >= number)
            os.kill(process.pid, end)
            process.wait()
        wait_until(lambda: all(map(is_free, tmp_path.rglob("job.log"))))
        times |= {file: file.stat().st_mtime_ns for file in tmp_path.rglob("evaluation.json")}
    text = run(command, toy_root)
    assert all(file.stat().st_mtime_ns == time for file, time in times.items())
    assert re.search(r"\| backbone \| \d+ \| \S+ \| \d\.\d{3} \(\d+ s\) \| \d\.\d{3}", text)
    assert len([*tmp_path.rglob("evaluation.json")]) == 6 and (tmp_path / "out/comparison/curves.png").is_file()
