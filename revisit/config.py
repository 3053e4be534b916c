"""The configuration keys that Revisit adds to Detectron2's, their units, and their values in the paper.

The defaults below are the paper's kNN-MoCo on COCO wherever the paper gives a value. Keys that
Detectron2 already has (SOLVER.BASE_LR, MODEL.RESNETS.DEPTH, ...) keep their meaning. The keys of a method stand in its
own file under revisit/modeling/meta_arch/.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

from detectron2.config import CfgNode

DETECTORS = ("GeneralizedRCNN", "RetinaNet")  # meta-architectures that predict boxes
PIXELWISE = ("SemanticSegmentor", "DepthEstimator")  # those that predict every pixel
BIT_DEPTHS = (None, "auto", 1, *range(8, 17))
POLICIES = ("standard", "autoaugment", "standard_or_autoaugment")

AddKeys = Callable[[CfgNode], None]
_ADDED_BY: dict[str, AddKeys] = {}


def adds_keys(add: AddKeys) -> AddKeys:
    """Decorator: ``add_revisit_config`` calls the function, ``add(cfg)``, after it has added the core's own keys."""
    _ADDED_BY[f"{add.__module__}.{add.__qualname__}"] = add  # by name: a module that is reloaded replaces its own
    return add


def add_revisit_config(cfg: CfgNode) -> None:
    """Add Revisit's keys to a Detectron2 config, in place: the core's, then those of every ``adds_keys`` function."""
    # Modules that are imported before anything is built, such as ("my_package.my_method",): the methods, heads, data
    # sets and config keys that they register are then known by name. Python's path first, then the working directory.
    cfg.IMPORTS = ()
    _add_schedule_keys(cfg)
    _add_backbone_keys(cfg)
    _add_view_keys(cfg)
    _add_pixelwise_keys(cfg)
    # Of images with more than 8 bits a sample: values of 0 to 2**BIT_DEPTH - 1 become grey levels of 0 to 255.
    # auto | 8 .. 16 | 1 (floats of 0 to 1). None is auto: of it yacs lets a key become a word or a number.
    cfg.INPUT.BIT_DEPTH = None

    # Weighted-kNN classification of a labelled data set with the frozen backbone. The images that are
    # classified are DATASETS.TEST; when they are classified, TEST.EVAL_PERIOD or TEST.EVAL_EPOCHS.
    cfg.KNN_EVAL = CfgNode()
    cfg.KNN_EVAL.BANK = ""  # labelled data set whose images vote; "" switches the monitor off
    cfg.KNN_EVAL.NUM_NEIGHBORS = 20
    cfg.KNN_EVAL.TEMPERATURE = 0.07  # votes weigh exp(cosine / temperature)
    cfg.KNN_EVAL.IMAGE_SIZE = 224  # px; short side resized to 256/224 of it, then the centre crop
    cfg.KNN_EVAL.LINEAR = False  # fit a logistic regression to the bank too: linear_top1
    # What can be said of the features of images without labels, whenever the network is evaluated: rankme, alignment,
    # uniformity, neighbor_stability (docs/reading-a-run.md). Sizes and neighbours are KNN_EVAL's.
    cfg.MONITOR = CfgNode()
    # Data set, such as "folder:/data/photos"; "train" is the first of DATASETS.TRAIN; "" switches the monitor off.
    cfg.MONITOR.IMAGES = ""
    cfg.MONITOR.MAX_IMAGES = 2048  # spread evenly over it; rankme needs a few times as many as there are features
    # Services that track runs beside TensorBoard: "wandb", "mlflow", by their own settings (docs/training.md).
    cfg.WRITERS = ()
    for add in _ADDED_BY.values():
        add(cfg)


def value_of(cfg: CfgNode, key: str) -> Any:
    """Of a full key, such as ``MODEL.RESNETS.DEPTH``."""
    return reduce(getattr, key.split("."), cfg)


def metrics_period(cfg: CfgNode) -> int:
    """SOLVER.METRICS_PERIOD, decided."""
    return cfg.SOLVER.METRICS_PERIOD or (1 if cfg.MODEL.DEVICE == "cpu" else 20)


