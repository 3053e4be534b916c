"""What a config has to satisfy before anything starts: a broken rule is one line with key, value and remedy."""

from functools import reduce
from pathlib import Path

from revisit.config import (
    AMP_DTYPES,
    DEPTH_LOSSES,
    OPTIMIZERS,
    PIXELWISE,
    PIXELWISE_HEADS,
    POLICIES,
    STEM_TYPES,
    expect_one_of,
)
from revisit.data.box_checks import Note, check_masks, inspect_boxes
from revisit.data.labels import VOID
from revisit.data.pixel_mapper import check_input
from revisit.errors import expect
from revisit.evaluation.box_evaluators import check_voc_truth
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

SCHEDULES = ("WarmupMultiStepLR", "WarmupCosineLR", "PolynomialLR")


def check_config(cfg: CfgNode, num_processes: int) -> None:
    """Check all that the config alone can say, for ``num_processes`` over all machines.

    Raises:
        UserError: what is wrong.
    """
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
    expect_one_of(cfg, "MODEL.RESNETS.STEM_TYPE", STEM_TYPES)
    expect_one_of(cfg, "SOLVER.OPTIMIZER", OPTIMIZERS)
    expect_one_of(cfg, "SOLVER.LR_SCHEDULER_NAME", SCHEDULES)
    share, parts = batch // num_processes, cfg.SOLVER.ACCUMULATION_STEPS
    expect(
        parts > 0 and share % parts == 0,
        f"SOLVER.ACCUMULATION_STEPS {parts} does not divide the {share} images of a process",
    )
    expect_one_of(cfg, "SOLVER.AMP.DTYPE", AMP_DTYPES)
    if method_of(cfg):
        _check_pretraining(cfg, share)
    if cfg.MODEL.META_ARCHITECTURE in PIXELWISE:
        _check_pixelwise(cfg)


def check_hardware(cfg: CfgNode) -> None:
    """Check what this machine cannot run; a dry run may plan it for another one."""
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
    if method_of(cfg):
        # The weight gradient of torch 2.11's bfloat16 convolution of stride 2 over a 1 x 1 map is uninitialised memory.
        size = min([cfg.VIEWS.LARGE_SIZE] + [cfg.VIEWS.SMALL_SIZE] * cfg.VIEWS.NUM_SMALL)
        stride = 16 if cfg.MODEL.RESNETS.STEM_TYPE == "basic" else 4  # of res4
        expect(
            size > stride,
            f"views of {size} px reach res5 as a single place, where bfloat16 on the CPU gives wrong gradients: "
            f"expected views larger than {stride} px, or SOLVER.AMP.ENABLED False",
        )


# By meta-architecture: what a record has, in words, and where data set and model say how many classes there are.
LEARNT_FROM = {
    "GeneralizedRCNN": ("annotations", "boxes", "thing_classes", "MODEL.ROI_HEADS.NUM_CLASSES"),
    "SemanticSegmentor": ("sem_seg_file_name", "masks", "stuff_classes", "MODEL.SEM_SEG_HEAD.NUM_CLASSES"),
    "DepthEstimator": ("depth_file_name", "depth maps", None, None),
}


def num_classes(cfg: CfgNode) -> int | None:
    """Of the model; None of one without classes, or that is not known."""
    *_, key = LEARNT_FROM.get(cfg.MODEL.META_ARCHITECTURE, (None,))
    return reduce(getattr, key.split("."), cfg) if key else None


def check_records(cfg: CfgNode, name: str, records: list[dict]) -> None:
    """Check that the data set has what MODEL.META_ARCHITECTURE learns from, and as many classes as the model."""
    model, metadata = cfg.MODEL, MetadataCatalog.get(name)
    if model.META_ARCHITECTURE not in LEARNT_FROM:
        return
    field, what, classes, key = LEARNT_FROM[model.META_ARCHITECTURE]
    expect(field in records[0], f"data set {name!r} has no {what}, which {model.META_ARCHITECTURE} learns from")
    if classes:
        here, there = num_classes(cfg), len(metadata.get(classes, ()))
        expect(here == there, f"{key} is {here}, but data set {name!r} has {there} classes")


def inspect_records(cfg: CfgNode, name: str, records: list[dict], *, to_learn: bool) -> list[Note]:
    """What is to be said of the boxes of a detector's data set; see inspect_boxes."""
    if cfg.MODEL.META_ARCHITECTURE != "GeneralizedRCNN":
        return []
    metadata = MetadataCatalog.get(name)
    if not to_learn and metadata.get("evaluator_type") == "pascal_voc":
        check_voc_truth(name, Path(metadata.dirname), metadata.split)
    if cfg.MODEL.MASK_ON:
        check_masks(name, records, cfg.INPUT.MASK_FORMAT, to_learn=to_learn)
    return inspect_boxes(name, records, metadata.thing_classes, to_learn=to_learn)


def _check_pixelwise(cfg: CfgNode) -> None:
    head, resnet = cfg.MODEL.SEM_SEG_HEAD, cfg.MODEL.RESNETS
    check_input(cfg)
    expect(
        len(head.IN_FEATURES) == 1 and set(head.IN_FEATURES) <= set(resnet.OUT_FEATURES),
        f"MODEL.SEM_SEG_HEAD.IN_FEATURES {head.IN_FEATURES}: expected one of MODEL.RESNETS.OUT_FEATURES "
        f"({', '.join(resnet.OUT_FEATURES)})",
    )
    expect(
        len(head.ASPP_DILATIONS) == 3,
        f"MODEL.SEM_SEG_HEAD.ASPP_DILATIONS {head.ASPP_DILATIONS}: expected three, one per branch",
    )
    expect(head.IGNORE_VALUE == VOID, f"MODEL.SEM_SEG_HEAD.IGNORE_VALUE {head.IGNORE_VALUE}: expected {VOID}")
    if cfg.MODEL.META_ARCHITECTURE == "DepthEstimator":
        expect_one_of(cfg, "MODEL.SEM_SEG_HEAD.NAME", PIXELWISE_HEADS)
        expect_one_of(cfg, "MODEL.DEPTH.LOSS", DEPTH_LOSSES)
        outputs = head.NUM_CLASSES
        expect(outputs == 1, f"MODEL.SEM_SEG_HEAD.NUM_CLASSES {outputs}: a depth is a single number, expected 1")


def _check_pretraining(cfg: CfgNode, share: int) -> None:
    """What every method asks of the views and the monitors, then what cfg's own asks."""
    expect_one_of(cfg, "VIEWS.POLICY", POLICIES)
    expect(cfg.SOLVER.METRICS_PERIOD >= 0, f"SOLVER.METRICS_PERIOD {cfg.SOLVER.METRICS_PERIOD}: expected 0 or more")
    expect(cfg.INPUT.FORMAT == "RGB", f"INPUT.FORMAT {cfg.INPUT.FORMAT}: pretraining reads RGB")
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
    method_of(cfg).check(cfg, share)
