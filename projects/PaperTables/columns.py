"""What the columns of the paper's tables are measured with: on the real data, and on ToyScenes."""

from __future__ import annotations

from dataclasses import dataclass

FINETUNE = "tools/train_net.py"


@dataclass(frozen=True)
class Evaluation:
    """One way to judge a backbone.

    Args:
        program: tools/train_net.py, which finetunes and writes evaluation.json, or a project's run.py, which writes
            results.json.
        score: where the number stands in that file.
        options: KEY VALUE pairs.
    """

    program: str
    config: str
    score: tuple[str, ...]
    options: tuple[str, ...] = ()

    @property
    def result(self) -> str:
        return "evaluation.json" if self.program == FINETUNE else "results.json"


@dataclass(frozen=True)
class Column:
    """By profile; without a toy form, ToyScenes has nothing that asks the same question."""

    paper: Evaluation
    toy: Evaluation | None
    digits: int = 1


def _finetune(config: str, *score: str, options: tuple[str, ...] = ()) -> Evaluation:
    return Evaluation(FINETUNE, f"configs/{config}.yaml", score, options)


def _study(project: str, config: str, *score: str, options: tuple[str, ...] = ()) -> Evaluation:
    folder = f"projects/{project}"
    return Evaluation(f"{folder}/run.py", f"{folder}/configs/{config}.yaml", score, options)


def _linear(config: str, score: str, toy: tuple[str, ...] | None = None) -> Column:
    paper = _study("LinearClassification", config, score)
    return Column(paper, None if toy is None else _study("LinearClassification", "toy", score, options=toy))


def _videos(score: str) -> Column:
    return Column(_study("LabelPropagation", "davis2017_R50", score), _study("LabelPropagation", "toy", score))


def _segments(score: str, toy: str) -> Column:
    return Column(_study("SegmentRetrieval", "voc_R50", score), _study("SegmentRetrieval", "toy", toy))


# A third of the toy configs' own schedules, so that a whole table takes less than an hour on two cores.
_SHORT = {
    "voc": ("SOLVER.EPOCHS", "3", "SOLVER.STEP_EPOCHS", "(2,)"),
    "cityscapes": ("SOLVER.EPOCHS", "3"),
    "nyud": ("SOLVER.EPOCHS", "2"),
    "depth": ("SOLVER.EPOCHS", "3"),
    "sgd": ("SOLVER.EPOCHS", "6", "SOLVER.STEP_EPOCHS", "(4, 5)"),
}


_VOC_LABELS = (
    *("LINEAR.METHOD", "svm", "LINEAR.VALIDATION", "", "DATASETS.TRAIN", "('toy_voc_labels_trainval',)"),
    *("DATASETS.TEST", "('toy_voc_labels_test',)"),
)

COLUMNS: dict[str, Column] = {
    "seg_VOC": Column(
        _finetune("segmentation/voc_fcn_R50", "sem_seg", "mIoU"),
        _finetune("toy/segmentation_voc", "sem_seg", "mIoU", options=_SHORT["voc"]),
    ),
    "seg_Cityscapes": Column(
        _finetune("segmentation/cityscapes_fcn_R50", "sem_seg", "mIoU"),
        _finetune("toy/segmentation_cityscapes", "sem_seg", "mIoU", options=_SHORT["cityscapes"]),
    ),
    "seg_NYUD": Column(
        _finetune("segmentation/nyud_deeplab_R50", "sem_seg", "mIoU"),
        _finetune("toy/segmentation_nyud", "sem_seg", "mIoU", options=_SHORT["nyud"]),
    ),
    "det_VOC_AP": Column(
        _finetune("detection/voc_faster_rcnn_R50_C5", "bbox", "AP"), _finetune("toy/detection", "bbox", "AP")
    ),
    "depth_NYUD_rmse": Column(
        _finetune("depth/nyud_deeplab_R50", "depth", "rmse"),
        _finetune("toy/depth", "depth", "rmse", options=_SHORT["depth"]),
        digits=3,
    ),
    "VOC_SVM_mAP": _linear("voc07_svm", "mAP", _VOC_LABELS),
    "ImageNet": _linear("imagenet_sgd", "top1", ("LINEAR.METHOD", "sgd", *_SHORT["sgd"])),
    "Places": _linear("places365_sgd", "top1", ("LINEAR.METHOD", "knn")),
    "CIFAR10": _linear("cifar10", "top1", ("LINEAR.METHOD", "logistic")),
    "Cars": _linear("cars", "top1"),
    "Food": _linear("food101", "top1"),
    "Pets": _linear("pets", "top1"),
    "SUN": _linear("sun397", "top1"),
    "VOC": _linear("voc07", "mAP", _VOC_LABELS),
    "DAVIS_JF": _videos("J&F-Mean"),
    "Jm": _videos("J-Mean"),
    "Fm": _videos("F-Mean"),
    "7 classes": _segments("mIoU_7", toy="mIoU_5"),
    "21 classes": _segments("mIoU_21", toy="mIoU_11"),
}

# What a toy form asks instead, where the column's name would mislead.
TOY_FORMS = {
    "VOC_SVM_mAP": "the same on ToyScenes' VOC tree",
    "ImageNet": "ToyScenes' ten classes, held-out appearance, a layer by SGD",
    "Places": "the same classes by kNN",
    "CIFAR10": "the same classes by logistic regression",
    "VOC": "an SVM on ToyScenes' VOC tree",
    "7 classes": "5 striped classes of ToyScenes",
    "21 classes": "11 classes of ToyScenes",
}
