"""Detectron2's detectors where labels name places at which nothing is learned (ObjectsAndIgnored).

An anchor or a proposal that would be background, and of which at least LEAST_SHARE lies in such a place, is no example:
it has no loss. Objects are examples as ever, and so is all else; without such places nothing changes.
"""

from collections.abc import Iterator, Sequence
from functools import cache

from torch import Tensor, nn

from revisit.data.finetuning.ignored import ObjectsAndIgnored

from detectron2.modeling import RetinaNet
from detectron2.modeling.proposal_generator import RPN
from detectron2.modeling.roi_heads import CascadeROIHeads, ROIHeads
from detectron2.structures import Boxes, Instances, pairwise_ioa

LEAST_SHARE = 0.5  # of the area that an anchor has inside the image
_NO_EXAMPLE = -1  # Detectron2's label


def ignore_marked(model: nn.Module) -> None:
    """Let the detectors in a model learn nothing where ObjectsAndIgnored says so."""
    kinds = {RPN: _IgnoringRPN, RetinaNet: _IgnoringRetinaNet, ROIHeads: _IgnoringHeads}
    kinds[CascadeROIHeads] = _IgnoringCascade  # which is of ROIHeads too
    for module in model.modules():
        for kind, ignoring in kinds.items():
            if isinstance(module, kind) and not isinstance(module, ignoring):
                module.__class__ = _joined(ignoring, type(module))


@cache
def _joined(ignoring: type, kind: type) -> type:
    return type(kind.__name__, (ignoring, kind), {})


def _in_ignored(boxes: Boxes, labels: ObjectsAndIgnored) -> Tensor:
    """(N,) bool, which boxes lie in an ignored one by their share in the image."""
    inside = boxes.clone()
    inside.clip(labels.image_size)
    shares = pairwise_ioa(Boxes(labels.ignored), inside)
    return shares.amax(dim=0) >= LEAST_SHARE


def _marked(labels: Sequence[Instances]) -> Iterator[tuple[int, ObjectsAndIgnored]]:
    """Images of a batch that have such places, by their numbers."""
    return ((n, each) for n, each in enumerate(labels) if isinstance(each, ObjectsAndIgnored))


def _without_loss(numbers: list[Tensor], background: int, anchors: list[Boxes], labels: list[Instances]) -> None:
    """Change anchors' labels in place."""
    for n, each in _marked(labels):
        numbers[n][(numbers[n] == background) & _in_ignored(Boxes.cat(anchors), each)] = _NO_EXAMPLE


def _examples(proposals: list[Instances], background: int, labels: list[Instances]) -> list[Instances]:
    """Proposals without those that are no examples."""
    examples = list(proposals)
    for n, each in _marked(labels):
        is_background = examples[n].gt_classes == background
        examples[n] = examples[n][~(is_background & _in_ignored(examples[n].proposal_boxes, each))]
    return examples


class _IgnoringRPN:
    def label_and_sample_anchors(self, anchors: list[Boxes], gt_instances: list[Instances]) -> tuple:
        numbers, boxes = super().label_and_sample_anchors(anchors, gt_instances)
        _without_loss(numbers, 0, anchors, gt_instances)
        return numbers, boxes


class _IgnoringRetinaNet:
    def label_anchors(self, anchors: list[Boxes], gt_instances: list[Instances]) -> tuple:
        numbers, boxes = super().label_anchors(anchors, gt_instances)
        _without_loss(numbers, self.num_classes, anchors, gt_instances)
        return numbers, boxes


class _IgnoringHeads:
    def label_and_sample_proposals(self, proposals: list[Instances], targets: list[Instances]) -> list[Instances]:
        sampled = super().label_and_sample_proposals(proposals, targets)
        return _examples(sampled, self.num_classes, targets)


class _IgnoringCascade:
    """Stages after the first label the boxes of the one before."""

    def _match_and_label_boxes(
        self, proposals: list[Instances], stage: int, targets: list[Instances]
    ) -> list[Instances]:
        labelled = super()._match_and_label_boxes(proposals, stage, targets)
        return _examples(labelled, self.num_classes, targets)
