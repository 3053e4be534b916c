"""What a config alone can tell to be impossible, and what it asks of its data sets."""

import os
from collections import Counter
from collections.abc import Sequence

from revisit.data.labels import VOID
from revisit.data.pixel_mapper import check_input
from revisit.engine.solver import evaluates_on_the_way
from revisit.errors import expect
from revisit.evaluation.main_score import main_score
from revisit.keys import DETECTORS, PIXELWISE, check_values, dotted_keys, value_of
from revisit.modeling.backbone.description import families, family_of
from revisit.modeling.backbone.pyramids import STAGES
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.modeling.sem_seg.pixel_heads import PixelHead, check_head
from revisit.urls import is_url

from detectron2.config import CfgNode
from detectron2.modeling import (
    ANCHOR_GENERATOR_REGISTRY,
    BACKBONE_REGISTRY,
    META_ARCH_REGISTRY,
    PROPOSAL_GENERATOR_REGISTRY,
    ROI_BOX_HEAD_REGISTRY,
    ROI_HEADS_REGISTRY,
    ROI_KEYPOINT_HEAD_REGISTRY,
    ROI_MASK_HEAD_REGISTRY,
    RPN_HEAD_REGISTRY,
    SEM_SEG_HEADS_REGISTRY,
)
from fvcore.common.registry import Registry

REGISTRIES: dict[str, Registry] = {
    "MODEL.META_ARCHITECTURE": META_ARCH_REGISTRY,
    "MODEL.BACKBONE.NAME": BACKBONE_REGISTRY,
    "MODEL.PROPOSAL_GENERATOR.NAME": PROPOSAL_GENERATOR_REGISTRY,
    "MODEL.ANCHOR_GENERATOR.NAME": ANCHOR_GENERATOR_REGISTRY,
    "MODEL.RPN.HEAD_NAME": RPN_HEAD_REGISTRY,
    "MODEL.ROI_HEADS.NAME": ROI_HEADS_REGISTRY,
    "MODEL.ROI_BOX_HEAD.NAME": ROI_BOX_HEAD_REGISTRY,
    "MODEL.ROI_MASK_HEAD.NAME": ROI_MASK_HEAD_REGISTRY,
    "MODEL.ROI_KEYPOINT_HEAD.NAME": ROI_KEYPOINT_HEAD_REGISTRY,
    "MODEL.SEM_SEG_HEAD.NAME": SEM_SEG_HEADS_REGISTRY,
}
OPTIONAL = ("MODEL.ROI_BOX_HEAD.NAME",)  # "": Res5ROIHeads needs none


def check_config(cfg: CfgNode, num_processes: int) -> None:
    """Check all that the config alone can say, for ``num_processes`` over all machines: each value, then each with the
    others.

    Raises:
        UserError: what is wrong.
    """
    check_values(cfg)
    _check_names(cfg)
    weights, solver = cfg.MODEL.WEIGHTS, cfg.SOLVER
    found = not weights or is_url(weights) or os.path.isfile(weights)
    expect(found, f"MODEL.WEIGHTS {weights} not found: expected a file of weights")
    sound = solver.OPTIMIZER not in ("SGD", "LARS") or solver.MOMENTUM or not solver.NESTEROV
    expect(sound, "SOLVER.NESTEROV True, but SOLVER.MOMENTUM 0: expected more than 0, or SOLVER.NESTEROV False")
    batch = solver.IMS_PER_BATCH
    expect(
        batch % num_processes == 0,
        f"SOLVER.IMS_PER_BATCH {batch} does not divide by {num_processes} processes: change it or --num-gpus",
    )
    expect(
        method_of(cfg) or cfg.SOLVER.PRECISION == "",
        f"SOLVER.PRECISION {cfg.SOLVER.PRECISION} is for pretraining: expected '' with {cfg.MODEL.META_ARCHITECTURE}, "
        "whose precision SOLVER.AMP.ENABLED and MODEL.CHANNELS_LAST say",
    )
    share, parts = batch // num_processes, cfg.SOLVER.ACCUMULATION_STEPS
    expect(
        share % parts == 0,
        f"SOLVER.ACCUMULATION_STEPS {parts} does not divide the {share} images of a process",
    )
    for family in families():
        family.check(cfg)
    if method_of(cfg):
        _check_pretraining(cfg, share)
    if cfg.MODEL.META_ARCHITECTURE in PIXELWISE:
        _check_pixelwise(cfg)
        check_head(cfg, num_processes)


