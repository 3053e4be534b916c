"""What the folders of runs hold: metrics, settings, state, environment, pictures and evaluations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from projects.RunReport.run_state import State, state_of
from revisit.engine.environment import FILE as ENVIRONMENT
from revisit.errors import UserError
from revisit.viz.curves import read_metrics

Series = dict[str, list[tuple[int, float]]]  # (iteration, value) by a metric's name

# Any of them makes a folder that of a run or of a study.
MARKS = ("metrics.json", "config.yaml", "dry_run.json", "evaluation.json", "results.json")
RESULTS = ("evaluation.json", "results.json")
PICTURES = (".png", ".jpg", ".jpeg")
ANIMATIONS = "overlays/*.gif"  # of projects/LabelPropagation
NEIGHBORS = ("neighbours", "neighbors", "gallery")
MOST_GALLERIES = 6  # of a run, from its first to its last
TABLES = ("*.csv", "table.md")
RECORDED_TOO = ("Python", "PyTorch", "torchvision", "detectron2")  # in the log, and with less noise in environment.json


@dataclass(frozen=True)
class Evaluation:
    """A file of results and what lies beside it."""

    name: str  # its path below the run's folder
    content: object  # of the JSON file; None if it cannot be read
    pictures: tuple[Path, ...] = ()
    tables: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Run:
    """The folder of a run or of a study."""

    name: str
    folder: Path
    series: Series
    config: dict[str, object]  # of config.yaml, by dotted key; empty if there is none
    state: State
    environment: dict[str, str]
    evaluations: tuple[Evaluation, ...] = ()


@dataclass(frozen=True)
class Collected:
    """All that a report shows."""

    runs: list[Run]
    pictures: list[tuple[str, Path]] = field(default_factory=list)  # with the name of the folder they are of


def collect(folders: Iterable[Path]) -> Collected:
    """Read what the folders hold. One that is no run itself stands for the runs right below it.

    Raises:
        UserError: a folder is neither, or a file in it is not what its name says.
    """
    paths: list[Path] = []
    above: list[Path] = []
    for folder in folders:
        runs = _runs_of(folder)
        above += [folder.resolve()] if folder not in runs else []
        paths += [run.resolve() for run in runs]
    paths, above = list(dict.fromkeys(paths)), list(dict.fromkeys(above))
    names = dict(zip([*paths, *above], short_names([*paths, *above]), strict=True))
    runs = [_read_run(path, names[path], paths) for path in paths]
    pictures = [(names[folder], picture) for folder in [*above, *paths] for picture in _own_pictures(folder)]
    return Collected(runs, pictures)


def short_names(folders: list[Path]) -> list[str]:
    """The ends of the paths, as short as tells them apart."""
    longest = max(len(folder.parts) for folder in folders)
    for length in range(1, longest + 1):
        names = ["/".join(folder.parts[-length:]) for folder in folders]
        if len(set(names)) == len(set(folders)):
            break
    return names


def flat(tree: dict, prefix: str = "") -> dict[str, object]:
    """A nested dict by dotted keys."""
    values: dict[str, object] = {}
    for key, value in tree.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return values


def _runs_of(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} {'is a file' if folder.exists() else 'not found'}: expected the folder of a run")
    if any((folder / mark).is_file() for mark in MARKS):
        return [folder]
    below = sorted(path for path in folder.iterdir() if path.is_dir())
    runs = [path for path in below if any((path / mark).is_file() for mark in MARKS)]
    if not runs:
        names = sorted(path.name for path in folder.iterdir())
        held = f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else "nothing"
        raise UserError(
            f"{folder} is not the folder of a run: it holds {held}; expected one of {', '.join(MARKS)} in it, or in a "
            "folder right below it"
        )
    return runs


def _read_run(folder: Path, name: str, all_runs: list[Path]) -> Run:
    metrics = folder / "metrics.json"
    try:
        series = read_metrics(metrics) if metrics.is_file() else {}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{metrics} is not the metrics of a run: expected lines of JSON with an iteration") from error
    config = _read_config(folder / "config.yaml")
    max_iter = config.get("SOLVER.MAX_ITER", 0)
    return Run(
        name=name,
        folder=folder,
        series=series,
        config=config,
        state=state_of(folder, series, max_iter if isinstance(max_iter, int) else 0),
        environment=_read_environment(folder),
        evaluations=tuple(_read_evaluations(folder, all_runs)),
    )


def _read_config(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path} cannot be read as YAML: expected what a run writes there") from error
    if content is not None and not isinstance(content, dict):
        raise UserError(f"{path} holds no configuration: expected what a run writes there")
    return flat(content or {})


def _read_environment(folder: Path) -> dict[str, str]:
    """environment.json, what differed between the run's starts joined by arrows, then the dump in log.txt."""
    starts: dict[str, list[str]] = {}
    path = folder / ENVIRONMENT
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        try:
            facts = dict(json.loads(line))
        except (ValueError, TypeError):  # a start that was killed while writing it
            continue
        dirty = facts.pop("dirty", False)
        if facts.get("commit"):
            facts["commit"] = f"{facts['commit'][:12]}{', changed files' if dirty else ''}"
        for key, value in facts.items():
            values, text = starts.setdefault(key, []), "unknown" if value is None else str(value)
            if values[-1:] != [text]:
                values.append(text)
    recorded = {key: " → ".join(values) for key, values in starts.items()}
    logged = _environment_in_log(folder / "log.txt")
    return recorded | {key: value for key, value in logged.items() if not (recorded and key in RECORDED_TOO)}


def _environment_in_log(path: Path) -> dict[str, str]:
    """Detectron2's table of the last start: two columns between two rules."""
    facts: dict[str, str] = {}
    rules, width = 2, 0
    if not path.is_file():
        return {}
    with open(path, errors="replace") as file:
        for line in file:
            if line.rstrip().endswith("Environment info:"):
                rules, facts = 0, {}
            elif rules < 2 and line.startswith("-----"):
                rules, width = rules + 1, line.index(" ") if " " in line else len(line)
            elif rules == 1:
                facts[line[:width].strip()] = line[width:].strip()
    return facts


def _read_evaluations(folder: Path, all_runs: list[Path]) -> list[Evaluation]:
    """All below the folder, but not those of another run of the report that lies there."""
    others = [run for run in all_runs if run != folder and run.is_relative_to(folder)]
    files = sorted(path for name in RESULTS for path in folder.rglob(name))
    return [
        Evaluation(
            name=str(file.relative_to(folder)),
            content=_read_json(file),
            pictures=tuple(_pictures_beside(file, folder)),
            tables=tuple(sorted(path for pattern in TABLES for path in file.parent.glob(pattern))),
        )
        for file in files
        if not any(file.is_relative_to(other) for other in others)
    ]


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _pictures_beside(results: Path, run: Path) -> list[Path]:
    """A study's pictures; those of a run that was evaluated in place are the run's."""
    if results.parent == run and results.name != "results.json":
        return []
    return [*_pictures_in(results.parent), *sorted(results.parent.glob(ANIMATIONS))]


def _own_pictures(folder: Path) -> list[Path]:
    if (folder / "results.json").is_file():
        return []
    pictures = _pictures_in(folder) + (_pictures_in(folder / "non_finite") if (folder / "non_finite").is_dir() else [])
    galleries = [path for path in pictures if path.stem.startswith(NEIGHBORS)]
    shown = {galleries[n] for n in np.linspace(0, len(galleries) - 1, MOST_GALLERIES, dtype=int)} if galleries else ()
    return [path for path in pictures if path not in galleries or path in shown]


def _pictures_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)
