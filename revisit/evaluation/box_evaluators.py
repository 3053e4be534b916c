"""Scores of boxes by Detectron2's evaluators, on your own annotations, too."""

import contextlib
import io
import json
import logging
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from revisit.boxes.predictions_file import OF_PREDICTIONS
from revisit.compat import has_compiled_operators
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import IDS
from revisit.data.sources.coco_truth import read_coco, scored_coco
from revisit.data.sources.records import as_scored, fingerprint
from revisit.data.sources.split_files import read_split
from revisit.errors import without_secrets
from revisit.evaluation.fast_coco import FastMatching, has_fast_coco
from revisit.evaluation.registry import EVALUATOR_REGISTRY, Score
from revisit.files import write_whole
from revisit.keys import DETECTORS, architecture_of

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.data.datasets import coco as coco_format
from detectron2.evaluation import (
    COCOEvaluator,
    PascalVOCDetectionEvaluator,
    coco_evaluation,
    pascal_voc_evaluation,
)
from detectron2.utils import comm
from detectron2.utils.file_io import PathManager

STANDARD_DETECTIONS = 100  # an image, as COCO's AP is defined

logger = logging.getLogger(__name__)


def _scores(task: str) -> tuple[Score, ...]:
    return tuple(Score(f"{task}/AP{part}") for part in ("", 50, 75, "s", "m", "l"))


class _Evaluation(FastMatching, COCOeval):
    """COCO's, of 100 detections an image."""


class _OfMany(FastMatching, coco_evaluation.COCOevalMaxDets):
    """Detectron2's, of another number."""


@EVALUATOR_REGISTRY.register()
class BoxEvaluator(COCOEvaluator):
    """COCOEvaluator against the truth of a file in COCO's format (``scored_coco``), and for classes in any order.

    A data set without such a file is scored against its records. A network that finds nothing at all has AP 0 of every
    class that has truth, of all tasks of the network. Of an image TEST.DETECTIONS_PER_IMAGE count, at least COCO's 100.
    Predictions for the second of DATASETS.TEST lie in ``inference/2``, and so on.
    """

    TYPES = ("coco",)
    SCORES = (*_scores("bbox"), *_scores("segm"), *_scores("keypoints"))
    NETWORKS = DETECTORS

    def __init__(self, dataset_name: str, cfg: CfgNode):
        counted = max(STANDARD_DETECTIONS, cfg.TEST.DETECTIONS_PER_IMAGE)
        first = Path(cfg.OUTPUT_DIR) / OF_PREDICTIONS
        others = {name: first.parent / str(n) / first.name for n, name in enumerate(cfg.DATASETS.TEST[1:], start=2)}
        self._name = dataset_name
        self._about = others.get(dataset_name, first)
        with _file_of_truth(dataset_name):
            super().__init__(
                dataset_name,
                tasks=tasks_of(cfg),
                output_dir=str(self._about.parent),
                use_fast_impl=has_compiled_operators() and not has_fast_coco(),
                max_dets_per_image=counted,
                kpt_oks_sigmas=cfg.TEST.KEYPOINT_OKS_SIGMAS,
            )
        logger.info(f"{dataset_name}: AP of the {counted} detections of an image that score best")

    def _eval_predictions(self, *predictions: object, **options: object) -> None:
        about = {
            "data_set": self._name,
            "classes": self._classes_by_id(),
            "images": fingerprint(get_records(self._name)),
        }
        write_whole(self._about, without_secrets(json.dumps(about)))
        ours = patch.multiple(coco_evaluation, COCOeval=_Evaluation, COCOevalMaxDets=_OfMany)
        with ours, contextlib.redirect_stdout(io.StringIO()):  # they print what the log has, and -1 for no score
            super()._eval_predictions(*predictions, **options)

    def _classes_by_id(self) -> dict[int, str]:
        """Names of classes by their id in PREDICTIONS, in the network's order."""
        names = self._metadata.thing_classes
        index = self._metadata.get(IDS) or {n: n for n in range(len(names))}
        return {id_: names[number] for id_, number in sorted(index.items(), key=lambda pair: pair[1])}

    def _derive_coco_results(
        self, coco_eval: COCOeval | None, iou_type: str, class_names: list[str] | None = None
    ) -> dict:
        # Detectron2 takes the classes to be in the order of the file's ids, in which pycocotools scores them. A class
        # that the file lacks has no truth, and no score.
        index = self._metadata.get(IDS)
        if class_names and index:
            in_file = sorted(index.keys() & self._coco_api.cats.keys())  # whose ids are of one kind
            class_names = [class_names[index[id_]] for id_ in in_file]
        if coco_eval is None:
            truth = self._coco_api.dataset
            coco_eval = evaluated(truth, {**truth, "annotations": []}, iou_type)
        return super()._derive_coco_results(coco_eval, iou_type, class_names)


