"""An evaluator from outside the tree: the share of objects that any detection covers, for evaluator_type "recall"."""

from revisit.evaluation.registry import EVALUATOR_REGISTRY, Score

from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from detectron2.evaluation import DatasetEvaluator
from detectron2.structures import Boxes, BoxMode, pairwise_iou
from detectron2.utils import comm

LEAST_IOU = 0.5


@EVALUATOR_REGISTRY.register()
class RecallEvaluator(DatasetEvaluator):
    """Percent of the true boxes that some detection overlaps with an IoU of at least LEAST_IOU, whatever its class."""

    TYPES = ("recall",)
    SCORES = (Score("bbox/recall"),)
    NETWORKS = ()  # by default detectors stay about bbox/AP

    def __init__(self, dataset_name: str, cfg: CfgNode):
        records = DatasetCatalog.get(dataset_name)
        self._truth = {record["image_id"]: record["annotations"] for record in records}

    def reset(self) -> None:
        self._found, self._total = 0, 0

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        for record, output in zip(inputs, outputs, strict=True):
            objects = self._truth[record["image_id"]]
            corners = [BoxMode.convert(each["bbox"], each["bbox_mode"], BoxMode.XYXY_ABS) for each in objects]
            truth = Boxes(corners).to(output["instances"].pred_boxes.device)
            overlap = pairwise_iou(truth, output["instances"].pred_boxes)
            self._found += int((overlap >= LEAST_IOU).any(dim=1).sum())
            self._total += len(objects)

    def evaluate(self) -> dict[str, dict[str, float]]:
        parts = comm.gather((self._found, self._total))
        if not comm.is_main_process():
            return {}
        found, total = (sum(column) for column in zip(*parts, strict=True))
        return {"bbox": {"recall": 100 * found / total}}