def check_typed(cfg: CfgNode, opts: Sequence[object]) -> None:
    """Check a length that was typed: 0 iterations mean SOLVER.EPOCHS in a file, and nothing to whoever types them."""
    typed = {str(key) for key in opts[::2]}
    length = cfg.SOLVER.MAX_ITER
    expect(
        "SOLVER.MAX_ITER" not in typed or length > 0 or "SOLVER.EPOCHS" in typed,
        f"SOLVER.MAX_ITER is {length}: expected at least 1 iteration, or SOLVER.EPOCHS with it for a length in epochs",
    )


def check_schedule(cfg: CfgNode, num_images: int) -> None:
    """Check the lengths of a config whose schedule is resolved: nothing waits for longer than the run lasts.

    Raises:
        UserError: what would never happen.
    """
    solver, method = cfg.SOLVER, method_of(cfg)
    if method:
        method.check_length(cfg, num_images // solver.IMS_PER_BATCH)
    wait = method.iterations_before_learning(cfg) if method else 0
    last = solver.MAX_ITER - wait
    name, warmup = solver.LR_SCHEDULER_NAME, solver.WARMUP_ITERS
    after = f", whose first {wait} iterations only wait" if wait else ""
    expect(
        warmup <= last or name == "PolynomialLR",
        f"SOLVER.WARMUP_ITERS {warmup} is longer than the run of {last} iterations{after}: expected less, such as 0",
    )
    late = [step for step in solver.STEPS if step >= last] if name == "WarmupMultiStepLR" else []
    key = "STEP_EPOCHS" if solver.STEP_EPOCHS else "STEPS"
    expect(
        not late,
        f"SOLVER.{key} {tuple(solver[key])}: iterations {late} come after the end of the run, at {last}; expected "
        "earlier ones, or ()",
    )


def check_hardware(cfg: CfgNode) -> None:
    """Check what this machine cannot run; a dry run may plan it for another one."""
    amp = cfg.SOLVER.AMP
    if not amp.ENABLED or cfg.MODEL.DEVICE != "cpu":
        return
    expect(amp.DTYPE != "float16", "SOLVER.AMP.DTYPE float16 needs a GPU: expected bfloat16 on the CPU")
    family = family_of(cfg)
    norms = [value_of(cfg, family.NORM_KEY)] if family and family.NORM_KEY else []
    expect(
        "naiveSyncBN" not in [*norms, cfg.MODEL.SEM_SEG_HEAD.NORM],
        "SyncBN over several processes on the CPU loses its variance in bfloat16: expected one process, "
        "or SOLVER.AMP.ENABLED False",
    )
    if method_of(cfg) and family:
        family.check_bfloat16(cfg, min([cfg.VIEWS.LARGE_SIZE] + [cfg.VIEWS.SMALL_SIZE] * cfg.VIEWS.NUM_SMALL))


def check_training(cfg: CfgNode, *, eval_only: bool = False) -> None:
    """Check what a training or its evaluation needs, and a project on frozen features does not.

    Raises:
        UserError: a network that cannot be built or trained; an evaluation that would report nothing.
    """
    _check_monitors(cfg, eval_only)
    if cfg.MODEL.META_ARCHITECTURE in DETECTORS:
        _check_detector(cfg)


def _check_monitors(cfg: CfgNode, eval_only: bool) -> None:
    """Check that what is to be evaluated every so often, or is all that a command does, can be."""
    test, bank, images = cfg.DATASETS.TEST, cfg.KNN_EVAL.BANK, cfg.MONITOR.IMAGES
    expect(test or images or not eval_only, "--eval-only, but DATASETS.TEST is empty: expected data to evaluate")
    if method_of(cfg):
        expect(
            bool(test) == bool(bank),
            f"DATASETS.TEST is {tuple(test)} and KNN_EVAL.BANK is {bank!r}: expected images to classify and a bank "
            "that votes on them, or neither",
        )
    else:
        expect(not bank, f"KNN_EVAL.BANK is {bank!r}: it is for pretraining; finetuning is evaluated on DATASETS.TEST")
        expect(not images, f"MONITOR.IMAGES is {images!r}: it is for pretraining; finetuning has DATASETS.TEST")
    for key in ("EVAL_PERIOD", "EVAL_EPOCHS"):
        expect(
            test or images or not cfg.TEST[key],
            f"TEST.{key} is {cfg.TEST[key]}, but DATASETS.TEST is empty: expected data to evaluate, or 0",
        )
    expect(
        cfg.TEST.KEEP_BEST or not cfg.TEST.PATIENCE,
        f"TEST.PATIENCE is {cfg.TEST.PATIENCE}: expected TEST.KEEP_BEST True with it, which keeps the "
        "network of the best evaluation",
    )
    if cfg.TEST.KEEP_BEST:
        architecture = cfg.MODEL.META_ARCHITECTURE
        expect(main_score(cfg) != "", f"TEST.KEEP_BEST is True, but {architecture} has no known main score")
        expect(
            evaluates_on_the_way(cfg),
            "TEST.KEEP_BEST is True, but nothing is evaluated before the end: set TEST.EVAL_EPOCHS 1, or "
            "TEST.EVAL_PERIOD to a number of iterations",
        )
        expect(
            bool(test),
            "TEST.KEEP_BEST is True, but only labels say which evaluation is the best: expected KNN_EVAL.BANK and "
            "DATASETS.TEST, or TEST.KEEP_BEST False",
        )


def _check_names(cfg: CfgNode) -> None:
    values = dotted_keys(cfg)
    for key, registry in REGISTRIES.items():
        known = [name for name, _ in registry]
        found = values[key]
        expect(
            found in known or (key in OPTIONAL and not found),
            f"{key} is {found!r}: expected one of {', '.join(known)}",
        )
    for key in ("DATASETS.TRAIN", "DATASETS.TEST"):
        twice = [name for name, count in Counter(map(_place, values[key])).items() if count > 1]
        expect(not twice, f"{key} has {', '.join(twice)} more than once: expected every data set once")


def _place(name: str) -> str:
    """The name of a data set, with one form for each folder."""
    kind, colon, path = name.partition(":")
    return f"{kind}:{os.path.realpath(os.path.expanduser(path))}" if colon and "://" not in path else name


def _check_detector(cfg: CfgNode) -> None:
    """What Detectron2 asserts of anchors and regions, and leaves to a traceback."""
    model, family = cfg.MODEL, family_of(cfg)
    maps = family.maps(cfg) if family else ()
    if family and "_fpn_" in model.BACKBONE.NAME:
        below, known = list(model.FPN.IN_FEATURES), list(value_of(cfg, family.FEATURES_KEY))
        expect(
            bool(below) and set(below) <= set(known) and tuple(below) == STAGES[len(STAGES) - len(below) :],
            f"MODEL.FPN.IN_FEATURES is {below}: expected neighbouring ones up to res5, all of them in "
            f"{family.FEATURES_KEY}, which is {known}",
        )
    parts = ("RETINANET",) if model.META_ARCHITECTURE == "RetinaNet" else ("RPN", "ROI_HEADS")
    for name in parts:
        node = model[name]
        expect(
            0 < len(node.IN_FEATURES) == len(set(node.IN_FEATURES))
            and (not maps or set(node.IN_FEATURES) <= set(maps)),
            f"MODEL.{name}.IN_FEATURES is {list(node.IN_FEATURES)}: expected some of {', '.join(maps)}, each once",
        )
        expect(
            len(node.IOU_LABELS) == len(node.IOU_THRESHOLDS) + 1,
            f"MODEL.{name}.IOU_LABELS {list(node.IOU_LABELS)}: expected one more than IOU_THRESHOLDS, which are "
            f"{list(node.IOU_THRESHOLDS)}",
        )
    levels = len(model[parts[0]].IN_FEATURES)
    for key in ("SIZES", "ASPECT_RATIOS"):
        value = model.ANCHOR_GENERATOR[key]
        expect(
            len(value) in (1, levels),
            f"MODEL.ANCHOR_GENERATOR.{key} {value}: expected one list, or one for each of MODEL.{parts[0]}.IN_FEATURES",
        )


def _check_pixelwise(cfg: CfgNode) -> None:
    head, resnet = cfg.MODEL.SEM_SEG_HEAD, cfg.MODEL.RESNETS
    check_input(cfg)
    expect(
        not cfg.DATALOADER.ASPECT_RATIO_GROUPING,
        "DATALOADER.ASPECT_RATIO_GROUPING True: records for pixels have no sizes to group by; expected False",
    )
    expect(
        len(head.IN_FEATURES) == 1 and set(head.IN_FEATURES) <= set(resnet.OUT_FEATURES),
        f"MODEL.SEM_SEG_HEAD.IN_FEATURES {head.IN_FEATURES}: expected one of MODEL.RESNETS.OUT_FEATURES "
        f"({', '.join(resnet.OUT_FEATURES)})",
    )
    expect(head.IGNORE_VALUE == VOID, f"MODEL.SEM_SEG_HEAD.IGNORE_VALUE {head.IGNORE_VALUE}: expected {VOID}")
    if cfg.MODEL.META_ARCHITECTURE == "DepthEstimator":
        fit = [name for name, cls in SEM_SEG_HEADS_REGISTRY if isinstance(cls, type) and issubclass(cls, PixelHead)]
        expect(head.NAME in fit, f"MODEL.SEM_SEG_HEAD.NAME is {head.NAME!r}: depth needs one of {', '.join(fit)}")
        outputs = head.NUM_CLASSES
        expect(outputs == 1, f"MODEL.SEM_SEG_HEAD.NUM_CLASSES {outputs}: a depth is a single number, expected 1")


def _check_pretraining(cfg: CfgNode, share: int) -> None:
    """What every method asks of the views and the network, then what cfg's own asks."""
    expect(cfg.INPUT.FORMAT == "RGB", f"INPUT.FORMAT {cfg.INPUT.FORMAT}: pretraining reads RGB")
    family, frozen = family_of(cfg), cfg.MODEL.BACKBONE.FREEZE_AT
    most = family.MAY_STAY_RANDOM if family else 0
    expect(
        frozen <= most or cfg.MODEL.WEIGHTS,
        f"MODEL.BACKBONE.FREEZE_AT is {frozen}: random layers would stay as they are; expected {most}, or "
        "MODEL.WEIGHTS",
    )
    if family and family.NORM_KEY:
        norm = value_of(cfg, family.NORM_KEY)
        expect(
            norm in ("BN", "SyncBN", "naiveSyncBN", "nnSyncBN"),
            f"{family.NORM_KEY} is {norm!r}: pretraining trains batch normalisation, expected BN or SyncBN",
        )
    if family and family.FEATURES_KEY:
        maps = list(value_of(cfg, family.FEATURES_KEY))
        expect(len(maps) == 1, f"{family.FEATURES_KEY} is {maps}: pretraining expects one map, such as ['res5']")
    expect(
        not cfg.TEST.PRECISE_BN.ENABLED,
        "TEST.PRECISE_BN.ENABLED True: it is for finetuning; a pretraining forward makes keys and draws views",
    )
    expect(cfg.KNN_EVAL.BANK or not cfg.KNN_EVAL.LINEAR, "KNN_EVAL.LINEAR True without KNN_EVAL.BANK to fit to")
    method_of(cfg).check(cfg, share)
