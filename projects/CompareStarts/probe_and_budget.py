"""Two short ways to a start: a probe of all, and a budget of minutes. They write into OUTPUT/probe/ and choice/."""

from collections.abc import Callable, Sequence
from pathlib import Path

from projects.CompareStarts.budget import Budget, Round
from projects.CompareStarts.comparison import preparation
from projects.CompareStarts.label_curves import LabelCurve
from projects.CompareStarts.probe import Probe, check_regions, equal_to_best, probe_starts
from projects.CompareStarts.starts import Starts
from projects.CompareStarts.task import Task
from projects.CompareStarts.write_comparison import plot_scores, write_texts
from projects.Paper.cells import read_score
from projects.Rows.leave_image_out import Interval
from projects.Rows.own_features import BACKBONE
from revisit.errors import UserError, expect
from revisit.files import make_folder, strict_json
from revisit.jobs.command_options import show_jobs
from revisit.jobs.commands import Job, run_jobs, with_needs
from revisit.markdown import markdown_table

WHOLE = (
    "more than a backbone, so the probe looks at what its own neck (pyramid) or box head makes of a box; features of a "
    "backbone alone, and scores without labels, say nothing of these parts"
)
CANNOT_KNOW = (
    "A probe sees frozen features: not how far training moves them, nor what an RPN has learned. It orders starts "
    "roughly: --time and --how until-flat decide. In brackets: 95 % of the bootstrap over images; of the mean with "
    "room for few images and many starts, so that those of equal starts overlap in 95 of 100 probes."
)


def check_options(task: Task, labels: Sequence[int], *, slurm: bool) -> None:
    """Raises UserError for what neither a probe nor a budget can do, before anything is made."""
    expect(
        not task.frozen,
        "--how probe and --time judge features of regions: classes of whole images are compared by --how frozen alone",
    )
    expect(
        len(labels) == 1,
        f"--how probe and --time compare by one number of labels, not {len(labels)}: expected --labels all, or one",
    )
    expect(not slurm, "--how probe and --time decide by what has run here: expected no --on slurm")
    check_regions(task, labels[0])


def probe(
    task: Task, starts: Starts, labels: int, seed: int, root: Path, *, parallel: int, gpus: int = 1
) -> list[Probe]:
    """Probe all starts, continue before what has to be, print and write the table."""
    make_folder(root, "--output")
    if before := preparation(starts, [seed], root, gpus):
        run_claimed(before, parallel)
    probes = probe_starts(task, starts, labels, seed, root)
    unit, digits = ("rmse, m", 3) if "depth" in probes[0].scores else ("balanced accuracy, %", 1)
    alike = equal_to_best(probes)
    best = probes[0].start if len(alike) == 1 else None
    sentence = f"Best: {best}." if best else f"No difference between {', '.join(alike)}: their intervals overlap."
    whole = ", ".join(each.start for each in probes if each.features != BACKBONE)
    of_whole = f"{whole}: {WHOLE}.\n\n" if whole else ""
    text = f"{_probe_table(probes, digits)}\n\n{sentence}\n\n{of_whole}Probe, {unit}. {CANNOT_KNOW}"
    data = task.train_set(labels, seed)
    protocol = f"probe of the labelled regions of {data} for {task.config}, seed {seed}, {unit}"
    scores = {each.start: _scores_by_name(each) for each in probes}
    _write(root / "probe", text, {"protocol": protocol, "sentence": sentence, "best": best, "scores": scores})
    print(f"\n{text}\n\nwritten to {root / 'probe'}", flush=True)
    return probes


def _probe_table(probes: Sequence[Probe], digits: int) -> str:
    """Every start's scores with their intervals, to so many ``digits`` after the point."""
    rows = []
    for each in probes:
        intervals = [_interval_text(interval, digits) for interval in (each.score, *each.scores.values())]
        rows.append([each.start, each.features, *intervals, f"{each.seconds:.0f}"])
    return markdown_table(["start", "features of", "mean", *probes[0].scores, "seconds"], rows)


def _interval_text(interval: Interval, digits: int) -> str:
    """``61.2 (58.0 to 64.1)``."""
    value, low, high = (f"{number:.{digits}f}" for number in interval)
    return f"{value} ({low} to {high})"


