"""Small detectors with a teacher, and what one may have found."""

import torch
from tiny import OBJECTS, tiny_config

from projects.Teacher.teacher_detector import TeacherDetector

from detectron2.config import CfgNode
from detectron2.modeling import build_model
from detectron2.structures import Boxes, Instances

SIDE = 64  # px, of the images
TEACHER = ("MODEL.META_ARCHITECTURE", "TeacherDetector", "TEACHER.BURN_IN", 2, "TEACHER.MOMENTUM", 0.9)
TWO_STAGES = (*OBJECTS, *TEACHER, "MODEL.RPN.IN_FEATURES", ["p2", "p3", "p4", "p5", "p6"])
TWO_STAGES += ("MODEL.ROI_HEADS.NUM_CLASSES", 3, "MODEL.ANCHOR_GENERATOR.SIZES", [[8], [16], [24], [32], [48]])
ONE_STAGE = (*OBJECTS, *TEACHER, "TEACHER.DETECTOR", "RetinaNet", "MODEL.RETINANET.NUM_CLASSES", 3)
ONE_STAGE += ("MODEL.RESNETS.OUT_FEATURES", ["res3", "res4", "res5"], "MODEL.FPN.IN_FEATURES", ["res3", "res4", "res5"])
ONE_STAGE += ("MODEL.ANCHOR_GENERATOR.SIZES", [[12], [16], [24], [32], [48]])


def small_config(*options: object) -> CfgNode:
    return tiny_config(*options)


def small_teacher(*options: object) -> TeacherDetector:
    """The same for the same options, in training mode."""
    torch.manual_seed(0)
    return build_model(small_config(*options)).train()


def found_boxes(boxes: list[list[float]], classes: list[int], scores: list[float]) -> Instances:
    """What a teacher finds in an image of SIDE px."""
    found = Instances((SIDE, SIDE))
    found.pred_boxes = Boxes(torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4))
    found.pred_classes = torch.tensor(classes, dtype=torch.int64)
    found.scores = torch.tensor(scores, dtype=torch.float32)
    return found


def labels(boxes: list[list[float]], classes: list[int]) -> Instances:
    """The labels of an image of SIDE px."""
    true = Instances((SIDE, SIDE))
    true.gt_boxes = Boxes(torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4))
    true.gt_classes = torch.tensor(classes, dtype=torch.int64)
    return true


def overlap(one: list[float], other: list[float]) -> float:
    """IoU of two boxes, in float64."""
    w = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    h = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return w * h / (sum(areas) - w * h)


def noise(count: int, seed: int = 0) -> list[torch.Tensor]:
    """Images, (3, SIDE, SIDE) uint8."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (3, SIDE, SIDE), dtype=torch.uint8, generator=generator) for _ in range(count)]