def evaluated(truth: dict, found: dict, task: str) -> COCOeval:
    """What COCO's evaluation says of two dicts in its format: those of ``found`` have scores, and may be none at all,
    of which Detectron2 has no score, and pycocotools loads no empty list."""
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        evaluation = _Evaluation(_indexed(truth), _indexed(found), task)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def _indexed(content: dict) -> COCO:
    coco = COCO()
    coco.dataset = content
    coco.createIndex()
    return coco


@EVALUATOR_REGISTRY.register()
class VOCEvaluator(PascalVOCDetectionEvaluator):
    """Detectron2's, which reads the truth in the files of VOC's layout. A class that the split does not show counts as
    AP 0, as Detectron2 has it, also where that would have NaN: with a year from 2010 on, if the class is found.
    """

    TYPES = ("pascal_voc",)
    SCORES = (Score("bbox/AP"), Score("bbox/AP50"), Score("bbox/AP75"))
    NETWORKS = ()

    def __init__(self, dataset_name: str, cfg: CfgNode):
        super().__init__(dataset_name)

    def evaluate(self) -> dict | None:
        names = self._class_names
        predictions = self._predictions
        shown = self._shown()
        if not shown:  # Detectron2 fails where it knows no class
            logger.warning(f"{self._dataset_name} shows no object that counts, so each class counts as AP 0")
            return {"bbox": dict.fromkeys(("AP", "AP50", "AP75"), 0.0)} if comm.is_main_process() else None
        names_shown = [names[number] for number in shown]
        predicted = {place: predictions[number] for place, number in enumerate(shown) if number in predictions}
        with patch.multiple(self, _class_names=names_shown, _predictions=predicted):
            results = super().evaluate()
        if not results or len(shown) == len(names):
            return results
        of_shown = results["bbox"]
        logger.warning(
            f"{self._dataset_name} shows {len(names) - len(shown)} of {len(names)} classes nowhere, and each counts "
            f"as AP 0: AP of the others is {of_shown['AP']:.2f}"
        )
        return {"bbox": {name: score * len(shown) / len(names) for name, score in of_shown.items()}}

    def _shown(self) -> list[int]:
        """Numbers of the classes that the split has objects of; difficult ones are not counted. Each file is read once,
        as Detectron2 keeps what it has read."""
        files = map(self._anno_file_template.format, read_split(Path(self._image_set_path)))
        objects = chain.from_iterable(map(pascal_voc_evaluation.parse_rec, files))
        labels = {thing["name"] for thing in objects if not thing["difficult"]}
        return [number for number, name in enumerate(self._class_names) if name in labels]


def tasks_of(cfg: CfgNode) -> list[str]:
    """What a detector is scored for, as COCO's evaluation calls it, also where it finds nothing."""
    tasks = ["bbox"]
    if architecture_of(cfg) == "GeneralizedRCNN":
        tasks += ["segm"] * cfg.MODEL.MASK_ON
        tasks += ["keypoints"] * cfg.MODEL.KEYPOINT_ON
    return tasks


def _truth_of_records(name: str) -> dict:
    """In COCO's format, by the metadata's ids of classes: Detectron2 would make whole numbers of texts and floats."""
    metadata = MetadataCatalog.get(name)
    records = [
        {**record, "annotations": list(map(as_scored, record.get("annotations", ())))} for record in get_records(name)
    ]
    without_ids = SimpleNamespace(thing_classes=metadata.thing_classes)
    with patch.multiple(coco_format, DatasetCatalog={name: records}, MetadataCatalog={name: without_ids}):
        truth = coco_format.convert_to_coco_dict(name)
    index = metadata.get(IDS) or {n: n for n in range(len(metadata.thing_classes))}
    id_of = {number: id_ for id_, number in index.items()}
    for category in truth["categories"]:
        category["id"] = id_of[category["id"]]
    for annotation in truth.setdefault("annotations", []):  # without the list nothing would be evaluated
        annotation["category_id"] = id_of[annotation["category_id"]]
    return truth


@contextlib.contextmanager
def _file_of_truth(name: str) -> Iterator[None]:
    """Within the block, the metadata of a data set name a file of its current truth.

    Detectron2 would read the data set's own file unchecked, or reuse one that an earlier run has made.
    """
    metadata = vars(MetadataCatalog.get(name))  # its set() refuses changes
    if "json_file" in metadata:
        file = PathManager.get_local_path(metadata["json_file"])
        truth = scored_coco(read_coco(Path(file)), Path(metadata.get("image_root", "")), file)
        truth.setdefault("annotations", [])  # without the list nothing would be evaluated
    else:
        truth = _truth_of_records(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "truth.json"
        file.write_text(json.dumps(truth))
        with patch.dict(metadata, json_file=str(file)):
            yield
