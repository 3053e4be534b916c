"""What a resumed run may change: each key of its config is refused, applied, or without effect on its kind of network.

A method's own keys are classed beside them: ``KEYS`` and ``MAY_CHANGE`` of its class. A key that no table knows is
refused, because it may make another experiment of the run.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import NamedTuple

from revisit.config import DETECTORS, PIXELWISE
from revisit.config_rules import dotted_keys
from revisit.data.box_checks import Note
from revisit.errors import expect
from revisit.modeling.backbone.description import family_of
from revisit.modeling.meta_arch.pretraining import Pretraining, method_of, methods
from revisit.older_keys import without_older_keys

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)

Value = None | bool | int | float | str | list
DATA = "DATASETS.TRAIN"  # compared by its images
OWN_RULES = (DATA, "SEED")

# Patterns of keys.
MAY_CHANGE = (
    *("SOLVER.BASE_LR", "SOLVER.BIAS_LR_FACTOR", "SOLVER.WEIGHT_DECAY", "SOLVER.WEIGHT_DECAY_*"),
    *("SOLVER.LR_SCHEDULER_NAME", "SOLVER.GAMMA", "SOLVER.STEPS", "SOLVER.STEP_EPOCHS", "SOLVER.WARMUP_*"),
    *("SOLVER.POLY_POWER", "SOLVER.MAX_ITER", "SOLVER.EPOCHS"),
    *("SOLVER.CHECKPOINT*", "SOLVER.STOP_WITHOUT_CHECKPOINT", "SOLVER.METRICS_PERIOD", "VIS_PERIOD"),
    *("OUTPUT_DIR", "WRITERS"),
    *("DATASETS.TEST", "KNN_EVAL.*", "MONITOR.*", "TEST.EVAL_*", "TEST.KEEP_BEST", "TEST.PATIENCE"),
    *("TEST.EXPECTED_RESULTS", "TEST.KEYPOINT_OKS_SIGMAS"),
    *("TEST.DETECTIONS_PER_IMAGE", "INPUT.MIN_SIZE_TEST", "INPUT.MAX_SIZE_TEST"),
    *("MODEL.RPN.*_TEST", "MODEL.RETINANET.*_TEST"),
    *("MODEL.ROI_HEADS.*_TEST", "MODEL.DEVICE", "MODEL.COMPILE", "MODEL.CHANNELS_LAST", "CUDNN_BENCHMARK"),
    *("DATALOADER.NUM_WORKERS", "DATALOADER.AUGMENT_ON_DEVICE", "IMPORTS", "TEST.RESIZE_BACK"),
)
FOR_A_START = ("MODEL.WEIGHTS", "MODEL.ALLOW_PARTIAL_BACKBONE")  # a resumed run has its checkpoint's weights
NEVER_READ = ("VERSION", "SOLVER.REFERENCE_WORLD_SIZE", "TEST.AUG.*")  # by any trainer here

TWO_STAGE, PRETRAINING = "GeneralizedRCNN", "pretraining"
FINETUNING = (*DETECTORS, *PIXELWISE)
# Of the kinds of networks above, which read a key; nothing is known of any other kind. The first match counts.
READ_BY = {
    "MODEL.DEPTH.*": ("DepthEstimator",),
    "TEST.RESIZE_BACK": ("SemanticSegmentor",),
    **dict.fromkeys(("MODEL.SEM_SEG_HEAD.*", "INPUT.RANDOM_SCALE*", "INPUT.RANDOM_ROTATION"), PIXELWISE),
    "INPUT.SQUASH": PIXELWISE,
    **dict.fromkeys(("MODEL.RPN.*", "MODEL.ROI_*", "MODEL.PROPOSAL_GENERATOR.*", "MODEL.MASK_ON"), (TWO_STAGE,)),
    **dict.fromkeys(("INPUT.MASK_FORMAT", "TEST.KEYPOINT_OKS_SIGMAS"), (TWO_STAGE,)),
    **dict.fromkeys(("MODEL.ANCHOR_GENERATOR.*", "VIS_PERIOD", "TEST.DETECTIONS_PER_IMAGE"), DETECTORS),
    **dict.fromkeys(("INPUT.MIN_SIZE_*", "INPUT.MAX_SIZE_*"), DETECTORS),
    "MODEL.RETINANET.*": ("RetinaNet",),
    **dict.fromkeys(("INPUT.RANDOM_FLIP", "INPUT.CROP.*", "MODEL.LOAD_PROPOSALS", "MODEL.KEYPOINT_ON"), FINETUNING),
    **dict.fromkeys(("DATASETS.*PROPOSAL*", "DATALOADER.ASPECT_RATIO_GROUPING"), FINETUNING),
    **dict.fromkeys(("DATALOADER.SAMPLER_TRAIN", "DATALOADER.REPEAT_THRESHOLD"), FINETUNING),
    "DATALOADER.FILTER_EMPTY_ANNOTATIONS": FINETUNING,
    **dict.fromkeys(("VIEWS.*", "KNN_EVAL.*", "MONITOR.*", "DATALOADER.AUGMENT_ON_DEVICE"), (PRETRAINING,)),
    "SOLVER.METRICS_PERIOD": (PRETRAINING,),
    "MODEL.PANOPTIC_FPN.*": (),
}
SYNCHRONISED = {"BN", "SyncBN", "naiveSyncBN"}  # one thing on one process, on several GPUs, on a CPU (setup.py)


class Verdict(Enum):
    REFUSED = "refused"
    APPLIED = "applied"
    WITHOUT_EFFECT = "without effect"


class Difference(NamedTuple):
    key: str
    there: object  # in the checkpoint
    here: object

    def __str__(self) -> str:
        return f"{self.key} ({self.there} -> {self.here})"


def plain_config(cfg: CfgNode) -> dict[str, Value]:
    """A config as a checkpoint holds it: plain values by dotted key, tuples as lists."""
    return {key: _plain(value) for key, value in dotted_keys(cfg).items()}


def verdict_on(cfg: CfgNode, key: str) -> Verdict:
    """What a resumed run of ``cfg`` does where a dotted key has another value than in the checkpoint."""
    method = method_of(cfg)
    if _matches(key, FOR_A_START) or not _is_read(cfg, key, method):
        return Verdict.WITHOUT_EFFECT
    may_change = (*MAY_CHANGE, *_of_class(method, "MAY_CHANGE"))
    return Verdict.APPLIED if _matches(key, may_change) else Verdict.REFUSED


def check_same_experiment(
    cfg: CfgNode, images: list[dict], saved: dict, *, accepted: Collection[str] = (), other_processes: bool = False
) -> None:
    """Compare a config and its training images with those of a checkpoint, and log what is applied or has no effect.

    Args:
        images: ``fingerprint`` of the training images.
        saved: of the checkpoint, ``config`` by ``plain_config``, ``images`` and ``world_size``. An older one has no
            config.
        accepted: keys that may differ although they make another experiment.
        other_processes: the checkpoint is of another number of processes.

    Raises:
        UserError: keys that differ and are not accepted, all of them.
    """
    if "config" not in saved:
        logger.info("the checkpoint is older than the record of a run's config: nothing could be compared")
        return
    saved = {**saved, "config": without_older_keys(saved["config"], saved.get("world_size", 1))}
    found = _compare(cfg, images, saved, other_processes)
    refused = found[Verdict.REFUSED]
    force = " ".join(f"--accept {each.key}" for each in refused if each.key not in accepted)
    expect(
        not force,
        f"cannot resume: the checkpoint is of another experiment, {_listed(refused)}. Restore the values on the left, "
        f"start anew in another OUTPUT_DIR, or force it: --resume {force}",
    )
    if refused:
        logger.warning(f"resuming as another experiment, by --accept: {_listed(refused)}")
    if applied := found[Verdict.APPLIED]:
        logger.info(f"resuming with other values, which apply from here on: {_listed(applied)}")
    if idle := found[Verdict.WITHOUT_EFFECT]:
        logger.info(f"other values, without effect on this resumed run: {_listed(idle)}")
    if alone := sorted(plain_config(cfg).keys() ^ saved["config"].keys()):
        logger.info(f"keys that only the checkpoint or only this config has, not compared: {', '.join(alone)}")


def _compare(cfg: CfgNode, images: list[dict], saved: dict, other_processes: bool) -> dict[Verdict, list[Difference]]:
    here, there = plain_config(cfg), saved["config"]
    found: dict[Verdict, list[Difference]] = {verdict: [] for verdict in Verdict}
    if images != saved["images"] or here[DATA] != there[DATA]:
        verdict = Verdict.APPLIED if images == saved["images"] else Verdict.REFUSED
        found[verdict].append(Difference(DATA, _words(there[DATA], saved["images"]), _words(here[DATA], images)))
    elsewhere = other_processes or here["MODEL.DEVICE"] != there["MODEL.DEVICE"]
    for key in here.keys() & there.keys() - set(OWN_RULES):
        difference = Difference(key, there[key], here[key])
        resolved = elsewhere and key.endswith(".NORM") and {*map(str, difference[1:])} <= SYNCHRONISED
        if difference.there != difference.here and not resolved:
            found[verdict_on(cfg, key)].append(difference)
    return {verdict: sorted(differences) for verdict, differences in found.items()}


def config_of_checkpoint(cfg: CfgNode, saved: dict[str, Value], prefix: str) -> CfgNode:
    """A copy of ``cfg`` whose keys that begin with ``prefix`` have the values of a checkpoint, where it has them."""
    cfg = cfg.clone()
    cfg.defrost()
    for key, value in saved.items():
        *nodes, name = key.split(".")
        node = cfg
        for part in nodes:
            node = node.get(part, CfgNode())
        if key.startswith(prefix) and name in node:
            node[name] = value
    return cfg


def typed_in_vain(cfg: CfgNode, opts: Sequence[object]) -> list[Note]:
    """A warning of the typed keys that this kind of network never reads, such as another method's; or none."""
    idle = [str(key) for key in opts[::2] if not _is_read(cfg, str(key), method_of(cfg))]
    text = f"typed, but without effect: {cfg.MODEL.META_ARCHITECTURE} never reads {', '.join(idle)}"
    return [(logging.WARNING, text)] if idle else []


