"""The rows of the paper's tables: where each backbone comes from, at the paper's scale and on ToyScenes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pretraining:
    """A run of tools/train_net.py.

    Args:
        options: KEY VALUE pairs that make it another run than the config's.
        length: those that say how long it is.
        toy_data: of ToyScenes that are drawn for this run alone: the arguments of make_toy_scenes.py, and the folder of
            images in them.
    """

    config: str
    options: tuple[str, ...] = ()
    length: tuple[str, ...] = ()
    toy_data: tuple[tuple[str, ...], str] | None = None

    @property
    def name(self) -> str:
        """The run's folder, the same in every table that has it."""
        words = (self.config.removeprefix("configs/").removesuffix(".yaml"), *self.options)
        words += (*self.toy_data[0], self.toy_data[1]) if self.toy_data else ()
        return "_".join(word.strip("-(),'").replace("/", "-") for word in words)


@dataclass(frozen=True)
class Weights:
    """Somebody else's checkpoint, $DETECTRON2_DATASETS/weights/FILE, which tools/convert_to_d2.py reads."""

    file: str

    @property
    def name(self) -> str:
        return self.file.partition(".")[0]


@dataclass(frozen=True)
class RandomInit:
    """No pretraining."""

    name: str = "random_init"


Source = Pretraining | Weights | RandomInit


@dataclass(frozen=True)
class Row:
    """A row by the paper's label. Without a source it is what others published, or has no toy form."""

    label: str
    paper: Source | None
    toy: Source | None


def _run(config: str, *options: str) -> Pretraining:
    return Pretraining(f"configs/{config}.yaml", options)


# 924 iterations of 60 images, as many as the toy ablation's 7 epochs of 8,000, on the 2,000 of ToyScenes' default.
_LENGTH = ("SOLVER.EPOCHS", "28", "SOLVER.CHECKPOINT_EPOCHS", "7", "KNN_MOCO.WARMUP_EPOCHS", "12")


def _toy(config: str, *options: str) -> Pretraining:
    return Pretraining(f"configs/toy/{config}.yaml", options, _LENGTH)


def _toy_data(folder: str, *arguments: str, images: int = 2000) -> Pretraining:
    """The toy MoCo on images of their own; the same number of iterations whatever their number."""
    length = ("SOLVER.MAX_ITER", "924", "SOLVER.CHECKPOINT_PERIOD", "300")
    data = (("--num-images", str(images), *arguments), folder)
    return Pretraining("configs/toy/ablation/moco.yaml", (), length, data)


_OBJECTS, _SCENES = "object_centric/train", "coco/train2017"
_RANDOM = Row("Rand. init.", RandomInit(), RandomInit())
_TOY_DENSECL = _toy("densecl", "VIEWS.LARGE_SCALE", "(0.3, 1.0)", "MOCO.MOMENTUM", "0.995")  # as the rows beside it
_DENSECL = (_run("pretrain/densecl"), _TOY_DENSECL)
_DENSECL_200 = (_run("pretrain/densecl", "SOLVER.EPOCHS", "200"), _TOY_DENSECL)
_BIAS = "pretrain/data_bias"
_SETS = (
    Row("IN-118K", _run(f"{_BIAS}/imagenet_118k"), _toy_data(_OBJECTS)),
    Row("COCO", _run(f"{_BIAS}/coco"), _toy_data(_SCENES)),
    Row("OI-118K", _run(f"{_BIAS}/openimages_118k"), _toy_data(_SCENES, "--seed", "1")),
    Row("IN-118K-LT", _run(f"{_BIAS}/imagenet_118k_lt"), _toy_data(_OBJECTS, "--long-tailed")),
)
_MC_CC_M = (_run("pretrain/moco_mc_cc_m"), _toy("ablation/moco_mc_cc_m"))
_APLUS = (_run("pretrain/moco_mc_cc_m_aplus"), _toy("ablation/moco_mc_cc_m_aplus"))


def _sweep(label: str, paper: str, *options: str) -> Row:
    return Row(label, _run(f"pretrain/sweep/{paper}"), _toy("sweep/knn_k10", *options))


