"""Detectron2's mapper of boxes and masks, with images by our reader: damaged and deep ones as everywhere else."""

import copy

import numpy as np
import torch
from PIL import Image

from revisit.data.deep_pixels import bit_depth
from revisit.data.labels import read_ids
from revisit.data.reader import require_record
from revisit.errors import UserError

from detectron2.config import CfgNode
from detectron2.data import DatasetMapper
from detectron2.data import detection_utils as utils
from detectron2.data import transforms as T


class DetectionMapper(DatasetMapper):
    """DatasetMapper with our reader; its ``__call__`` names the function that reads, so the steps are repeated here.

    Raises:
        UserError: on a call, an image that cannot be read, or whose size is not its record's.
    """

    def __init__(self, cfg: CfgNode, is_train: bool):
        super().__init__(cfg, is_train)
        self._bit_depth = bit_depth(cfg)

    def read(self, record: dict) -> np.ndarray:
        """The (H, W, 3) uint8 RGB pixels of a record's image."""
        return require_record(record, self._bit_depth, like_pil=True)

    def __call__(self, record: dict, pixels: np.ndarray | None = None) -> dict:
        """Detectron2's; ``pixels`` are those of ``read`` where the caller has them."""
        record = copy.deepcopy(record)
        pixels = self.read(record) if pixels is None else pixels
        try:
            utils.check_image_size(record, pixels)
        except utils.SizeMismatchError as error:
            raise UserError(" ".join(str(error).split())) from error
        labels = None  # of panoptic segmentation
        if "sem_seg_file_name" in record:
            labels = read_ids(record.pop("sem_seg_file_name"))
        image = utils.convert_PIL_to_numpy(Image.fromarray(pixels), self.image_format)
        seen = T.AugInput(image, sem_seg=labels)
        transforms = self.augmentations(seen)
        size = seen.image.shape[:2]
        record["image"] = torch.as_tensor(np.ascontiguousarray(seen.image.transpose(2, 0, 1)))
        if seen.sem_seg is not None:
            record["sem_seg"] = torch.as_tensor(seen.sem_seg.astype("long"))
        if self.proposal_topk is not None:
            utils.transform_proposals(record, size, transforms, proposal_topk=self.proposal_topk)
        annotations = record.pop("annotations", None)
        if self.is_train and annotations is not None:
            record["annotations"] = annotations
            self._transform_annotations(record, transforms, size)
        return record