def _is_read(cfg: CfgNode, key: str, method: type[Pretraining] | None) -> bool:
    """Whether this kind of network reads the key, as far as that is known."""
    if _matches(key, NEVER_READ):
        return False
    kind = PRETRAINING if method else cfg.MODEL.META_ARCHITECTURE
    if kind not in (PRETRAINING, *FINETUNING):
        return True
    if _matches(key, ("MODEL.FPN.*",)):
        family = family_of(cfg)
        return family is None or any(name.startswith("p") for name in family.maps(cfg))  # p2 to p6, a pyramid's
    readers = next((readers for pattern, readers in READ_BY.items() if fnmatchcase(key, pattern)), (kind,))
    others = [pattern for other in methods() for pattern in _of_class(other, "KEYS")]
    if _matches(key, others) and not _matches(key, _of_class(method, "KEYS")):
        # A method that does not say which keys are its own may read any.
        return method is not None and "KEYS" not in vars(method)
    return kind in readers


def _of_class(method: type[Pretraining] | None, name: str) -> Iterable[str]:
    """The patterns that a method and the methods that it extends have under a name."""
    return (pattern for cls in (method.__mro__ if method else ()) for pattern in vars(cls).get(name, ()))


def _matches(key: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _plain(value: object) -> Value:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _words(names: list[str], images: list[dict]) -> str:
    count, hashes = sum(each["count"] for each in images), " ".join(each["names"][:8] for each in images)
    return f"{', '.join(names)}: {count} images, hash of their names {hashes}"


def _listed(differences: list[Difference]) -> str:
    return ", ".join(map(str, differences))
