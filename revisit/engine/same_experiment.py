"""Which other values a checkpoint puts up with: where a run resumes from it, and where its network is only used.

A resumed run may change a key that is declared so, or that its network never reads; any other may make another
experiment of it. Who uses a trained network may change what does not make the network, its boxes or its input.
"""

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from revisit.checkpoint.run_folder import Trained
from revisit.config import REMOVED
from revisit.data.sources.records import PARTS, changes
from revisit.errors import UserError, without_secrets
from revisit.keys import KEYS, NETWORK, declaration, dotted_keys, is_read, short_repr, with_values

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)

Value = None | bool | int | float | str | list
DATA = "DATASETS.TRAIN"  # compared by its images
START = "MODEL.WEIGHTS"  # which the first part of a run began with
DECIDED_BY_OTHERS = ("INPUT.", "SOLVER.AMP.")  # by INPUT.TILES, and what the processor can
SYNCHRONISED = {"BN", "SyncBN", "naiveSyncBN"}  # one thing on one process, on several GPUs, on a CPU (setup.py)


class Difference(NamedTuple):
    key: str
    before: object  # in the checkpoint
    now: object

    def __str__(self) -> str:
        return f"{self.key} ({self.before} -> {self.now})"


def plain_config(cfg: CfgNode) -> dict[str, Value]:
    """A config as a checkpoint holds it: plain values by dotted key, tuples as lists; URLs without secrets."""
    return plain_values(dotted_keys(cfg))


def plain_values(values: Mapping[str, object]) -> dict[str, Value]:
    """The same of values by dotted key."""
    return {key: _plain(value) for key, value in values.items()}


def config_text(cfg: CfgNode) -> str:
    """What config.yaml of a run holds: all keys, URLs without secrets. The running config keeps them, to fetch by."""
    return with_values(cfg, plain_config(cfg)).dump()


def may_change(cfg: CfgNode, key: str) -> bool:
    """Whether a resumed run of ``cfg`` may have another value of a dotted key than its checkpoint."""
    return declaration(key).may_change or not is_read(cfg, key)


def check_same_experiment(
    cfg: CfgNode,
    images: list[dict],
    saved: dict,
    *,
    accepted: Collection[str] = (),
    other_processes: bool = False,
    fits: bool = True,
) -> None:
    """Compare a config and its training ``images`` (``fingerprint``) with those ``saved`` in a checkpoint, which may be
    of another number of processes; log what is applied. What no --accept resumes is not advised: where the checkpoint's
    tensors do not fit the network.

    Raises:
        UserError: keys that differ and are not ``accepted``, all of them.
    """
    _warn_of_removed_keys(saved["config"])
    differences = _compare(cfg, images, saved, other_processes)
    refused = [d for d in differences if d.key == DATA or not may_change(cfg, d.key)]
    _check_accepted(refused, accepted, fits=fits)
    if refused:
        logger.warning(f"resuming as another experiment, by --accept: {_listed(refused)}")
    others = [d for d in differences if d not in refused]
    applied = [d for d in others if is_read(cfg, d.key) and d.key != START]
    if any(d.key == START for d in others):
        logger.warning(f"{START} {cfg.MODEL.WEIGHTS!r} has no effect: the run continues from its own checkpoint")
    if applied:
        logger.info(f"resuming with other values, which apply from here on: {_listed(applied)}")


def check_stated(cfg: CfgNode, before: Mapping[str, Value], *, accepted: Collection[str] = ()) -> None:
    """``check_same_experiment`` of a config that is merged, but not resolved, and the config ``before``, by dotted key:
    of the architecture and of what else no other key, image or machine decides."""
    differences = _differences(plain_values(before), plain_config(cfg), elsewhere=True)
    fixed = [d for d in differences if not may_change(cfg, d.key) and _is_only_stated(d.key)]
    _check_accepted(fixed, accepted)


def may_be_the_same(cfg: CfgNode, before: Mapping[str, Value]) -> bool:
    """Whether a training that was killed before its first checkpoint, with the config ``before``, may have been of
    ``cfg``, which keeps what that has drawn and measured: of the same network, on the same data."""
    now, earlier = plain_config(cfg), plain_values(before)
    return all(earlier.get(key, now[key]) == now[key] for key in ("MODEL.META_ARCHITECTURE", DATA))


