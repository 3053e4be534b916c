"""Detectron2's mapper of boxes and masks, with images by our reader: damaged and deep ones as everywhere else."""

import copy

import numpy as np
import torch
from PIL import Image
from pycocotools import mask as coco_mask

from revisit.data.finetuning.ignored import IGNORED, ObjectsAndIgnored
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.image_bytes import PADDED, UnreadableImageError
from revisit.data.images.reader import require_record
from revisit.data.sources.labels import read_ids
from revisit.errors import UserError

from detectron2.config import CfgNode
from detectron2.data import DatasetMapper
from detectron2.data import detection_utils as utils
from detectron2.data import transforms as T


def longest_side(cfg: CfgNode, is_train: bool) -> int:
    """The most px that a detector's resized image has."""
    return cfg.INPUT.MAX_SIZE_TRAIN if is_train else cfg.INPUT.MAX_SIZE_TEST


def too_thin(record: dict, longest: int) -> str:
    """What is wrong with an image whose short side would have no pixel when the long one has ``longest``; else ""."""
    height, width = record.get("height", 1), record.get("width", 1)
    if 2 * min(height, width) * longest >= max(height, width):  # as Detectron2 rounds
        return ""
    return f"{record['file_name']}: {width} x {height} px are too thin: with {longest} px on the long side none is left"


def expect_size(record: dict, pixels: np.ndarray) -> None:
    """Raise UserError for an image of another size than its record, which gets one where it has none: its masks would
    be drawn in that size."""
    try:
        utils.check_image_size(record, pixels)
    except utils.SizeMismatchError as error:
        raise UserError(" ".join(str(error).split())) from error


class ChannelsInput(T.AugInput):
    """What Detectron2 transforms of an (H, W, C) uint8 image, each channel as if it were alone.

    Its resizing is PIL's, which refuses most numbers of channels, and of four takes the last for transparency.
    """

    def transform(self, tfm: T.Transform) -> None:
        self.image, *others = np.ascontiguousarray(self.image.transpose(2, 0, 1))
        super().transform(tfm)
        self.image = np.stack([self.image, *map(tfm.apply_image, others)], axis=-1)


class DetectionMapper(DatasetMapper):
    """DatasetMapper with our reader; its ``__call__`` names the function that reads, so the steps are repeated here.

    Raises:
        UserError: on a call, an image whose size is not its record's; for tests also one that is of no use.
        UnreadableImageError: for training, an image that cannot be read, or is too thin.
    """

    def __init__(self, cfg: CfgNode, is_train: bool):
        super().__init__(cfg, is_train)
        self._pixels = pixel_format(cfg)
        self._longest = longest_side(cfg, is_train)
        mean = np.round(cfg.MODEL.PIXEL_MEAN).clip(0, 255).astype(np.uint8)
        self._fill = mean[::-1] if cfg.INPUT.FORMAT == "BGR" else mean  # as ``read`` has the channels

    def read(self, record: dict) -> np.ndarray:
        """The (H, W, C) uint8 pixels of a record's image."""
        return require_record(record, self._pixels, like_pil=True, replaceable=self.is_train)

    def __call__(self, record: dict, pixels: np.ndarray | None = None) -> dict:
        """Detectron2's; ``pixels`` are those of ``read`` where the caller has them."""
        record = copy.deepcopy(record)
        pixels = self.read(record) if pixels is None else pixels
        if PADDED in record:
            pixels = self._padded(record, pixels)
        expect_size(record, pixels)
        if problem := too_thin({**record, "height": pixels.shape[0], "width": pixels.shape[1]}, self._longest):
            raise UnreadableImageError(problem) if self.is_train else UserError(problem)
        labels = None  # of panoptic segmentation
        if "sem_seg_file_name" in record:
            labels = read_ids(record.pop("sem_seg_file_name"))
        seen = self._seen(pixels, labels)
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

    def _padded(self, record: dict, pixels: np.ndarray) -> np.ndarray:
        """A window with the mean where its image has ended; the record's size follows, in place."""
        side, (height, width) = record[PADDED], pixels.shape[:2]
        padded = np.tile(self._fill, (side, side, 1))
        padded[:height, :width] = pixels
        record["height"] = record["width"] = side
        for annotation in record.get("annotations", ()):
            if isinstance(annotation.get("segmentation"), dict):
                annotation["segmentation"] = _in_corner(annotation["segmentation"], side)
        return padded

    def _transform_annotations(self, record: dict, transforms: T.Transform, size: tuple[int, int]) -> None:
        """Detectron2's, which drops crowds; those that are IGNORED are kept as boxes."""
        ignored = [each for each in record["annotations"] if each.get(IGNORED)]
        boxes = [utils.transform_instance_annotations(_box_of(each), transforms, size)["bbox"] for each in ignored]
        if any(not each.get(IGNORED) and not each.get("iscrowd", 0) for each in record["annotations"]):
            super()._transform_annotations(record, transforms, size)
        else:  # Detectron2 would look for masks of no object
            del record["annotations"]
            record["instances"] = utils.annotations_to_instances([], size)
        if boxes:
            record["instances"] = ObjectsAndIgnored(record["instances"], torch.as_tensor(np.stack(boxes)).float())

    def _seen(self, pixels: np.ndarray, labels: np.ndarray | None) -> T.AugInput:
        if self._pixels.channels:
            return ChannelsInput(pixels, sem_seg=labels)
        return T.AugInput(utils.convert_PIL_to_numpy(Image.fromarray(pixels), self.image_format), sem_seg=labels)


def _in_corner(mask: dict, side: int) -> dict:
    """Run lengths of a mask in the upper left corner of a square."""
    height, width = mask["size"]
    padded = np.pad(coco_mask.decode(mask), ((0, side - height), (0, side - width)))
    return coco_mask.encode(np.asfortranarray(padded))


def _box_of(annotation: dict) -> dict:
    return {key: annotation[key] for key in ("bbox", "bbox_mode")}
