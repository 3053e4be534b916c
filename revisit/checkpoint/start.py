"""What a network can start from: which file weights are, and which network and pixels they ask a config for."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from revisit.checkpoint import RANDOM
from revisit.checkpoint.flags import (
    expect_flags,
    flag_keys,
    flags_path,
    network_flags,
    read_flags,
    without_pixels_of_photographs,
)
from revisit.checkpoint.named_weights import is_named, weights_file
from revisit.checkpoint.run_folder import peek
from revisit.files import is_url
from revisit.keys import Decision, Facts, of_detectron2
from revisit.modeling.backbone.description import Flags, family_of

from detectron2.config import CfgNode


@dataclass(frozen=True)
class Start:
    """Weights by any of their names; without a file they are random."""

    weights: str  # as they were named
    file: Path | None  # on this machine
    flags: Flags  # that they are valid under; {} where nothing says them
    licence: str  # "" if none is on record

    @property
    def builder(self) -> Flags:
        """The key that builds a plain backbone of their family; {} of no known family."""
        family = family_of(self.flags)
        return {"MODEL.BACKBONE.NAME": family.BUILDER} if family and family.BUILDER else {}

    @property
    def keys(self) -> Flags:
        """Values by key with which a recipe for any network builds theirs, and reads its images; {} of no known
        family."""
        return self.builder | network_flags(self.flags)

    def keys_in(self, cfg: CfgNode) -> Flags:
        """Those with which ``cfg``, perhaps of a detector, does so; {} where it has no place for such a backbone."""
        family = family_of(self.flags)
        keys = family.keys_to_build(self.flags, cfg) if family else {}
        flags = {key: self.flags[key] for key in flag_keys(family) if key in self.flags}
        return keys | without_pixels_of_photographs(flags, cfg) if keys else {}


def start(weights: str) -> Start:
    """Of a file, a URL, a name such as ``imagenet:efficientnet_lite0``, or ``random``, which "" stands for in a config.

    Raises:
        UserError: a name or a URL without a file, or flags, next to it or in a run's checkpoint, that are none.
    """
    if weights in ("", RANDOM):
        return Start(weights, None, {}, "")
    file = weights_file(weights)
    pair = [path for path in (file, flags_path(file)) if path.is_file()]
    return _start_of_file(weights, file, *((path.stat().st_mtime_ns, path.stat().st_size) for path in pair))


@lru_cache(maxsize=4)
def _start_of_file(weights: str, file: Path, *stamps: tuple[int, int]) -> Start:
    """``stamps`` tell files that were written since: several keys of a config ask, and a checksum takes its time."""
    flags, _, licence = read_flags(weights if is_url(weights) else file)
    if flags is None:
        flags = peek(file).get("flags", {})
        expect_flags(flags, weights)
    return Start(weights, file, flags, licence)


def _start_of_config(cfg: CfgNode, facts: Facts) -> Decision | None:
    """The file of a name, and its backbone in place of the recipe's; keys that are stated nearer than the weights
    stay."""
    weights = cfg.MODEL.WEIGHTS
    if weights == RANDOM:
        return Decision("", "drawn from SEED")
    if not is_named(weights):
        return None
    named = start(weights)
    return Decision(str(named.file), f"{weights}, with what its network needs", named.keys_in(cfg))


of_detectron2("MODEL.WEIGHTS", resolve=_start_of_config)
