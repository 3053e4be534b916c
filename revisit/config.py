"""All config keys together: Revisit's own, each declared next to its owner, and the rules for Detectron2's.

A rule for a key of Detectron2's stands here only where a wrong value would run and give a wrong result without a word;
everything else Detectron2 and torch refuse by themselves.
"""

from importlib import import_module

from revisit.keys import (
    COUNT,
    DETECTORS,
    FINETUNING,
    KEYS,
    NETWORK,
    PIXELWISE,
    POSITIVE,
    RUN,
    SHARE,
    TRAINING,
    Rule,
    add_declared_keys,
    integer,
    list_of,
    number,
    of_detectron2,
    one_of,
    optional,
    registered,
)
from revisit.keys.reference import reference
from revisit.plugins import load_plugins

from detectron2.config import CfgNode, get_cfg
from detectron2.modeling import META_ARCH_REGISTRY

# The core's modules that declare keys, or bring in those that do.
OWNERS = ("modeling", "data", "data.loading.loader", "data.finetuning.pixel_mapper", "evaluation")
OWNERS += ("engine.merging", "engine.machine", "engine.precision", "engine.data_checks", "engine.pretrain_trainer")
OWNERS += ("checkpoint.start", "checkpoint.stem")
# Keys of earlier versions, and what to do instead.
REMOVED = {
    "DATALOADER.DECODE_ON_DEVICE": "set DATALOADER.AUGMENT_ON_DEVICE True, or raise DATALOADER.NUM_WORKERS",
    "VIEWS.REDUCED_IMAGES": "make smaller images once, by tools/make_shards.py --short-side",
}
# What other libraries call a key of SOLVER.
ELSEWHERE = {
    "BATCH_SIZE": "SOLVER.IMS_PER_BATCH",
    "LEARNING_RATE": "SOLVER.BASE_LR",
    "LR": "SOLVER.BASE_LR",
    "ITERATIONS": "SOLVER.MAX_ITER",
    "MAX_EPOCHS": "SOLVER.EPOCHS",
    "NUM_EPOCHS": "SOLVER.EPOCHS",
}


def add_revisit_config(cfg: CfgNode) -> None:
    """Add all declared keys to a Detectron2 config, in place: the core's, the plug-ins', and those of whatever was
    imported before."""
    for module in OWNERS:
        import_module(f"revisit.{module}")
    load_plugins()
    add_declared_keys(cfg)


def _on_the_scale_of_pixels(low: float) -> Rule:
    """A statistic of each channel on the scale of 0 to 255, never on that of 0 to 1."""
    levels = list_of(number(low, 255))
    return Rule(
        f"auto, or a number for each channel on the scale of grey levels, {low:g} to 255, in the order of INPUT.FORMAT",
        lambda values: levels.holds(values) and not (values and all(0 < value < 1 for value in values)),
    )


_TWO_STAGE, _NOTHING = "GeneralizedRCNN", "no network"

of_detectron2("MODEL.META_ARCHITECTURE", rule=registered(META_ARCH_REGISTRY, "META_ARCH_REGISTRY"))
of_detectron2("MODEL.PIXEL_MEAN", rule=_on_the_scale_of_pixels(0))
of_detectron2("MODEL.PIXEL_STD", rule=_on_the_scale_of_pixels(1))
of_detectron2("INPUT.FORMAT", rule=one_of("RGB", "BGR"))
of_detectron2("MODEL.SEM_SEG_HEAD.IGNORE_VALUE", rule=one_of(255))
of_detectron2("MODEL.BACKBONE.FREEZE_AT", rule=integer(0, 99, "(stages, or blocks of a ViT: 0 none, 1 the stem)"))
of_detectron2("MODEL.*_LOSS_WEIGHT", "MODEL.*.LOSS_WEIGHT", rule=number())
of_detectron2("MODEL.DEVICE", "MODEL.WEIGHTS", may_change=True, scope=RUN)
of_detectron2("DATASETS.TRAIN", "SOLVER.AMP.*", scope=RUN)
of_detectron2("SOLVER.AMP.ENABLED", "SOLVER.AMP.DTYPE", decides="precision")
of_detectron2("DATASETS.TEST", "CUDNN_BENCHMARK", may_change=True)