def evaluates_on_the_way(cfg: CfgNode) -> bool:
    """Whether a training evaluates before its end."""
    return cfg.TEST.EVAL_PERIOD > 0 or cfg.TEST.EVAL_EPOCHS > 0


def bit_depth(cfg: CfgNode) -> int | None:
    """INPUT.BIT_DEPTH as a number; None while it is auto, as it stays where no image has more than 8 bits."""
    value = cfg.INPUT.BIT_DEPTH
    return None if value in (None, "auto") else int(value)


def _add_schedule_keys(cfg: CfgNode) -> None:
    cfg.SOLVER.AMP.DTYPE = "bfloat16"  # of autocast, with SOLVER.AMP.ENABLED: bfloat16 | float16 (scaled loss)
    # "" | auto: before a pretraining begins, measure what it is the fastest in here, and set SOLVER.AMP and
    # MODEL.CHANNELS_LAST to that; "" leaves them as they are.
    cfg.SOLVER.PRECISION = ""
    # Passes over IMS_PER_BATCH / ACCUMULATION_STEPS images before each optimiser step: the memory of the part,
    # the gradient and the keys of the whole.
    cfg.SOLVER.ACCUMULATION_STEPS = 1
    # A length in epochs is turned into iterations with the real size of DATASETS.TRAIN. A positive
    # length in iterations (SOLVER.MAX_ITER, SOLVER.CHECKPOINT_PERIOD, TEST.EVAL_PERIOD) wins over it.
    cfg.SOLVER.EPOCHS = 0
    cfg.SOLVER.CHECKPOINT_EPOCHS = 0
    cfg.TEST.EVAL_EPOCHS = 0
    # Keep model_best.pth: the network of the evaluation whose main score is the best, of the first of DATASETS.TEST:
    # bbox/AP, sem_seg/mIoU, depth/rmse (the lowest), knn_top1 (which needs KNN_EVAL.BANK). Which one it was is in
    # best.json.
    cfg.TEST.KEEP_BEST = False
    # End a run after so many evaluations in a row without a better one, which KEEP_BEST keeps; 0: never.
    cfg.TEST.PATIENCE = 0
    cfg.SOLVER.STEP_EPOCHS = ()  # where given, they win over SOLVER.STEPS
    # Of the checkpoints in OUTPUT_DIR these stay: the newest CHECKPOINTS_KEPT (0: all), every CHECKPOINT_KEPT_EVERY-th
    # (0: none), and the final one.
    cfg.SOLVER.CHECKPOINTS_KEPT = 3
    cfg.SOLVER.CHECKPOINT_KEPT_EVERY = 5
    # Steps of pretraining between two readings of losses and monitors, for which the host waits for the device. A loss
    # that is not finite is noticed as late, but before any checkpoint. 0: 20 on a GPU, 1 on a CPU.
    cfg.SOLVER.METRICS_PERIOD = 0
    # Whether a run stops when a checkpoint cannot be written (a full disk), or continues with a warning.
    cfg.SOLVER.STOP_WITHOUT_CHECKPOINT = False
    cfg.SOLVER.OPTIMIZER = "SGD"  # SGD | Adam | AdamW, whose weight decay is no part of the gradient | LARS, timm's
    # Beside Detectron2's: PolynomialLR, (1 - iteration / MAX_ITER) ** POLY_POWER without warm-up.
    cfg.SOLVER.POLY_POWER = 0.9


def _add_backbone_keys(cfg: CfgNode) -> None:
    # For build_revisit_resnet_backbone. The width is Detectron2's own STEM_OUT_CHANNELS,
    # RES2_OUT_CHANNELS and (bottleneck blocks) WIDTH_PER_GROUP.
    cfg.MODEL.RESNETS.STEM_TYPE = "basic"  # basic: 7x7/2 conv + pool | cifar: 3x3/1 conv, no pool
    cfg.MODEL.RESNETS.RES4_STRIDE = 2  # 1 keeps the resolution of res3 without dilation
    cfg.MODEL.RESNETS.RES4_DILATION = 1  # 1 | 2 | 4; a dilated stage has stride 1
    cfg.MODEL.CHANNELS_LAST = False  # weights and maps in NHWC memory, faster where the hardware likes it
    cfg.MODEL.COMPILE = False  # torch.compile of the encoders: minutes at the start, a faster step on a GPU
    # Finetuning stops unless every backbone tensor found its value in MODEL.WEIGHTS.
    cfg.MODEL.ALLOW_PARTIAL_BACKBONE = False


