"""What a config has to satisfy before anything starts: each rule ends in one line that names key, value and way out."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

from revisit.config import (
    AMP_DTYPES,
    DENSE,
    DENSE_HEADS,
    DEPTH_LOSSES,
    MINING,
    OPTIMIZERS,
    POLICIES,
    PRETRAINING,
    QUEUE_DTYPES,
    STEM_TYPES,
)
from revisit.data.labels import VOID
from revisit.data.pixel_mapper import check_input
from revisit.errors import UserError

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

SCHEDULES = ("WarmupMultiStepLR", "WarmupCosineLR", "PolynomialLR")


def check_config(cfg: CfgNode, num_processes: int) -> None:
    """All that the config alone tells, for ``num_processes`` over all machines. UserError says what is wrong."""
    weights = cfg.MODEL.WEIGHTS
    expect(
        not weights or "://" in weights or Path(weights).is_file(),
        f"MODEL.WEIGHTS {weights} not found: expected a file of weights",
    )
    batch = cfg.SOLVER.IMS_PER_BATCH
    expect(
        batch > 0 and batch % num_processes == 0,
        f"SOLVER.IMS_PER_BATCH {batch} does not divide by {num_processes} processes: change it or --num-gpus",
    )
    for key in ("CHECKPOINTS_KEPT", "CHECKPOINT_KEPT_EVERY"):
        expect(cfg.SOLVER[key] >= 0, f"SOLVER.{key} {cfg.SOLVER[key]}: expected 0 or more")
    _expect_one_of(cfg, "MODEL.RESNETS.STEM_TYPE", STEM_TYPES)
    _expect_one_of(cfg, "SOLVER.OPTIMIZER", OPTIMIZERS)
    _expect_one_of(cfg, "SOLVER.LR_SCHEDULER_NAME", SCHEDULES)
    share = batch // num_processes
    _check_step(cfg, share)
    if cfg.MODEL.META_ARCHITECTURE in PRETRAINING:
        _check_pretraining(cfg, share)
    if cfg.MODEL.META_ARCHITECTURE in DENSE:
        _check_dense(cfg)


def check_hardware(cfg: CfgNode) -> None:
    """What a dry run may plan for another machine."""
    amp = cfg.SOLVER.AMP
    if not amp.ENABLED or cfg.MODEL.DEVICE != "cpu":
        return
    expect(amp.DTYPE != "float16", "SOLVER.AMP.DTYPE float16 needs a GPU: expected bfloat16 on the CPU")
    norms = (cfg.MODEL.RESNETS.NORM, cfg.MODEL.SEM_SEG_HEAD.NORM)
    expect(
        "naiveSyncBN" not in norms,
        "SyncBN over several processes on the CPU loses its variance in bfloat16: expected one process, "
        "or SOLVER.AMP.ENABLED False",
    )
    if cfg.MODEL.META_ARCHITECTURE in PRETRAINING:
        # The weight gradient of torch 2.11's bfloat16 convolution of stride 2 over a 1 x 1 map is uninitialised memory.
        size = min([cfg.VIEWS.LARGE_SIZE] + [cfg.VIEWS.SMALL_SIZE] * cfg.VIEWS.NUM_SMALL)
        stride = 16 if cfg.MODEL.RESNETS.STEM_TYPE == "basic" else 4  # of res4
        expect(
            size > stride,
            f"views of {size} px reach res5 as a single place, where bfloat16 on the CPU gives wrong gradients: "
            f"expected views larger than {stride} px, or SOLVER.AMP.ENABLED False",
        )


def check_records(cfg: CfgNode, name: str, records: list[dict]) -> None:
    """The data set has what MODEL.META_ARCHITECTURE learns from, and as many classes as the model."""
    model, metadata = cfg.MODEL, MetadataCatalog.get(name)
    kinds = {
        "GeneralizedRCNN": ("annotations", "boxes", "thing_classes", "MODEL.ROI_HEADS.NUM_CLASSES"),
        "SemanticSegmentor": ("sem_seg_file_name", "masks", "stuff_classes", "MODEL.SEM_SEG_HEAD.NUM_CLASSES"),
        "DepthEstimator": ("depth_file_name", "depth maps", None, None),
    }
    if model.META_ARCHITECTURE not in kinds:
        return
    field, what, classes, key = kinds[model.META_ARCHITECTURE]
    expect(field in records[0], f"data set {name!r} has no {what}, which {model.META_ARCHITECTURE} learns from")
    if classes:
        here, there = reduce(getattr, key.split("."), cfg), len(metadata.get(classes, ()))
        expect(here == there, f"{key} is {here}, but data set {name!r} has {there} classes")


def _check_step(cfg: CfgNode, share: int) -> None:
    """Precision and accumulation; ``share`` images are a process's part of the batch."""
    parts = cfg.SOLVER.ACCUMULATION_STEPS
    expect(
        parts > 0 and share % parts == 0,
        f"SOLVER.ACCUMULATION_STEPS {parts} does not divide the {share} images of a process",
    )
    _expect_one_of(cfg, "SOLVER.AMP.DTYPE", AMP_DTYPES)