def _scores_by_name(probe: Probe) -> dict[str, dict[str, float]]:
    return {name: score._asdict() for name, score in {"mean": probe.score, **probe.scores}.items()}


def choose(
    task: Task,
    starts: Starts,
    labels: int,
    seeds: Sequence[int],
    root: Path,
    *,
    minutes: float,
    parallel: int,
    gpus: int = 1,
) -> None:
    """Time a training, probe, then halve the starts within the minutes; print and write every decision as it is made.

    Raises:
        UserError: too few minutes.
    """

    def run(jobs: list[Job]) -> None:
        run_claimed(jobs, parallel, lambda job: result_of(job, task))

    def report(ended: Round) -> None:
        write("So far.")
        print(f"round of {ended.iterations:,} iterations: {budget.scores(ended)}; {ended.decision}", flush=True)

    def write(sentence: str) -> str:
        spent = sum(each.seconds for each in budget.rounds) / 60
        text = f"{budget.table()}\n\n{sentence} {spent:.0f} of {minutes:g} minutes are used."
        protocol = f"{task.score_name} by {task.config} on {labels} labelled images of {task.data}, {minutes:g} min"
        _write(root / "choice", text, {"protocol": protocol, "sentence": sentence})
        curves = curves_of(budget.rounds[1:])
        plot_scores(curves, task.score_name, "iterations of finetuning", root / "choice/rounds.png")
        return text

    budget = Budget(
        task, starts, labels, minutes=minutes, root=root, run=run, parallel=parallel, gpus=gpus, report=report
    )
    make_folder(root, "--output")
    sentence = "Interrupted: the same command continues."
    try:
        budget.measure(seeds[0])
        probes = probe(task, starts, labels, seeds[0], root, parallel=parallel, gpus=gpus)
        sentence = budget.choose(seeds, [each.start for each in probes])
    except UserError as error:
        sentence = f"{error}."
        raise
    finally:
        if not budget.is_of_others:
            print(f"\n{write(sentence)}\n\nwritten to {root / 'choice'}", flush=True)


def show_plan(
    task: Task,
    starts: Starts,
    labels: int,
    seeds: Sequence[int],
    root: Path,
    *,
    minutes: float | None,
    gpus: int,
) -> None:
    """Print what a probe, or with ``minutes`` a budget, would do first; nothing runs and nothing is written."""
    jobs = preparation(starts, seeds[:1], root, gpus)
    print(f"a probe of {len(starts)} starts, which trains nothing")
    if minutes:
        budget = Budget(task, starts, labels, minutes=minutes, root=root, run=_refuse, parallel=1, gpus=gpus)
        jobs.insert(0, budget.pilot(seeds[0]))
        print(f"{budget.plan(seeds[0])}; how long they are follows from what the first job takes")
        if budget.rounds:
            print(f"\n{budget.table()}\n")
    show_jobs(with_needs(jobs), {})


def _refuse(jobs: list[Job]) -> None:
    raise AssertionError("a dry run runs nothing")


def result_of(job: Job, task: Task, data: str = "") -> str:
    """The score of a training of the task, once it is done, on one of several test sets ``NAME/``; "" of another job,
    such as a pretraining."""
    score = task.score_name
    return f"{score} {read_score(job.result, data + score):.4g}" if job.result.suffix == ".json" else ""


def run_claimed(jobs: list[Job], parallel: int, result_of: Callable[[Job], str] = lambda job: "") -> None:
    """Run those that are not done, and those that they need."""
    jobs = with_needs(jobs)  # a later seed's start may have to be pretrained
    for job in jobs:
        job.claim()
    run_jobs(jobs, parallel, result_of)


def curves_of(rounds: Sequence[Round]) -> list[LabelCurve]:
    """Every start's scores, one for each seed, by the iterations of its trainings."""
    curves: dict[str, LabelCurve] = {}
    for trained in rounds:
        for name, score in trained.scores.items():
            curves.setdefault(name, LabelCurve(name, {})).scores.setdefault(trained.iterations, []).append(score)
    return list(curves.values())


def _write(folder: Path, table: str, results: dict) -> None:
    folder.mkdir(exist_ok=True)
    write_texts(folder, {"table.md": table, "results.json": strict_json(results)})