def _size(name: str, factor: int) -> Row:
    kind, folder, arguments = {"IN": ("imagenet", _OBJECTS, ()), "OI": ("openimages", _SCENES, ("--seed", "1"))}[name]
    thousands = 118 * factor
    paper = _run(f"{_BIAS}/{kind}_{thousands}k")
    return Row(f"{name} {factor}x {thousands}K", paper, _toy_data(folder, *arguments, images=500 * factor))


ROWS: dict[str, tuple[Row, ...]] = {
    "linear": _SETS,
    "transfer": (*_SETS, Row("BDD100K", _run(f"{_BIAS}/bdd100k_90k"), _toy_data("cityscapes/leftImg8bit/train"))),
    "ablation": (
        _RANDOM,
        Row("MoCo", _run("pretrain/moco"), _toy("ablation/moco")),
        Row("+MC", _run("pretrain/moco_mc"), _toy("ablation/moco_mc")),
        Row("+MC+CC", _run("pretrain/moco_mc_cc"), _toy("ablation/moco_mc_cc")),
        Row("+MC+CC+m", *_MC_CC_M),
        Row("+MC+CC+m+A", *_APLUS),
        Row("+MC+CC+m+A+NN", _run("pretrain/knn_moco"), _toy("ablation/knn_moco")),
    ),
    "davis": (
        Row("DenseCL (COCO)", *_DENSECL_200),
        Row("MAST (YT-VOS)", None, None),
        Row("STC (Kinetics)", None, None),
        Row("MoCo (COCO)", _run("pretrain/moco"), _toy("ablation/moco")),
        Row("MoCo+MC (COCO)", _run("pretrain/moco_mc"), _toy("ablation/moco_mc")),
    ),
    "segment_retrieval": (
        Row("SegSort", None, None),
        Row("SSL HG", None, None),
        Row("DenseCL", *_DENSECL_200),
        Row("MoCo", _run("pretrain/moco"), _toy("ablation/moco")),
        Row("MoCo+MC", _run("pretrain/moco_mc"), _toy("ablation/moco_mc")),
    ),
    "augmentation": (
        Row("Standard", *_MC_CC_M),
        Row(
            "AutoAugment",
            _run("pretrain/moco_mc_cc_m_autoaugment"),
            _toy("ablation/moco_mc_cc_m", "VIEWS.POLICY", "autoaugment"),
        ),
        Row("Standard or AutoAugment", *_APLUS),
    ),
    "knn": (
        *(_sweep(f"k {k}", f"knn_k{k}", "KNN_MOCO.NUM_NEIGHBORS", str(k)) for k in (1, 5, 10, 20, 50)),
        Row("lambda 0.0", *_MC_CC_M),
        *(_sweep(f"lambda {weight}", f"knn_lambda{weight}", "KNN_MOCO.WEIGHT", weight) for weight in ("0.1", "0.2")),
        _sweep("lambda 0.4", "knn_k20"),
        _sweep("lambda 0.8", "knn_lambda0.8", "KNN_MOCO.WEIGHT", "0.8"),
        _sweep("mined before the head", "knn_k20"),
        _sweep("mined after the head", "knn_after_head", "KNN_MOCO.MINING", "after_head"),
    ),
    "sota": (
        _RANDOM,
        Row("DenseCL", *_DENSECL),
        Row("VirTex", Weights("virtex.pth"), None),
        Row("MoCo", _run("pretrain/comparison/moco_800ep"), _toy("ablation/moco")),
        Row("+CC", _run("pretrain/comparison/moco_cc_800ep"), _toy("ablation/moco_mc_cc_m")),
        Row("+CC+A", _run("pretrain/comparison/moco_cc_aplus_800ep"), _toy("ablation/moco_mc_cc_m_aplus")),
        Row("+CC+A+kNN", _run("pretrain/comparison/knn_moco_800ep"), _toy("ablation/knn_moco")),
    ),
    "scaling": tuple(_size(name, factor) for name in ("IN", "OI") for factor in (1, 2, 4, 8)),
}