def _check_dense(cfg: CfgNode) -> None:
    head, resnet = cfg.MODEL.SEM_SEG_HEAD, cfg.MODEL.RESNETS
    check_input(cfg)
    expect(
        len(head.IN_FEATURES) == 1 and set(head.IN_FEATURES) <= set(resnet.OUT_FEATURES),
        f"MODEL.SEM_SEG_HEAD.IN_FEATURES {head.IN_FEATURES}: expected one of MODEL.RESNETS.OUT_FEATURES "
        f"({', '.join(resnet.OUT_FEATURES)})",
    )
    expect(
        len(head.ASPP_DILATIONS) == 3,
        f"MODEL.SEM_SEG_HEAD.ASPP_DILATIONS {head.ASPP_DILATIONS}: expected three, one a branch",
    )
    expect(head.IGNORE_VALUE == VOID, f"MODEL.SEM_SEG_HEAD.IGNORE_VALUE {head.IGNORE_VALUE}: expected {VOID}")
    if cfg.MODEL.META_ARCHITECTURE == "DepthEstimator":
        _expect_one_of(cfg, "MODEL.SEM_SEG_HEAD.NAME", DENSE_HEADS)
        _expect_one_of(cfg, "MODEL.DEPTH.LOSS", DEPTH_LOSSES)
        outputs = head.NUM_CLASSES
        expect(outputs == 1, f"MODEL.SEM_SEG_HEAD.NUM_CLASSES {outputs}: a depth is a single number, expected 1")


def _check_pretraining(cfg: CfgNode, share: int) -> None:
    batch, moco, knn = cfg.SOLVER.IMS_PER_BATCH, cfg.MOCO, cfg.KNN_MOCO
    parts = cfg.SOLVER.ACCUMULATION_STEPS
    _expect_one_of(cfg, "VIEWS.POLICY", POLICIES)
    _expect_one_of(cfg, "KNN_MOCO.MINING", MINING)
    _expect_one_of(cfg, "MOCO.QUEUE_DTYPE", QUEUE_DTYPES)
    expect(cfg.SOLVER.METRICS_PERIOD >= 0, f"SOLVER.METRICS_PERIOD {cfg.SOLVER.METRICS_PERIOD}: expected 0 or more")
    expect(moco.MAX_SCORES >= 0, f"MOCO.MAX_SCORES {moco.MAX_SCORES}: expected 0 (all at once) or more")
    expect(cfg.INPUT.FORMAT == "RGB", f"INPUT.FORMAT {cfg.INPUT.FORMAT}: pretraining reads RGB")
    expect(
        batch <= moco.QUEUE_SIZE,
        f"MOCO.QUEUE_SIZE {moco.QUEUE_SIZE} is smaller than the global batch of {batch}: expected at least as many",
    )
    expect(
        0 < knn.NUM_NEIGHBORS <= moco.QUEUE_SIZE,
        f"KNN_MOCO.NUM_NEIGHBORS {knn.NUM_NEIGHBORS} does not lie in 1..MOCO.QUEUE_SIZE ({moco.QUEUE_SIZE})",
    )
    expect(moco.TEMPERATURE > 0, f"MOCO.TEMPERATURE {moco.TEMPERATURE}: expected a positive number")
    expect(0 <= moco.MOMENTUM < 1, f"MOCO.MOMENTUM {moco.MOMENTUM} does not lie in [0, 1)")
    expect(
        moco.BN_SPLITS > 0 and share // parts % moco.BN_SPLITS == 0,
        f"MOCO.BN_SPLITS {moco.BN_SPLITS} does not divide the {share // parts} images that a process runs at a time",
    )
    expect(
        parts == 1 or not knn.ENQUEUE_FIRST,
        "KNN_MOCO.ENQUEUE_FIRST enqueues the whole batch's keys inside its forward: expected "
        f"SOLVER.ACCUMULATION_STEPS 1 with it, got {parts}",
    )
    expect(
        not cfg.TEST.PRECISE_BN.ENABLED,
        "TEST.PRECISE_BN.ENABLED True: it is for finetuning; a pretraining forward makes keys and draws views",
    )
    for name in ("MIN_OVERLAP", "MAX_IOU"):
        expect(0 <= cfg.VIEWS[name] <= 1, f"VIEWS.{name} {cfg.VIEWS[name]} does not lie in [0, 1]")
    for name in ("LARGE_SCALE", "SMALL_SCALE"):
        low, high = cfg.VIEWS[name]
        expect(0 < low <= high <= 1, f"VIEWS.{name} {cfg.VIEWS[name]}: expected 0 < low <= high <= 1")
    expect(cfg.KNN_EVAL.BANK or not cfg.KNN_EVAL.LINEAR, "KNN_EVAL.LINEAR True without KNN_EVAL.BANK to fit to")
    if cfg.MODEL.META_ARCHITECTURE == "DenseCL":
        _check_densecl(cfg)


def _check_densecl(cfg: CfgNode) -> None:
    options, small = cfg.DENSECL, cfg.VIEWS.NUM_SMALL
    expect(small == 0, f"VIEWS.NUM_SMALL {small}: DenseCL has one positive, the large one; expected 0")
    expect(0 <= options.WEIGHT <= 1, f"DENSECL.WEIGHT {options.WEIGHT} does not lie in [0, 1]")
    expect(options.GRID >= 0, f"DENSECL.GRID {options.GRID}: expected 0 (the map as it is) or more")


def expect(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


def _expect_one_of(cfg: CfgNode, key: str, choices: tuple[str, ...]) -> None:
    value = reduce(getattr, key.split("."), cfg)
    expect(value in choices, f"{key} is {value!r}, expected one of {', '.join(choices)}")
