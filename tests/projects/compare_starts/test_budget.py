"""Successive halving of starts: what is run, what is decided, and that an interruption repeats nothing."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from commands import ROOT
from trees import refusal, refused

from projects.CompareStarts import budget as module
from projects.CompareStarts import probe_and_budget as choice
from projects.CompareStarts.budget import PILOT, Budget, of_length
from projects.CompareStarts.probe import Interval, Probe
from projects.CompareStarts.starts import Start, read_starts
from projects.Paper.paper_tables import GivenBackbone
from projects.Reports.collect import collect
from projects.Reports.kinds import STUDY, by_kind, study_of
from revisit.jobs.commands import Job

FULL = 400  # iterations of the task
ITERATION, AROUND = 0.5, 10.0  # seconds, of the machine that the tests make up
NAMES = ("a", "b", "c", "d", "e", "f")  # the later, the better


class Machine:
    """Runs jobs by writing what they would leave behind; its clock is the module's."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        fails_at: int | None = None,
        chance: float = 0.01,
        score_of: Callable[[str], float | None] = lambda name: 10 + NAMES.index(name),
    ):
        self.now, self.ran, self.fails_at, self.chance = 0.0, [], fails_at, chance
        self.score_of = score_of
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)

    def __call__(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.claim()
            if job.done:
                continue
            words = job.commands[0]
            options = dict(zip(words, words[1:], strict=False))
            iterations, seed = int(options.get("SOLVER.MAX_ITER", FULL)), int(options["SEED"])
            self.now += iterations * ITERATION + AROUND
            if len(self.ran) == self.fails_at:
                raise KeyboardInterrupt
            name = job.name[0]
            self.ran.append((name, iterations, seed))
            score = self.score_of(name)
            score = score and score + self.chance * (-1) ** seed * (name == "e")
            (job.result.parent / "metrics.json").write_text(
                json.dumps({"iteration": iterations - 1, "time": ITERATION})
            )
            job.result.write_text(json.dumps({"bbox": {"AP": score}}))


@pytest.fixture
def make_budget(task, tmp_path) -> Callable[..., Budget]:
    def make(machine: Machine, minutes: float = 60, names: str = "".join(NAMES)) -> Budget:
        for name in names:
            (tmp_path / f"{name}.pth").write_bytes(name.encode())
        starts = {name: Start(GivenBackbone(str(tmp_path / f"{name}.pth"))) for name in names}
        return Budget(task, starts, 16, minutes=minutes, root=tmp_path / "out", run=machine, parallel=1)

    return make


def chosen(budget: Budget, seeds: Sequence[int] = (1, 2, 3), names: str = "".join(NAMES)) -> str:
    budget.measure(seeds[0])
    return budget.choose(seeds, names)


def test_all_train_for_a_quarter_the_better_half_for_longer_and_two_to_the_end(make_budget, monkeypatch):
    machine = Machine(monkeypatch)
    budget = make_budget(machine)
    sentence = chosen(budget)
    expected = [("a", PILOT, 1), *((name, 100, 1) for name in NAMES), *((name, 200, 1) for name in "fed")]
    expected += [(name, 400, seed) for seed in (1, 2, 3) for name in "fe"]
    assert [job[:2] for job in machine.ran] == [job[:2] for job in expected] and sorted(machine.ran) == sorted(expected)
    assert "Start from f" in sentence and "may be chance" not in sentence
    assert machine.now == pytest.approx(sum(each.seconds for each in budget.rounds))
    assert "without c, b, a: the worse half" in budget.table()


@pytest.mark.parametrize("fails_at", range(0, 16, 3))
def test_an_interrupted_choice_repeats_nothing_and_ends_alike(fails_at, make_budget, monkeypatch):
    machine = Machine(monkeypatch, fails_at)
    with pytest.raises(KeyboardInterrupt):
        chosen(make_budget(machine))
    assert len(machine.ran) == fails_at
    machine.fails_at = None
    budget = make_budget(machine)
    assert "Start from f" in chosen(budget)
    assert len(machine.ran) == len(set(machine.ran)) == 16
    assert machine.now == pytest.approx(sum(each.seconds for each in budget.rounds))


def test_fewer_minutes_make_shorter_trainings_within_them(make_budget, monkeypatch):
    machine = Machine(monkeypatch)
    chosen(make_budget(machine, minutes=14))
    assert machine.now <= 14 * 60
    assert max(iterations for _, iterations, _ in machine.ran) < FULL


def test_no_training_is_shorter_than_the_warm_up_and_too_few_minutes_run_the_pilot_alone(make_budget, monkeypatch):
    """The least: 20 s of the pilot, then 6 trainings of 50 iterations, 3 of 100 and 2 of 200."""
    machine = Machine(monkeypatch)
    seconds = 20 + 6 * 35 + 3 * 60 + 2 * 110
    message = f"--time 10m is too short for 6 starts: expected at least {math.ceil(seconds / 60)}m"
    assert message in refusal(make_budget(machine, 10).measure, 1)
    assert machine.ran == [("a", PILOT, 1)]
    chosen(make_budget(Machine(monkeypatch), math.ceil(seconds / 60)))


def test_more_seeds_follow_while_there_is_time_and_they_do_not_agree(make_budget, monkeypatch):
    machine = Machine(monkeypatch, chance=3.0)
    sentence = chosen(make_budget(machine, minutes=120, names="ef"), [1, 2], "ef")
    assert {seed for *_, seed in machine.ran} > {1, 2, 3}
    assert "That may be chance" in sentence and machine.now <= 120 * 60
    refused("other starts, seeds or minutes", make_budget(Machine(monkeypatch), names="cd").measure, 1)


def test_no_seed_follows_of_which_there_is_no_file(task, tmp_path, monkeypatch):
    machine = Machine(monkeypatch, chance=10)
    for name in ("e", "f1", "f2"):
        (tmp_path / f"{name}.pth").write_bytes(name.encode())
    files = {"e": "e.pth", "f": "f{seed}.pth"}
    starts = {name: Start(GivenBackbone(f"{tmp_path}/{file}")) for name, file in files.items()}
    budget = Budget(task, starts, 16, minutes=120, root=tmp_path / "out", run=machine, parallel=1)
    assert "That may be chance" in chosen(budget, [1, 2], "ef")
    assert {seed for *_, seed in machine.ran} == {1, 2}


def test_one_seed_is_called_that_with_what_a_second_one_takes(make_budget, monkeypatch):
    sentence = chosen(make_budget(Machine(monkeypatch), minutes=9, names="cd"), [1, 2], "cd")
    assert "a second one takes 7 minutes" in sentence


def test_what_another_recipe_has_decided_is_not_taken_for_this_ones(make_budget, task, tmp_path, monkeypatch):
    machine = Machine(monkeypatch)
    chosen(make_budget(machine, names="cd"), [1], "cd")
    other = replace(task, options=(*task.options, "SOLVER.BASE_LR", "0.5"))
    starts = {name: Start(GivenBackbone(str(tmp_path / f"{name}.pth"))) for name in "cd"}
    options = {"minutes": 60, "root": tmp_path / "out", "run": machine, "parallel": 1}
    refused("was made by other commands", Budget(other, starts, 16, **options).measure, 1)


@pytest.mark.parametrize("minutes", [60, 40, 20])
def test_starts_that_score_alike_stay_or_go_together_within_the_minutes(make_budget, minutes, monkeypatch):
    """a to d find nothing at any length: of the better half, c could not be told from a, b and d."""
    machine = Machine(monkeypatch, score_of=lambda name: max(0, NAMES.index(name) - 3))
    budget = make_budget(machine, minutes)
    sentence = chosen(budget, [1, 2])
    assert "a, b, c, d score alike and stay" in budget.table() and "Start from f" in sentence
    assert machine.now <= 60 * minutes


def test_equal_starts_are_no_choice_however_often_they_are_asked(make_budget, monkeypatch):
    machine = Machine(monkeypatch, score_of=lambda name: 0.0)
    for _ in range(2):  # the second one reads what the first one has written
        budget = make_budget(machine, 30, "abc")
        sentence = chosen(budget, [1, 2], "abc")
        assert sentence.startswith("No difference: a and b and c have bbox/AP 0.00")
    assert len(machine.ran) == len(set(machine.ran)) and machine.now <= 30 * 60


def test_a_start_without_a_score_is_the_worst(make_budget, monkeypatch):
    machine = Machine(monkeypatch, score_of=lambda name: None if name == "b" else 3.0)
    assert "Start from a: bbox/AP 3.00, b has none" in chosen(make_budget(machine, names="ab"), [1, 2], "ab")


def test_a_score_that_nothing_has_is_refused_after_the_pilot(make_budget, monkeypatch):
    machine = Machine(monkeypatch, score_of=lambda name: None)
    refused("no start has a bbox/AP", make_budget(machine, names="ab").measure, 1)
    assert len(machine.ran) == 1


def test_a_shorter_training_has_the_same_course_of_the_rate(task):
    solver = task.load(task.options).SOLVER
    solver.MAX_ITER, solver.STEPS, solver.WARMUP_ITERS = 600, (420, 540), 100
    words = of_length(solver, 150)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["SOLVER.STEPS"] == "(105, 135)" and options["SOLVER.WARMUP_ITERS"] == "15"


def test_a_choice_is_written_and_drawn_for_a_report_as_far_as_it_has_come(task, tmp_path, monkeypatch):
    machine = Machine(monkeypatch, fails_at=9)
    scores = [Probe(name, {}, Interval(50.0, 40.0, 60.0), 1.0) for name in NAMES]
    monkeypatch.setattr(choice, "probe", lambda *_, **options: scores)
    monkeypatch.setattr(choice, "run_claimed", lambda jobs, *_: machine(jobs))
    for name in NAMES:
        (tmp_path / f"{name}.pth").write_bytes(name.encode())
    starts = {name: Start(GivenBackbone(str(tmp_path / f"{name}.pth"))) for name in NAMES}
    root = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        choice.choose(task, starts, 16, [1], root, minutes=60, parallel=1)
    assert "Interrupted: the same command continues." in (root / "choice/table.md").read_text()
    machine.fails_at = None
    choice.choose(task, starts, 16, [1], root, minutes=60, parallel=1)
    written = {file.name: file.read_text() for file in (root / "choice").glob("*.[jm]*")}
    refused("other starts", choice.choose, task, starts, 16, [2], root, minutes=60, parallel=1)
    assert written == {name: (root / "choice" / name).read_text() for name in written} and len(written) == 3
    runs, pictures = collect([root])
    ((_, run),) = by_kind(runs)[STUDY]
    assert "Start from f" in study_of(run)["sentence"] and not pictures
    (evaluation,) = run.evaluations
    assert [path.name for path in (*evaluation.pictures, *evaluation.tables)] == ["rounds.png", "table.md"]


def test_a_dry_run_of_a_budget_and_a_probe_writes_nothing_and_names_what_would_run(task, tmp_path, capsys):
    recipe = tmp_path / "simclr.yaml"
    recipe.write_text(f"_BASE_: {ROOT}/configs/own_images/pretrain.yaml\n")
    starts = read_starts(["random", f"pretrain:{recipe}"], task.load(task.options), "")
    for minutes in (60, None):
        choice.show_plan(task, starts, 16, [1], tmp_path / "out", minutes=minutes, gpus=1)
        text = capsys.readouterr().out
        assert "seed 1: pretraining" in text and ("random weights, 16 labels, seed 1 (20 it" in text) == bool(minutes)
    assert not (tmp_path / "out").exists()


def test_what_a_probe_and_a_budget_cannot_do_is_refused_before_anything_is_made(task):
    refused("not 2: expected --labels all, or one", choice.check_options, task, [8, 16], slurm=False)
    refused("expected no --on slurm", choice.check_options, task, [16], slurm=True)
    choice.check_options(task, [16], slurm=False)  # boxes of one class