def _add_view_keys(cfg: CfgNode) -> None:
    # Workers decode, cut and resize; colours, blur, AutoAugment and flips are the model's device's, batched.
    cfg.DATALOADER.AUGMENT_ON_DEVICE = False
    cfg.VIEWS = CfgNode()
    cfg.VIEWS.LARGE_SIZE = 160  # px, anchor and large positive; 224 in two-crop runs
    cfg.VIEWS.LARGE_SCALE = (0.2, 1.0)  # share of the image area
    cfg.VIEWS.NUM_SMALL = 4  # small positives per image; 0 is two-crop MoCo
    cfg.VIEWS.SMALL_SIZE = 96  # px
    cfg.VIEWS.SMALL_SCALE = (0.05, 0.14)  # share of the image area
    # Constrained multi-crop: the least share of a small crop's own area that lies inside the anchor.
    # 0 switches the constraint off. Paper text: 0.2 (the authors' code: 0.1).
    cfg.VIEWS.MIN_OVERLAP = 0.2
    # The largest IoU of anchor and large positive (the IoU study); 1 leaves them alone, 0 keeps them disjoint.
    cfg.VIEWS.MAX_IOU = 1.0
    # How crops are resized. area: halved by the means of 2 x 2 pixels, then bilinear, the faster one. antialias: PIL's
    # bilinear filter, as in the authors' code.
    cfg.VIEWS.RESAMPLING = "area"  # area | antialias
    # For images far larger than their crops need. True decodes a JPEG at 1/2, 1/4 or 1/8 of its size where every crop
    # keeps at least the pixels of its view, and accepts shards whose images were made smaller (tools/make_shards.py
    # --short-side). Views of such a JPEG move by up to half of one of their pixels, which may cost accuracy
    # (docs/results.md).
    cfg.VIEWS.REDUCED_IMAGES = False
    # Look of the positives; anchors always have the standard look. The paper's A+ is
    # standard_or_autoaugment.
    cfg.VIEWS.POLICY = "standard_or_autoaugment"
    # How often a standard look, otherwise MoCo-v2's (data/augmentation.py), is grey, and blurred. The blur has a sigma
    # of up to 2 px in views of any size; in small ones it can hide the texture (docs/results.md).
    cfg.VIEWS.GREY_PROBABILITY = 0.2
    cfg.VIEWS.BLUR_PROBABILITY = 0.5


def _add_pixelwise_keys(cfg: CfgNode) -> None:
    """Semantic segmentation and depth; what Detectron2 has already is in MODEL.SEM_SEG_HEAD and INPUT.CROP."""
    cfg.MODEL.SEM_SEG_HEAD.DILATION = 1  # of RevisitFCNHead's 3x3 convolutions; 6 for VOC
    cfg.MODEL.SEM_SEG_HEAD.ASPP_DILATIONS = (12, 24, 36)  # of RevisitDeepLabV3Head
    # Of RevisitDeepLabV3Head: deeplab | multi_task_code, the network of the code that the paper names for NYUD.
    cfg.MODEL.SEM_SEG_HEAD.VARIANT = "deeplab"
    cfg.MODEL.DEPTH = CfgNode()
    cfg.MODEL.DEPTH.LOSS = "mse"  # mse | l1, over the pixels whose depth is known
    # Training images are scaled by a factor from this range, or by one of these factors, then flipped and cut to
    # INPUT.CROP.SIZE px.
    cfg.INPUT.RANDOM_SCALE = (0.5, 2.0)
    cfg.INPUT.RANDOM_SCALE_SAMPLING = "range"  # range | choice
    cfg.INPUT.RANDOM_ROTATION = 0.0  # degrees: training images turn by at most this, either way, around their centre
    # (height, width) px: the whole image takes this size, whatever its shape, for training and tests. RANDOM_SCALE then
    # zooms in and out around its centre. None: images keep their shape.
    cfg.INPUT.SQUASH = None
    # How a segmentation returns to the size of the file: bilinear (scores) | nearest (classes).
    cfg.TEST.RESIZE_BACK = "bilinear"
