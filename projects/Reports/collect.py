"""What the folders of runs hold: metrics, settings, state, environment, pictures and evaluations."""

import json
import logging
import re
from collections.abc import Iterable, Iterator
from itertools import chain, count, groupby
from pathlib import Path
from typing import NamedTuple

from revisit.checkpoint.metrics_file import read_metrics
from revisit.checkpoint.run_folder import FINAL, checkpoints_of_run, iteration_of
from revisit.data.sources.records import sample
from revisit.engine.environment import FILE as ENVIRONMENT
from revisit.errors import UserError, expect, printable, translated
from revisit.files import read_json, read_yaml
from revisit.keys import dotted_keys
from revisit.progress import progress

logger = logging.getLogger(__name__)

Point = tuple[int, float]  # iteration and value
Series = dict[str, list[Point]]  # by a metric's name

# Any of them makes a folder that of a run or of a study.
MARKS = ("metrics.json", "config.yaml", "dry_run.json", "evaluation.json", "results.json")
RESULTS = ("evaluation.json", "results.json")
PICTURES = (".png", ".jpg", ".jpeg")
ANIMATIONS = "overlays/*.gif"  # of projects/FrozenEvaluations
NEIGHBORS = ("neighbours", "neighbors", "gallery")
NON_FINITE = "non_finite"
MOST_GALLERIES = 6  # of a run, from its first to its last
DAMAGED = 10**12  # iterations: a checkpoint that cannot be read claims to be of a later one


class ReportedEvaluation(NamedTuple):
    """A file of results and what lies next to it."""

    name: str  # its path below the run's folder
    content: object  # of the JSON file; None if it cannot be read
    pictures: list[Path]
    tables: list[Path]


class RunState(NamedTuple):
    """What became of a run."""

    kind: str  # finished | unfinished | stopped | untrained
    text: str  # the same in words, with the iterations
    notes: list[str]

    @property
    def so_far(self) -> bool:
        """Whether its numbers are those of a part of the run."""
        return self.kind in ("unfinished", "stopped")


class ReportedRun(NamedTuple):
    """The folder of a run or of a study."""

    name: str
    folder: Path
    series: Series
    config: dict[str, object]  # of config.yaml, by dotted key; empty if there is none
    state: RunState
    environment: dict[str, str]
    evaluations: list[ReportedEvaluation]


NumberedRuns = list[tuple[int, ReportedRun]]  # the number is that of a run's line in the charts


def collect(folders: Iterable[Path]) -> tuple[list[ReportedRun], list[tuple[str, Path]]]:
    """The runs of the folders, and the folders' own pictures, each with the name of its folder.

    A folder that is no run itself stands for the runs right below it; one that is neither raises UserError.
    """
    runs_of = {folder.resolve(): [run.resolve() for run in _runs_of(folder)] for folder in folders}
    paths = list(dict.fromkeys(chain.from_iterable(runs_of.values())))
    above = [folder for folder, runs in runs_of.items() if folder not in runs]
    names = short_names([*paths, *above])
    runs = [_read_run(path, names[path], paths) for path in progress("reading", "run", paths)]
    pictures = []
    for folder in (*above, *paths):
        pictures += [(names[folder], path) for path in _own_pictures(folder)]
    return runs, pictures


def short_names(folders: list[Path]) -> dict[Path, str]:
    """The ends of the paths, as short as tells them apart."""
    for length in count(1):
        names = {folder: "/".join(folder.parts[-length:]) for folder in folders}
        if len(set(names.values())) == len(names):
            return names


def files_below(folder: Path, *patterns: str, of: Path) -> list[Path]:
    """The regular files of a run's folder ``of``, or of one below it, that match; sorted. What a link leads to out of
    it is left out, and said: a page that is passed on has nothing that its author did not name."""
    paths = []
    matching = sorted(chain.from_iterable(folder.glob(pattern) for pattern in patterns))
    for path in filter(Path.is_file, matching):
        if path.resolve().is_relative_to(of.resolve()):
            paths.append(path)
        else:
            link, out_of = printable(str(path)), printable(str(of))
            logger.warning(f"left out: {link} is a link out of {out_of}")
    return paths


def _runs_of(folder: Path) -> list[Path]:
    """The folder itself, or the runs right below it."""
    below = [f"*/{mark}" for mark in MARKS]
    results = files_below(folder, *MARKS, of=folder) or files_below(folder, *below, of=folder)
    expect(
        results,
        f"{folder} is not the folder of a run: expected one of {', '.join(MARKS)} in it, or in a folder right below it",
    )
    return list(dict.fromkeys(path.parent for path in results))


def _read_run(folder: Path, name: str, all_runs: list[Path]) -> ReportedRun:
    series, config = {}, {}
    with translated(f"reading metrics.json and config.yaml of {folder}"):
        for metrics in files_below(folder, "metrics.json", of=folder):
            series = read_metrics(metrics)
        for settings in files_below(folder, "config.yaml", of=folder):
            config = dotted_keys(read_yaml(settings) or {})
    stated = config.get("SOLVER.MAX_ITER", 0)
    max_iter = stated if isinstance(stated, int) else 0
    state = _state_of(folder, series, max_iter)
    evaluations = list(_read_evaluations(folder, all_runs))
    return ReportedRun(name, folder, series, config, state, _read_environment(folder), evaluations)


