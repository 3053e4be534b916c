"""What the value of a config key may be: one table of keys, ranges and units, to which methods and backbones add."""

import math
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from revisit.config import BIT_DEPTHS, POLICIES
from revisit.errors import expect

from detectron2.config import CfgNode


class Rule(NamedTuple):
    """What a value has to be: in words, with the unit, and as a test of a value of any type."""

    expected: str
    holds: Callable[[Any], bool]


def whole(low: int = 0, high: int = 2**31 - 1, unit: str = "") -> Rule:
    """A whole number from ``low`` to ``high``, both included."""
    limit = f"from {low} to {high}" if high < 2**31 - 1 else f"of at least {low}"
    return Rule(f"a whole number {limit}{unit and ' ' + unit}", lambda v: type(v) is int and low <= v <= high)


def real(low: float = 0.0, high: float = math.inf, unit: str = "", *, open_low: bool = False) -> Rule:
    """A finite number from ``low``, which ``open_low`` excludes, to ``high``."""
    bottom = f"above {low:g}" if open_low else f"of at least {low:g}"
    limit = bottom if math.isinf(high) else f"{bottom}, and at most {high:g}"

    def holds(value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300  # not nan either
        return number and (low < value if open_low else low <= value) and value <= high

    return Rule(f"a number {limit}{unit and ' ' + unit}", holds)


def one_of(*choices: object) -> Rule:
    """One of a few values."""
    words = ", ".join("''" if choice == "" else str(choice) for choice in choices)
    return Rule(f"one of {words}", lambda v: any(type(v) is type(choice) and v == choice for choice in choices))


def each(rule: Rule, count: int | None = None, *, least: int = 0, rising: bool = False) -> Rule:
    """A list of values that ``rule`` holds for: ``count`` of them, or at least so many, none smaller than the last."""
    number = f"{count} values" if count else f"at least {least} value{'s' * (least > 1)}" if least else "a list"
    order = ", in rising order" if rising else ""

    def holds(values: Any) -> bool:
        fits = isinstance(values, list | tuple) and len(values) >= least and count in (None, len(values))
        return fits and all(map(rule.holds, values)) and (not rising or list(values) == sorted(values))

    return Rule(f"{number}{order}, each {rule.expected}", holds)


def maybe(rule: Rule) -> Rule:
    """As the rule, or None."""
    return Rule(f"None, or {rule.expected}", lambda v: v is None or rule.holds(v))


def pixels(low: float, unit: str) -> Rule:
    """A statistic of each channel on the scale of 0 to 255, never on that of 0 to 1."""

    def holds(values: Any) -> bool:
        fits = isinstance(values, list | tuple) and len(values) == 3 and all(map(real(low, 255).holds, values))
        return fits and not all(0 < value < 1 for value in values)

    return Rule(f"3 numbers on the scale of grey levels, {low:g} to 255, {unit}", holds)


SHARE, POSITIVE, COUNT = real(0, 1), real(open_low=True), whole(1, 2**20)
PIXELS = whole(1, 2**14, "px")
RULES: dict[str, Rule] = {}


def add_rules(rules: Mapping[str, Rule]) -> None:
    """Add rules by dotted key; a key may have * for any part, and the last rule that fits a key counts."""
    RULES.update(rules)


def rule_of(key: str) -> Rule | None:
    """The rule of a dotted key, None where any value of the right type will do."""
    if key in RULES:
        return RULES[key]
    return next((rule for word, rule in reversed(RULES.items()) if "*" in word and fnmatchcase(key, word)), None)


def dotted_keys(node: dict, prefix: str = "") -> dict[str, Any]:
    """All keys of a config or of nested dicts, as in KEY VALUE, with their values."""
    values = {}
    for key, value in node.items():
        values |= dotted_keys(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return values


def shown(value: object) -> str:
    """A value in a message, cut short where it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def check_values(cfg: CfgNode) -> None:
    """Raise UserError for the first key whose value has no sense whatever the other keys say."""
    for key, value in dotted_keys(cfg).items():
        rule = rule_of(key)
        expect(rule is None or rule.holds(value), rule and f"{key} is {shown(value)}: expected {rule.expected}")


def _has_layer_norm() -> bool:
    from detectron2.layers import get_norm  # not at start-up: it takes a second

    try:
        return get_norm("LN", 1) is not None
    except KeyError:  # Detectron2 0.6
        return False


_COMMON_NORM = one_of("", "BN", "SyncBN", "naiveSyncBN", "FrozenBN", "GN", "nnSyncBN")
_NORM = Rule(
    f"{_COMMON_NORM.expected}, or LN where Detectron2 has one",
    lambda v: _COMMON_NORM.holds(v) or (v == "LN" and _has_layer_norm()),
)
_FEATURES = each(Rule("the name of a feature map", lambda v: isinstance(v, str) and v != ""))
_NAMES = each(Rule("a name of a data set, such as 'folder:/data/photos'", lambda v: isinstance(v, str) and v != ""))

add_rules(
    {
        "VERSION": one_of(2),
        "MODEL.DEVICE": Rule(
            "cpu, cuda or cuda:N", lambda v: isinstance(v, str) and bool(re.fullmatch(r"cpu|cuda(:\d+)?", v))
        ),
        "MODEL.PIXEL_MEAN": pixels(0, "in the order of INPUT.FORMAT"),
        "MODEL.PIXEL_STD": pixels(1, "in the order of INPUT.FORMAT"),
        "MODEL.BACKBONE.FREEZE_AT": whole(0, 5, "(stages: 0 none, 1 the stem, 5 all)"),
        "MODEL.*.NORM": _NORM,
        "MODEL.LOAD_PROPOSALS": Rule("False: proposals come from the network's own RPN here", lambda v: v is False),
        "MODEL.ANCHOR_GENERATOR.ANGLES": each(each(real(-180, 180, "degrees"), least=1), least=1),
        "MODEL.*.IOU_LABELS": each(whole(-1, 1), least=1),
        "MODEL.*.BBOX_REG_LOSS_TYPE": one_of("smooth_l1", "giou", "diou", "ciou"),
        "MODEL.*.POOLER_TYPE": one_of("ROIAlign", "ROIAlignV2", "ROIPool"),
        "MODEL.ROI_KEYPOINT_HEAD.CONV_DIMS": each(COUNT, least=1),
        "MODEL.ROI_KEYPOINT_HEAD.NUM_KEYPOINTS": COUNT,
        "MODEL.ROI_KEYPOINT_HEAD.MIN_KEYPOINTS_PER_IMAGE": whole(),
        "MODEL.PANOPTIC_FPN.COMBINE.STUFF_AREA_LIMIT": real(unit="px"),
        "MODEL.RETINANET.PRIOR_PROB": real(1e-6, 1 - 1e-6),
        "MODEL.RETINANET.TOPK_CANDIDATES_TEST": COUNT,
        "MODEL.RETINANET.FOCAL_LOSS_GAMMA": real(),
        "MODEL.RETINANET.FOCAL_LOSS_ALPHA": real(-1, 1),
        "MODEL.*.NUM_CLASSES": COUNT,
        "MODEL.*.IN_FEATURES": _FEATURES,
        "MODEL.*.OUT_FEATURES": _FEATURES,
        "MODEL.*.OUT_CHANNELS": COUNT,
        "MODEL.*.*_DIM": COUNT,
        "MODEL.*.NUM_CONV": whole(0, 64),
        "MODEL.*.NUM_CONVS": whole(0, 64),
        "MODEL.*.NUM_FC": whole(0, 64),
        "MODEL.*.LOSS_WEIGHT": real(0, 1e6),
        "MODEL.*.*_LOSS_WEIGHT": real(0, 1e6),
        "MODEL.*.*_THRESH": SHARE,
        "MODEL.*.*_THRESH_TEST": SHARE,
        "MODEL.*.POSITIVE_FRACTION": SHARE,
        "MODEL.*.IOU_THRESHOLDS": each(real(0, 1, open_low=True), least=1, rising=True),
        "MODEL.*.BATCH_SIZE_PER_IMAGE": COUNT,
        "MODEL.*.POOLER_RESOLUTION": whole(1, 256, "places"),
        "MODEL.*.POOLER_SAMPLING_RATIO": whole(0, 64),
        "MODEL.*.*_TOPK_*": COUNT,
        "MODEL.*.SMOOTH_L1_*BETA": real(),
        "MODEL.*.BBOX_REG_WEIGHTS": each(POSITIVE, 4),
        "MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS": each(each(POSITIVE, 4), least=1),
        "MODEL.ROI_BOX_CASCADE_HEAD.IOUS": each(SHARE, least=1, rising=True),
        "MODEL.RPN.BOUNDARY_THRESH": whole(-1, unit="px"),
        "MODEL.RPN.CONV_DIMS": each(
            Rule("a number of channels, or -1 for as many as before", lambda v: v == -1 or COUNT.holds(v)), least=1
        ),
        "MODEL.FPN.FUSE_TYPE": one_of("sum", "avg"),
        "MODEL.ANCHOR_GENERATOR.SIZES": each(each(real(0, 2**14, "px", open_low=True), least=1), least=1),
        "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": each(each(real(1e-3, 1e3), least=1), least=1),
        "MODEL.ANCHOR_GENERATOR.OFFSET": real(0, 0.999),
        "MODEL.PROPOSAL_GENERATOR.MIN_SIZE": real(unit="px"),
        "MODEL.SEM_SEG_HEAD.COMMON_STRIDE": one_of(1, 2, 4, 8, 16, 32),
        "MODEL.SEM_SEG_HEAD.IGNORE_VALUE": whole(0, 255),
        "MODEL.SEM_SEG_HEAD.DILATION": whole(1, 64),
        "MODEL.SEM_SEG_HEAD.ASPP_DILATIONS": each(whole(1, 256), 3),
        "MODEL.SEM_SEG_HEAD.VARIANT": one_of("deeplab", "multi_task_code"),
        "INPUT.MIN_SIZE_TRAIN": each(whole(8, 2**14, "px"), least=1),
        "INPUT.MIN_SIZE_TRAIN_SAMPLING": one_of("choice", "range"),
        "INPUT.MAX_SIZE_TRAIN": whole(8, 2**14, "px"),
        "INPUT.MIN_SIZE_TEST": whole(0, 2**14, "px (0: as they are)"),
        "INPUT.MAX_SIZE_TEST": whole(8, 2**14, "px"),
        "INPUT.RANDOM_FLIP": one_of("horizontal", "vertical", "none"),
        "INPUT.CROP.TYPE": one_of("relative", "relative_range", "absolute", "absolute_range"),
        "INPUT.CROP.SIZE": each(POSITIVE, 2),
        "INPUT.FORMAT": one_of("RGB", "BGR"),
        "INPUT.BIT_DEPTH": one_of(*BIT_DEPTHS),
        "INPUT.MASK_FORMAT": one_of("polygon", "bitmask"),
        "INPUT.RANDOM_SCALE": each(real(0, 64, open_low=True), least=1, rising=True),
        "INPUT.RANDOM_SCALE_SAMPLING": one_of("range", "choice"),
        "INPUT.RANDOM_ROTATION": real(0, 180, "degrees"),
        "INPUT.SQUASH": maybe(each(PIXELS, 2)),
        "DATASETS.TRAIN": _NAMES,
        "DATASETS.TEST": _NAMES,
        "DATASETS.PROPOSAL_FILES_*": Rule("(): proposals come from the network's own RPN here", lambda v: not v),
        "DATASETS.PRECOMPUTED_*": COUNT,
        "DATALOADER.NUM_WORKERS": whole(0, 1024, "(0: the training process reads by itself)"),
        "DATALOADER.REPEAT_THRESHOLD": SHARE,
        "DATALOADER.SAMPLER_TRAIN": Rule(
            "TrainingSampler, the one that resumes exactly", lambda v: v == "TrainingSampler"
        ),
        "SOLVER.MAX_ITER": whole(unit="(0: as many as SOLVER.EPOCHS are)"),
        "SOLVER.*EPOCHS": whole(),
        "SOLVER.STEP_EPOCHS": each(COUNT, rising=True),
        "SOLVER.STEPS": each(whole(), rising=True),
        "SOLVER.BASE_LR": real(0, 1e6, open_low=True),
        "SOLVER.LR_SCHEDULER_NAME": one_of("WarmupMultiStepLR", "WarmupCosineLR", "PolynomialLR"),
        "SOLVER.OPTIMIZER": one_of("SGD", "Adam", "AdamW", "LARS"),
        "SOLVER.AMP.DTYPE": one_of("bfloat16", "float16"),
        "SOLVER.PRECISION": one_of("", "auto"),
        "SOLVER.MOMENTUM": real(0, 0.99999),
        "SOLVER.WEIGHT_DECAY*": real(0, 1e3),
        "SOLVER.WEIGHT_DECAY_BIAS": maybe(real(0, 1e3)),
        "SOLVER.BIAS_LR_FACTOR": real(0, 1e3),
        "SOLVER.GAMMA": real(0, 1, open_low=True),
        "SOLVER.POLY_POWER": POSITIVE,
        "SOLVER.WARMUP_FACTOR": SHARE,
        "SOLVER.WARMUP_ITERS": whole(),
        "SOLVER.WARMUP_METHOD": one_of("linear", "constant"),
        "SOLVER.IMS_PER_BATCH": COUNT,
        "SOLVER.REFERENCE_WORLD_SIZE": whole(),
        "SOLVER.ACCUMULATION_STEPS": COUNT,
        "SOLVER.CHECKPOINT*": whole(),
        "SOLVER.METRICS_PERIOD": whole(unit="iterations (0: as the device likes it)"),
        "SOLVER.CLIP_GRADIENTS.CLIP_TYPE": one_of("value", "norm"),
        "SOLVER.CLIP_GRADIENTS.CLIP_VALUE": POSITIVE,
        "SOLVER.CLIP_GRADIENTS.NORM_TYPE": Rule(
            "a number above 0, which may be inf", lambda v: isinstance(v, int | float) and v > 0
        ),
        "TEST.EVAL_PERIOD": whole(unit="iterations (0: as TEST.EVAL_EPOCHS says)"),
        "TEST.EVAL_EPOCHS": whole(),
        "WRITERS": each(one_of("wandb", "mlflow")),
        "TEST.PATIENCE": whole(unit="evaluations (0: never)"),
        "TEST.RESIZE_BACK": one_of("bilinear", "nearest"),
        "TEST.DETECTIONS_PER_IMAGE": COUNT,
        "TEST.PRECISE_BN.NUM_ITER": COUNT,
        "TEST.EXPECTED_RESULTS": Rule("[]: results are not compared here", lambda v: not v),
        "TEST.KEYPOINT_OKS_SIGMAS": each(POSITIVE),
        "TEST.AUG.ENABLED": Rule("False: there is no test-time augmentation here", lambda v: v is False),
        "TEST.AUG.MIN_SIZES": each(PIXELS, least=1),
        "TEST.AUG.MAX_SIZE": PIXELS,
        "OUTPUT_DIR": Rule("the name of a folder", lambda v: isinstance(v, str) and v != "" and "\0" not in v),
        "SEED": whole(-1, 2**31 - 1),
        "VIS_PERIOD": whole(),
        "VIEWS.*_SIZE": PIXELS,
        "VIEWS.*_SCALE": each(real(0, 1, "of the image", open_low=True), 2, rising=True),
        "VIEWS.NUM_SMALL": whole(0, 64),
        "VIEWS.MIN_OVERLAP": SHARE,
        "VIEWS.MAX_IOU": SHARE,
        "VIEWS.GREY_PROBABILITY": SHARE,
        "VIEWS.BLUR_PROBABILITY": SHARE,
        "VIEWS.POLICY": one_of(*POLICIES),
        "VIEWS.RESAMPLING": one_of("area", "antialias"),
        "KNN_EVAL.NUM_NEIGHBORS": COUNT,
        "KNN_EVAL.TEMPERATURE": POSITIVE,
        "KNN_EVAL.IMAGE_SIZE": PIXELS,
        "MONITOR.MAX_IMAGES": whole(2, 2**20, "images"),
    }
)  # fmt: skip
