"""What a comparison can start from: random weights, a backbone, a whole detector, or a pretraining of its images."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from projects.CompareStarts.task import facts_of
from projects.Paper.cells import JobBuilder
from projects.Paper.paper_tables import GivenBackbone, PretrainingRun, Source, Words, fact_of_file, without_seed
from projects.Reports.collect import short_names
from projects.Weights.zoo_options import zoo_options
from revisit.checkpoint.flags import without_pixels_of_photographs
from revisit.checkpoint.named_weights import is_named, weights_file
from revisit.checkpoint.run_folder import FINAL
from revisit.checkpoint.start import start
from revisit.data.sources.catalog import get_records
from revisit.errors import expect
from revisit.plugins import find_config

from detectron2.config import CfgNode

RANDOM = "random weights"
KINDS = ("run", "zoo", "pretrain", "continue")


@dataclass(frozen=True)
class OnTheseImages(PretrainingRun):
    """A pretraining on the images that the recipe learns from, without their labels: from random weights, or from
    ``start``, a converted backbone that a recipe such as own_images/continue.yaml continues; ``data`` names them."""

    start: str = ""
    data: Words = ()

    @property
    def name(self) -> str:
        digest = hashlib.sha256(" ".join((self.config, *self.options)).encode()).hexdigest()[:8]
        return f"{'continued_' * bool(self.start)}{Path(self.start or self.config).stem}-{digest}"

    @property
    def facts(self) -> Words:
        of_start = (fact_of_file(Path(self.start)),) if self.start else ()
        of_images = (facts_of(name, get_records(name), labels=False) for name in self.data)
        return (*of_start, *itertools.chain.from_iterable(of_images))


@dataclass(frozen=True)
class PublishedWeights(GivenBackbone):
    """Weights of others that MODEL.WEIGHTS takes by a name, such as ``imagenet:efficientnet_lite0``."""

    @property
    def name(self) -> str:
        return self.path.replace(":", "-").replace("/", "-")

    def file(self, seed: int) -> Path:
        """The name, as MODEL.WEIGHTS takes it."""
        return Path(self.path)

    def digest(self, seed: int) -> str:
        return self.path


class Start(NamedTuple):
    source: Source
    options: Words = ()  # KEY VALUE pairs that its weights need in the recipe
    suffix: str = ""  # of its trainings' folders, where another start has the same source
    facts: Words = ()  # what tells its data from others

    @property
    def is_given(self) -> bool:
        """Whether nothing has to be pretrained before."""
        return isinstance(self.source, GivenBackbone)

    def weights(self, seed: int, root: Path) -> Path | None:
        """Their file; None of random ones."""
        if self.is_given:
            return self.source.file(seed)
        return JobBuilder("", root).backbone(self.source, seed).result


Starts = Mapping[str, Start]  # by what tables call them


def read_starts(words: Sequence[str], cfg: CfgNode, continuing: str) -> dict[str, Start]:
    """The starts of ``--weights`` by what tables call them: the ends of their paths, as short as tells them apart,
    or of the words where two have the same path.

    Args:
        cfg: the recipe's, whose training images ``pretrain:`` and ``continue:`` see without their labels.
        continuing: the recipe of pretraining that continues it.

    Raises:
        UserError: one is named twice, or says not how to continue it.
    """
    places = [_place(word) for word in words]
    for (one, place), (other, same) in itertools.combinations(zip(words, places, strict=True), 2):
        expect(place != same, f"--weights names one start twice, {one} and {other}: expected different ones")
    shown = [_shown(kind, file) for kind, file in places]
    if len(set(shown)) < len(shown):  # such as a run, and another of its checkpoints
        shown = [Path(word) for word in words]
    plain = [Path(without_seed(str(path))) for path in shown]
    shown = plain if len(set(plain)) == len(plain) else shown
    names = short_names(shown)
    return {
        RANDOM if kind == "random" else names[path]: _start(kind, file, cfg, continuing)
        for (kind, file), path in zip(places, shown, strict=True)
    }


def _place(word: str) -> tuple[str, Path]:
    """The kind of a start, and its file."""
    if is_named(word):
        return "named", Path(word)
    kind, colon, rest = word.partition(":")
    if not (colon and kind in KINDS):
        return ("random", Path(word)) if word == "random" else ("file", Path(word).resolve())
    path = Path(find_config(rest)) if kind == "pretrain" else weights_file(rest, f"--weights {kind}:")
    path = path.resolve()
    return (kind, path / f"{FINAL}.pth" if kind == "run" and path.suffix != ".pth" else path)


def _shown(kind: str, file: Path) -> Path:
    if kind == "run":
        return file.parent
    if kind == "named":
        return file
    done = {"pretrain": ", these images", "continue": ", continued"}
    return file.with_name(file.stem + done.get(kind, ""))


def _start(kind: str, file: Path, cfg: CfgNode, continuing: str) -> Start:
    if kind == "named":
        return Start(PublishedWeights(str(file)))
    if kind in ("pretrain", "continue"):
        data = tuple(cfg.DATASETS.TRAIN)
        images = ("DATASETS.TRAIN", str(data))
        if kind == "pretrain":
            return Start(OnTheseImages(str(file), images, data=data))
        return Start(OnTheseImages(continuing, (*_weights(file, cfg), *images), start=str(file), data=data))
    return Start(GivenBackbone(str(file)), zoo_options(file, cfg) if kind == "zoo" else ())


def _weights(file: Path, cfg: CfgNode) -> Words:
    """KEY VALUE pairs of a pretraining from a converted backbone."""
    keys = without_pixels_of_photographs(start(str(file)).keys, cfg)
    expect(keys, f"--weights continue:{file}: expected a converted backbone, with its flags next to it")
    return (*map(str, itertools.chain.from_iterable(keys.items())), "MODEL.WEIGHTS", str(file))