def _state_of(folder: Path, series: Series, max_iter: int) -> RunState:
    """How far a run has come, so that a number of half a run is never taken for a result; ``max_iter`` 0: not known."""
    iterations = {path.stem: iteration_of(path) for path in checkpoints_of_run(folder)}
    checkpoints = {name: iteration for name, iteration in iterations.items() if iteration < DAMAGED}
    last = max(_last_of(series), *checkpoints.values(), -1)
    end = checkpoints.get(FINAL, -1)
    non_finite = _last_non_finite(folder)
    notes = [f"an earlier run of this folder is in {path.name}" for path in sorted(folder.glob("earlier_run_*"))]
    of_all = f"{last + 1} of {max_iter} iterations" if max_iter else f"{last + 1} iterations, of how many is not known"
    if end >= max(last, 0):  # metrics of later iterations: a finished run that was resumed with more of them
        if non_finite >= 0:
            notes.append(f"it met a loss that was not finite at iteration {non_finite} and resumed from a checkpoint")
        return RunState("finished", f"finished, {end + 1} iterations", notes)
    if non_finite >= max(last, 0):
        return RunState("stopped", f"stopped by a loss that was not finite at iteration {non_finite}; {of_all}", notes)
    if last >= 0:
        lacking = f"{FINAL}.pth is damaged or of no run" if (folder / f"{FINAL}.pth").is_file() else f"no {FINAL}.pth"
        resumed = f"resumed after it had finished {end + 1}" if end >= 0 else lacking
        return RunState("unfinished", f"unfinished: {of_all}, {resumed}", notes)
    kind, text = _without_iterations(folder)
    return RunState(kind, text, notes)


def _last_of(series: Series) -> int:
    """The last iteration with metrics of training; -1 where there is none."""
    points = series.get("total_loss") or series.get("lr")
    return points[-1][0] if points else -1


def _last_non_finite(folder: Path) -> int:
    """The last iteration whose loss was not finite, by the folders that it left; -1 where there is none."""
    last = -1
    for path in folder.glob(f"{NON_FINITE}/*"):
        if name := re.match(r"iteration_(\d+)_process_\d+", path.name):
            last = max(last, int(name[1]))
    return last


def _without_iterations(folder: Path) -> tuple[str, str]:
    """Kind and words of the state of a run that has written no iteration."""
    files = {path.name for path in folder.iterdir()}
    if not files.isdisjoint(RESULTS):
        return "untrained", "evaluation only"
    if not files.isdisjoint(("log.txt", "metrics.json")):
        return "unfinished", "started, no iteration written yet"
    return "untrained", "dry run only" if "dry_run.json" in files else "no training"


def _read_environment(folder: Path) -> dict[str, str]:
    """environment.json, what differed between the run's starts joined by arrows, as ``2.10 → 2.11``."""
    starts: dict[str, list[str]] = {}  # by fact, what it was at each start
    files = files_below(folder, ENVIRONMENT, of=folder)
    lines = "".join(file.read_text(errors="replace") for file in files)
    for line in lines.splitlines():
        try:
            facts = dict(json.loads(line))
        except (ValueError, TypeError):  # a start that was killed while writing it
            continue
        changed = ", changed files" if facts.pop("dirty", False) else ""
        if facts.get("commit"):
            facts["commit"] = f"{str(facts['commit'])[:12]}{changed}"
        for key, value in facts.items():
            text = "unknown" if value is None else str(value)
            starts.setdefault(key, []).append(text)
    return {key: " → ".join(value for value, _ in groupby(values)) for key, values in starts.items()}


def _read_evaluations(folder: Path, all_runs: list[Path]) -> Iterator[ReportedEvaluation]:
    """All below the folder, but not those of another run of the report that lies there."""
    others = [run for run in all_runs if run != folder and run.is_relative_to(folder)]
    at_any_depth = [f"**/{name}" for name in RESULTS]
    for file in files_below(folder, *at_any_depth, of=folder):
        if any(map(file.is_relative_to, others)):
            continue
        try:
            content = read_json(file)
        except UserError:
            content = None
        # The pictures next to a run's own evaluation are the run's.
        own = file.parent == folder and file.name != "results.json"
        animations = files_below(file.parent, ANIMATIONS, of=folder)
        pictures = [] if own else [*_pictures_in(file.parent, folder), *animations]
        tables = files_below(file.parent, "*.csv", "table.md", of=folder)
        name = str(file.relative_to(folder))
        yield ReportedEvaluation(name, content, pictures, tables)


def _own_pictures(folder: Path) -> list[Path]:
    """A run's pictures, of many galleries some; those of a study belong to its evaluation."""
    if (folder / "results.json").is_file():
        return []
    pictures = _pictures_in(folder, folder)
    pictures += _pictures_in(folder / NON_FINITE, folder)
    galleries = [path for path in pictures if path.stem.startswith(NEIGHBORS)]
    shown = sample(galleries, MOST_GALLERIES)
    left_out = set(galleries) - set(shown)
    return [path for path in pictures if path not in left_out]


def _pictures_in(folder: Path, of: Path) -> list[Path]:
    files = files_below(folder, "*.*", of=of)
    return [path for path in files if path.suffix.lower() in PICTURES]