def _is_only_stated(key: str) -> bool:
    declared = declaration(key)
    is_decided = declared.resolve or any(key in other.also_decides for other in KEYS.values())
    is_open = is_decided or declared.scope == NETWORK or key.startswith(DECIDED_BY_OTHERS)
    return key == "MODEL.META_ARCHITECTURE" or not (is_open or key == DATA)


def _check_accepted(refused: Collection[Difference], accepted: Collection[str], *, fits: bool = True) -> None:
    wanted = [d.key for d in refused if d.key not in accepted]
    if wanted:
        problem = f"cannot resume: the checkpoint is of another experiment, {_listed(refused)}"
        force = " ".join(f"--accept {key}" for key in wanted)
        forced = f", or force it: --resume {force}" if fits else ": its tensors have other shapes"
        way_out = f"Restore the values on the left{',' if fits else ' or'} start again in another OUTPUT_DIR{forced}"
        raise UserError(f"{problem}. {way_out}")


def _listed(differences: Collection[Difference]) -> str:
    return ", ".join(map(str, differences))


def _warn_of_removed_keys(saved: Mapping[str, Value]) -> None:
    for key in sorted(REMOVED.keys() & saved.keys()):
        if saved[key]:
            logger.warning(f"the checkpoint had {key} {saved[key]}, which was removed: from here on it has no effect")


def _compare(cfg: CfgNode, images: list[dict], saved: dict, other_processes: bool) -> list[Difference]:
    now, before = plain_config(cfg), plain_values(saved["config"])
    elsewhere = other_processes or now["MODEL.DEVICE"] != before["MODEL.DEVICE"]
    of_keys = _differences(before, now, elsewhere=elsewhere)
    differences = [d for d in of_keys if d.key != DATA]
    changed = changes(saved["images"], images)
    if changed == [PARTS["times"]]:
        logger.warning(f"{DATA}: the files' times are others than the checkpoint's: were they copied, or edited?")
    elif changed:
        old = _images_in_words(before[DATA], saved["images"])
        new = _images_in_words(now[DATA], images)
        of_data = Difference(DATA, old, f"{new}, other {' and '.join(changed)}")
        differences.insert(0, of_data)
    return differences


def _images_in_words(names: list[str], prints: list[dict]) -> str:
    count = sum(part["count"] for part in prints)
    return f"{', '.join(names)}: {count} images"


def _differences(before: Mapping, now: Mapping, *, elsewhere: bool) -> list[Difference]:
    """By key; ``elsewhere``: on other devices or processes, where SyncBN becomes another norm of the same values."""
    shared = sorted(now.keys() & before.keys())
    pairs = [Difference(key, before[key], now[key]) for key in shared]
    differences = [d for d in pairs if d.before != d.now]
    return [d for d in differences if not (elsewhere and _is_of_place(d))]


def _is_of_place(difference: Difference) -> bool:
    """Whether two norms are one, on other devices or processes."""
    norms = {str(difference.before), str(difference.now)}
    return difference.key.endswith(".NORM") and norms <= SYNCHRONISED


def check_same_network(cfg: CfgNode, trained: Trained) -> None:
    """Raise UserError with what of a config would make another network of a checkpoint's, or other boxes."""
    differences = _differences(plain_values(trained.config), plain_config(cfg), elsewhere=True)
    makes = [d for d in differences if declaration(d.key).scope == NETWORK]
    wrong = [d for d in makes if not may_change(cfg, d.key)]
    wrong = [d for d in wrong if d.key == "MODEL.META_ARCHITECTURE"] or wrong
    if wrong:
        sides = [f"{d.key} is {short_repr(d.now)} here and {short_repr(d.before)} there" for d in wrong]
        raise UserError(
            f"{trained.weights} was trained under another configuration: {'; '.join(sides)}. Leave them to the "
            "checkpoint"
        )


def unused_overrides(cfg: CfgNode, typed: Collection[str]) -> list[str]:
    """Keys that are typed, but that this kind of network never reads, such as another method's; they are warned of."""
    unused = [key for key in typed if not is_read(cfg, key)]
    if unused:
        network = cfg.MODEL.META_ARCHITECTURE
        logger.warning(f"typed, but without effect: {network} never reads {', '.join(unused)}")
    return unused


def _plain(value: object) -> Value:
    if isinstance(value, str):
        return without_secrets(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
