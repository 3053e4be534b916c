"""What the teacher finds in photographs without labels, drawn at every evaluation."""

import logging
from pathlib import Path

import numpy as np
import torch

from projects.Pictures.prediction_sheet import draw_objects
from projects.Pictures.tiles import PANEL, gallery, save_sheet
from projects.Teacher.samples import unlabelled_records
from projects.Teacher.teacher_detector import TeacherDetector, above, boxes_alone
from revisit.boxes.boxes import Boxes
from revisit.data.finetuning.detection_mapper import DetectionMapper
from revisit.data.images.deep_images import pixel_format
from revisit.data.sources.class_names import names_of, names_or_numbers
from revisit.data.sources.records import sample
from revisit.engine.evaluation_hooks import EVALUATION_HOOK_REGISTRY
from revisit.errors import UserError
from revisit.modeling.distributed import unwrap

from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, HookBase
from detectron2.evaluation import inference_context
from detectron2.utils import comm

ROWS, COLUMNS = 2, 3
FOLDER = "teacher"
GREY = 128

logger = logging.getLogger(__name__)


class TeacherPictures(HookBase):
    """Writes OUTPUT_DIR/teacher/iteration_N.png: the teacher's boxes that would be labels now, on the same photographs
    of DATASETS.UNLABELLED every time."""

    def __init__(self, model: TeacherDetector, cfg: CfgNode):
        records = unlabelled_records(cfg)
        self._model = model
        self._records = sample(records, ROWS * COLUMNS)
        self._mapper, self._shown = DetectionMapper(cfg, is_train=False), pixel_format(cfg).picture
        self._names = names_or_numbers(names_of(cfg.DATASETS.TRAIN[0]), len(model.thresholds))
        self._folder = Path(cfg.OUTPUT_DIR) / FOLDER

    def after_step(self) -> None:
        if not (self.trainer.is_evaluated and comm.is_main_process()):
            return
        path = self._folder / f"iteration_{self.trainer.iter:07d}.png"
        tiles = [self._tile(record) for record in self._records]
        rows = gallery(tiles, (), min(COLUMNS, len(tiles)))
        try:
            self._folder.mkdir(exist_ok=True)
            save_sheet(path, rows, title=f"the teacher after {self.trainer.iter + 1} iterations")
        except OSError as error:
            logger.error(f"{path} could not be written ({error}). The run continues")

    def _tile(self, record: dict) -> np.ndarray:
        """A photograph with boxes; a grey one where it cannot be read."""
        try:
            pixels = self._mapper.read(record)
            height, width = pixels.shape[:2]
            sample = {**self._mapper(record, pixels), "height": height, "width": width}
        except UserError as error:
            logger.warning(f"not drawn: {error}")
            return np.full((PANEL, PANEL, 3), GREY, np.uint8)
        network = self._model.teacher
        with torch.no_grad(), inference_context(network), boxes_alone(network):
            instances = network([sample])[0]["instances"]
        confident = Boxes.of_instances(above(instances, self._model.thresholds))
        return draw_objects(self._shown(pixels), confident, self._names)


@EVALUATION_HOOK_REGISTRY.register()
def teacher_pictures(trainer: DefaultTrainer) -> TeacherPictures | None:
    """Of a TeacherDetector."""
    model = unwrap(trainer.model)
    return TeacherPictures(model, trainer.cfg) if isinstance(model, TeacherDetector) else None
