"""Two short ways to a start: a probe of all, and a budget of minutes. They write into OUTPUT/probe/ and choice/."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from projects.common.tables import markdown_table
from projects.CompareStarts.budget import Budget, Round
from projects.CompareStarts.comparison import Task, preparation
from projects.CompareStarts.label_curves import LabelCurve
from projects.CompareStarts.probe import Probe, probe_starts
from projects.CompareStarts.starts import Start
from projects.CompareStarts.write_comparison import plot_scores, write_texts
from projects.PaperTables.jobs import Job, run_jobs, with_needs
from revisit.errors import expect
from revisit.files import make_folder, strict_json

CANNOT_KNOW = (
    "A probe sees frozen features below the pyramid: neither what pyramid, RPN and heads have learned, nor how far "
    "training moves the features. It orders backbones roughly and whole detectors too low: --budget decides. In "
    "brackets: 95 % of the bootstrap over images."
)


def probe(task: Task, starts: Mapping[str, Start], seed: int, root: Path, parallel: int) -> list[Probe]:
    """Probe all starts, continue before what has to be, print and write the table.

    Raises:
        UserError: see probe_starts.
    """
    expect(
        not task.frozen, "--probe judges features of regions: classes of whole images are compared by --frozen alone"
    )
    make_folder(root, "--output")
    if before := preparation(starts, [seed], root):
        _run(before, parallel)
    probes = probe_starts(task, starts, seed, root)
    names = list(probes[0].scores)
    unit = "rmse, m" if "depth" in names else "balanced accuracy, %"
    digits = 3 if "depth" in names else 1
    rows = [
        [each.start, *(f"{one.value:.{digits}f} ({one.low:.{digits}f} to {one.high:.{digits}f})"
                       for one in (each.score, *each.scores.values())), f"{each.seconds:.0f}"]
        for each in probes
    ]  # fmt: skip
    table = f"{markdown_table(['start', 'mean', *names, 'seconds'], rows)}\n\nProbe, {unit}. {CANNOT_KNOW}"
    protocol = f"probe of the labelled regions of {task.data} for {task.config}, seed {seed}, {unit}"
    scores = {
        each.start: {"mean": each.score._asdict()} | {n: s._asdict() for n, s in each.scores.items()} for each in probes
    }
    _write(root / "probe", table, {"protocol": protocol, "best": probes[0].start, "scores": scores})
    print(f"\n{table}\n\nwritten to {root / 'probe'}", flush=True)
    return probes


def choose(
    task: Task,
    starts: Mapping[str, Start],
    labels: Sequence[int],
    seeds: Sequence[int],
    root: Path,
    parallel: int,
    *,
    minutes: float,
) -> None:
    """Probe, then halve the starts within the minutes; print and write every decision and the sentence.

    Raises:
        UserError: several numbers of labels, or too few minutes.
    """
    expect(len(labels) == 1, f"--budget compares by one number of labels, not {len(labels)}: expected --labels all")
    probes = probe(task, starts, seeds[0], root, parallel)
    ordered = {each.start: starts[each.start] for each in probes}
    budget = Budget(
        task, ordered, labels[0], minutes=minutes, root=root, run=lambda jobs: _run(jobs, parallel), parallel=parallel
    )
    sentence = "Interrupted: the same command continues."
    try:
        sentence = budget.choose(seeds)
    finally:
        spent = sum(each.seconds for each in budget.rounds) / 60
        text = f"{budget.table()}\n\n{sentence} {spent:.0f} of {minutes:g} minutes are used."
        protocol = (
            f"{'/'.join(task.score)} by {task.config} on {labels[0]} labelled images of {task.data}, {minutes:g} min"
        )
        _write(root / "choice", text, {"protocol": protocol, "sentence": sentence})
        curves, score = curves_of(budget.rounds[1:]), "/".join(task.score)
        plot_scores(curves, score, "iterations of finetuning", root / "choice/rounds.png")
        print(f"\n{text}\n\nwritten to {root / 'choice'}", flush=True)


def _run(jobs: list[Job], parallel: int) -> None:
    jobs = with_needs(jobs)  # a later seed's start may have to be pretrained
    for job in jobs:
        job.claim()
    run_jobs(jobs, parallel)


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
