"""Files that commands of version 0.1 name, and where they are now. The old names work, and warn once, until 0.3."""

import logging
import runpy
import sys
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger(__name__)

EVALUATIONS = {
    "ClassActivationMaps": "projects/FrozenEvaluations/cams.py",
    "CropStudy": "projects/Paper/crops.py",
    "LabelPropagation": "projects/FrozenEvaluations/propagation.py",
    "LinearClassification": "projects/FrozenEvaluations/linear.py",
    "SegmentRetrieval": "projects/FrozenEvaluations/retrieval.py",
}
STUDIES = {"projects/Planning/scale.py": "studies/benchmarks/scale.py"}  # which only a checkout has


def now_at(name: str) -> str:
    """The present name of a file, as a checkout has it; ``name`` itself where it has not moved."""
    folders = Path(name).parts
    if name in STUDIES:
        return STUDIES[name]
    if len(folders) < 3 or folders[0] != "projects" or folders[1] not in EVALUATIONS:
        return name
    script = Path(EVALUATIONS[folders[1]])
    if folders[2] == "configs":
        return str(Path(script.parent, "configs", script.stem, *folders[3:]))
    return str(script) if folders[2:] == ("run.py",) else name


@cache
def warn_once(message: str) -> None:
    """Log a warning of something old that still works, once in this process."""
    logger.warning(message)


def warn_of_moved(old: str, new: str) -> None:
    warn_once(f"{old} is now {new}; the old name works until version 0.3")


def renamed(**names: str) -> Callable[[F], F]:
    """Let a function take old names of its arguments, by keyword, for the present ones, with a warning."""

    def rename(function: F) -> F:
        @wraps(function)
        def called(*args: Any, **given: Any) -> Any:
            for old in names.keys() & given.keys():
                warn_of_moved(f"{function.__name__}({old}=...)", f"{function.__name__}({names[old]}=...)")
                given[names[old]] = given.pop(old)
            return function(*args, **given)

        return cast(F, called)

    return rename


def run_moved(script: str) -> None:
    """Run what a script of an old name has become, in its place."""
    old = Path(script)
    new = now_at(f"projects/{old.parent.name}/{old.name}")
    warn_of_moved(f"projects/{old.parent.name}/{old.name}", new)
    sys.argv[0] = str(old.parents[2] / new)
    sys.path[0] = str(old.parents[2])  # where studies are found
    runpy.run_path(sys.argv[0], run_name="__main__")
