"""Two short ways to a start: a probe of all, and a budget of minutes. They write into OUTPUT/probe/ and choice/."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from projects.common.tables import markdown_table
from projects.CompareStarts.budget import Budget, Round
from projects.CompareStarts.comparison import Task, preparation
from projects.CompareStarts.probe import Probe, probe_starts
from projects.CompareStarts.starts import Start
from projects.PaperTables.jobs import Job, run_jobs
from revisit.errors import expect
from revisit.files import make_folder, strict_json, written_whole
from revisit.viz.curves import saved_plot

CANNOT_KNOW = (
    "A probe sees frozen features below the pyramid: neither what pyramid, RPN and heads have learned, nor how far "
    "training moves the features. In brackets: 95 % of the bootstrap over images."
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
        plot_rounds(budget.rounds, "/".join(task.score), root / "choice/rounds.png")
        print(f"\n{text}\n\nwritten to {root / 'choice'}", flush=True)


def _run(jobs: list[Job], parallel: int) -> None:
    for job in jobs:
        job.claim()
    run_jobs(jobs, parallel)


def plot_rounds(rounds: Sequence[Round], score: str, path: Path) -> None:
    """Every start's score over the length of its trainings: a dot for each seed, a line through their means."""
    curves: dict[str, dict[int, list[float]]] = {}
    for each in rounds:
        for name, value in each.scores.items():
            curves.setdefault(name, {}).setdefault(each.iterations, []).append(value)
    with saved_plot(path, size=(6, 4)) as (axis,):
        for number, (name, lengths) in enumerate(curves.items()):
            color, means = f"C{number % 10}", [statistics.mean(values) for values in lengths.values()]
            axis.plot(list(lengths), means, color=color, marker="o", label=name)
            for length, values in lengths.items():
                axis.scatter([length] * len(values), values, color=color, s=6, alpha=0.6)
        axis.set(xlabel="iterations of finetuning", ylabel=score)


def _write(folder: Path, table: str, results: dict) -> None:
    folder.mkdir(exist_ok=True)
    for path, text in ((folder / "table.md", table), (folder / "results.json", strict_json(results))):
        with written_whole(path) as temporary:
            temporary.write_text(text + "\n")
