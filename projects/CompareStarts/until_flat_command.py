"""The command --how until-flat: what is refused before anything runs, what runs, and what is written."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from projects.CompareStarts.comparison import check_labels
from projects.CompareStarts.flatness import Rule
from projects.CompareStarts.labelled_parts import HeldOut, read_held_out
from projects.CompareStarts.probe_and_budget import result_of, run_claimed
from projects.CompareStarts.start_costs import read_spent, seconds_before
from projects.CompareStarts.starts import Starts
from projects.CompareStarts.task import Task, facts_of
from projects.CompareStarts.trainings import Trainings
from projects.CompareStarts.until_flat import UntilFlat
from projects.CompareStarts.write_comparison import tables_in
from projects.CompareStarts.write_until_flat import FlatReport
from projects.Reports.main_score import scores_of
from projects.Tiles.tiled_names import tiling_in
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import shared_pairs, such_as
from revisit.engine.data_checks import inspect_evaluation
from revisit.errors import expect
from revisit.jobs.command_options import show_jobs
from revisit.jobs.commands import Job, with_needs

OF_PERCENT, OF_OTHERS = 1.0, 0.01  # tolerances, in the unit of a score


def compare_until_flat(
    task: Task,
    starts: Starts,
    labels: Sequence[int],
    root: Path,
    args: argparse.Namespace,
    *,
    parallel: int,
) -> None:
    """Run ``--how until-flat``, or with ``--dry-run`` show what comes next. Raises UserError for what it cannot do."""
    held_out = read_held_out(args.held_out)
    reference = _reference(args.reference, starts)
    given = read_spent(args.spent, list(starts))
    _check(task, labels, args.seeds, held_out, slurm=args.on == "slurm")
    if held_out.name:
        held_out = held_out._replace(facts=tuple(facts_of(held_out.name, get_records(held_out.name))))
    trainings = Trainings(task, starts, labels, held_out, root, gpus=args.num_gpus)
    rule = Rule(**{"tolerance": _tolerance(task)} | dict(args.rule))

    def run(jobs: list[Job]) -> None:
        run_claimed(jobs, parallel, lambda job: result_of(job, task, f"{trainings.test}/"))

    def report() -> None:
        before = {name: given.get(name, seconds_before(start, args.seeds, root, trainings.metric))
                  for name, start in starts.items()}  # fmt: skip
        unknown = [name for name, seconds in before.items() if math.isnan(seconds)]
        before.update(dict.fromkeys(unknown, 0.0))
        text = FlatReport(comparison, before, unknown, reference).write(folder)
        print(f"\n{text}\n\nwritten to {folder}", flush=True)

    comparison = UntilFlat(trainings, labels, args.seeds, rule, run=run, report=report, parallel=parallel)
    if args.dry_run:
        show_jobs(with_needs(map(trainings.job, comparison.next_round())), {})
        return
    folder = tables_in(root, args.how)
    comparison.claim()
    report()
    try:
        comparison.train()
    except BaseException:
        report()
        raise


def _check(task: Task, labels: Sequence[int], seeds: Sequence[int], held_out: HeldOut, *, slurm: bool) -> None:
    """Raises UserError for what cannot be compared, before anything is made."""
    expect(not task.frozen, "--how until-flat finetunes: expected a recipe of tools/train_net.py, and no --how frozen")
    expect(not slurm, "--how until-flat decides by what has run here: expected no --on slurm")
    expect(
        labels[0] > 1 or held_out.name,
        "--how until-flat holds out labelled images: expected 2 or more, or --held-out NAME",
    )
    if held_out.name:
        _check_others(held_out.name, (task.data, *task.load(task.options).DATASETS.TEST))
    expect(
        held_out.name or not tiling_in(task.data),
        f"--how until-flat holds out some windows of {task.data}, which have no score on whole images: expected "
        "--held-out NAME, windows of other images",
    )
    check_labels(task, sorted({count - held_out.count(count) for count in labels}), seeds)
    for count in labels:
        name = held_out.data_set(task.data, count, seeds[0])
        inspect_evaluation(task.load((*task.options, "DATASETS.TEST", str((name,)))))


def _check_others(held_out: str, names: Sequence[str]) -> None:
    """Raises UserError where images that choose are learned from, or tested on."""
    chosen_by = get_records(held_out)
    for name in names:
        shared = shared_pairs(get_records(name), chosen_by)
        expect(
            not shared,
            f"--held-out {held_out}: {len(shared)} of its images are in {name}, too, and would choose on it: "
            f"expected other images{such_as(shared)}",
        )


def _reference(name: str, starts: Starts) -> str:
    """The start that is asked for, else the first of ImageNet's, else the first one."""
    expect(not name or name in starts, f"--reference {name}: expected one of {', '.join(starts)}")
    of_imagenet = [title for title in starts if title.startswith("imagenet:")]
    return name or next(iter([*of_imagenet, *starts]))


def _tolerance(task: Task) -> float:
    score = task.score_name.partition("-")[0]
    unit = next((each.unit for each in scores_of(task.load(task.options)) if each.name == score), "%")
    return OF_PERCENT if unit == "%" else OF_OTHERS
