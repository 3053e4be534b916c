"""What a start has cost before any finetuning: the runs that made its weights, as far as their folders say it."""

import math
import statistics
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from projects.CompareStarts.starts import PublishedWeights, Start
from revisit.checkpoint.metrics_file import last_metric
from revisit.checkpoint.named_weights import cache_folder, is_named
from revisit.errors import expect, translated
from revisit.files import read_yaml


def read_spent(words: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Seconds by start, of ``NAME=SECONDS``. Raises UserError for an unknown start, or no number."""
    spent = {}
    for word in words:
        name, _, seconds = word.rpartition("=")
        expect(name in names, f"--spent {word}: expected NAME=SECONDS with NAME one of {', '.join(names)}")
        spent[name] = math.nan
        with suppress(ValueError):
            spent[name] = float(seconds)
        expect(0 <= spent[name] < math.inf, f"--spent {word}: expected a number of seconds, 0 or more")
    return spent


def seconds_before(start: Start, seeds: Sequence[int], root: Path, metric: str) -> float:
    """The mean over seeds; NaN where nothing says it. ``metric`` names the seconds in metrics.json.

    Of what others have published it is 0, as nobody here has paid it.
    """
    if isinstance(start.source, PublishedWeights):
        return 0.0
    return statistics.fmean(_of_file(start.weights(seed, root), metric) for seed in seeds)


def _of_file(file: Path | None, metric: str, after: frozenset[Path] = frozenset()) -> float:
    """Of the run in whose folder the weights lie, and of those that it began with; NaN where it is one of those
    ``after`` it, which have overwritten what it began with."""
    if file is None or file.is_relative_to(cache_folder()):  # of others, by a name
        return 0.0
    folder = file.parent.resolve()
    if folder in after:
        return math.nan
    return last_metric(folder, metric) + _of_start(folder / "config.yaml", metric, after | {folder})


def _of_start(config: Path, metric: str, after: frozenset[Path]) -> float:
    """Of the weights that a run says it began with; NaN where they are gone."""
    if not config.is_file():
        return 0.0
    with translated(f"reading MODEL.WEIGHTS in {config}", content=True):
        weights = read_yaml(config)["MODEL"]["WEIGHTS"]
    if not weights or is_named(weights):
        return 0.0
    file = Path(weights)
    return _of_file(file, metric, after) if file.is_file() else math.nan