# Thresholds of a test may change in a resumed run, those of the training may not.
of_detectron2("MODEL.RPN.*_TOPK_TRAIN", "MODEL.RPN.*_TOPK_TEST", rule=COUNT)
of_detectron2("MODEL.RPN.*_TEST", "MODEL.RETINANET.*_TEST", "MODEL.ROI_HEADS.*_THRESH_TEST", may_change=True)
of_detectron2("MODEL.RETINANET.*_THRESH_TEST", "MODEL.ROI_HEADS.*_THRESH_TEST", rule=SHARE)
of_detectron2("MODEL.RPN.NMS_THRESH", "MODEL.ROI_HEADS.POSITIVE_FRACTION", rule=SHARE)
of_detectron2("MODEL.*.IOU_THRESHOLDS", rule=list_of(SHARE, least=1, rising=True), read_by=DETECTORS)
of_detectron2("MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS", "MODEL.RPN.BBOX_REG_WEIGHTS", rule=list_of(POSITIVE, 4))
of_detectron2("MODEL.RPN.SMOOTH_L1_BETA", "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA", rule=number())
of_detectron2("MODEL.RETINANET.SMOOTH_L1_LOSS_BETA", rule=number())  # of boxes; inf: a loss of 0
of_detectron2("MODEL.*.BATCH_SIZE_PER_IMAGE", rule=COUNT)  # of 0, the loss is 0
_LAYERS = integer(0, 99, "layers")  # each is built, even for a dry run
of_detectron2("MODEL.ROI_BOX_HEAD.NUM_*", "MODEL.ROI_MASK_HEAD.NUM_CONV", "MODEL.RETINANET.NUM_CONVS", rule=_LAYERS)
of_detectron2("MODEL.RPN.*", "MODEL.ROI_*", "MODEL.PROPOSAL_GENERATOR.*", "MODEL.MASK_ON", read_by=_TWO_STAGE)
of_detectron2("MODEL.RETINANET.*", read_by="RetinaNet")
of_detectron2("MODEL.ANCHOR_GENERATOR.*", "VIS_PERIOD", read_by=DETECTORS)
of_detectron2("MODEL.SEM_SEG_HEAD.*", read_by=PIXELWISE)
of_detectron2("MODEL.PANOPTIC_FPN.*", "VERSION", "SOLVER.REFERENCE_WORLD_SIZE", "TEST.AUG.*", read_by=_NOTHING)
of_detectron2("MODEL.LOAD_PROPOSALS", "DATASETS.*PROPOSAL*", read_by=_NOTHING)
of_detectron2("DATALOADER.SAMPLER_TRAIN", "DATALOADER.REPEAT_THRESHOLD", read_by=_NOTHING)
of_detectron2("MODEL.KEYPOINT_ON", "INPUT.MASK_FORMAT", read_by=_TWO_STAGE)

_SIDE = integer(0, 10**9, "px")
of_detectron2("INPUT.MIN_SIZE_TEST", "INPUT.MAX_SIZE_TEST", rule=_SIDE, may_change=True)
of_detectron2("INPUT.MIN_SIZE_TRAIN", rule=list_of(_SIDE, least=1))
of_detectron2("INPUT.MAX_SIZE_TRAIN", rule=_SIDE)
of_detectron2("INPUT.MIN_SIZE_*", "INPUT.MAX_SIZE_*", read_by=DETECTORS)
of_detectron2("INPUT.RANDOM_FLIP", rule=one_of("horizontal", "vertical", "none"), read_by=FINETUNING)
of_detectron2("INPUT.CROP.*", read_by=FINETUNING)
of_detectron2("DATALOADER.ASPECT_RATIO_GROUPING", "DATALOADER.FILTER_EMPTY_ANNOTATIONS", read_by=FINETUNING)
of_detectron2("DATALOADER.NUM_WORKERS", rule=integer(), may_change=True)

of_detectron2("SOLVER.BASE_LR", rule=number(open_low=True), may_change=True)
of_detectron2("SOLVER.WEIGHT_DECAY", rule=number(), may_change=True)
of_detectron2(
    "SOLVER.MAX_ITER", rule=integer(unit="(0: as many as SOLVER.EPOCHS are)"), may_change=True, decides="length", off=0
)
of_detectron2("SOLVER.WEIGHT_DECAY_*", rule=optional(number()), may_change=True)
of_detectron2("SOLVER.BIAS_LR_FACTOR", "SOLVER.GAMMA", "SOLVER.WARMUP_FACTOR", rule=number(), may_change=True)
of_detectron2("SOLVER.CLIP_GRADIENTS.CLIP_VALUE", rule=POSITIVE)  # a negative one turns gradients round
of_detectron2("SOLVER.WARMUP_METHOD", may_change=True)
of_detectron2("SOLVER.MOMENTUM", rule=number(0, 0.99999))

of_detectron2("SOLVER.CHECKPOINT_PERIOD", may_change=True, decides="checkpoints", off=0)
_PERIOD = integer(-1, unit="iterations (0: as TEST.EVAL_EPOCHS says; -1: a quarter of the run)")
of_detectron2("TEST.EVAL_PERIOD", rule=_PERIOD, may_change=True, decides="evaluations", off=0)
of_detectron2("TEST.DETECTIONS_PER_IMAGE", rule=COUNT, may_change=True, read_by=DETECTORS)
of_detectron2("TEST.KEYPOINT_OKS_SIGMAS", may_change=True, read_by=_TWO_STAGE)
of_detectron2("TEST.PRECISE_BN.NUM_ITER", rule=COUNT)  # of 0, all statistics would be 0
of_detectron2("TEST.PRECISE_BN.*", read_by=FINETUNING)
of_detectron2(
    "OUTPUT_DIR",
    rule=Rule("the name of a folder", lambda v: isinstance(v, str) and v != ""),
    may_change=True,
    scope=RUN,
)

# Of MODEL, what only a training reads, or what chooses among boxes; all else makes the network.
of_detectron2("MODEL.BACKBONE.FREEZE_AT", "MODEL.*LOSS*", "MODEL.*BETA", "MODEL.*.IOU*", scope=TRAINING)
of_detectron2("MODEL.*.PRIOR_PROB", "MODEL.*_TRAIN", "MODEL.*.BATCH_SIZE_PER_IMAGE", scope=TRAINING)
of_detectron2("MODEL.*.POSITIVE_FRACTION", "MODEL.*.PROPOSAL_APPEND_GT", "MODEL.*.TRAIN_ON_*", scope=TRAINING)
of_detectron2("MODEL.RPN.NMS_THRESH", "MODEL.RPN.BOUNDARY_THRESH", scope=TRAINING)
of_detectron2("MODEL.PROPOSAL_GENERATOR.MIN_SIZE", scope=TRAINING)
of_detectron2("INPUT.FORMAT", "MODEL.*", scope=NETWORK)


if __name__ == "__main__":
    add_revisit_config(get_cfg())
    print(reference(KEYS.values()), end="")
