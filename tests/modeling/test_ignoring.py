"""Where labels say that nothing is known, no detector learns that there is background; elsewhere nothing changes."""

import copy
import pickle

import pytest
import torch
from test_detectors import DETECTORS, TWO_STAGES
from tiny import tiny_config

from revisit.data.finetuning.ignored import ObjectsAndIgnored
from revisit.modeling.ignoring import ignore_marked

from detectron2.modeling import build_model
from detectron2.modeling.roi_heads import ROIHeads
from detectron2.structures import Boxes, Instances, pairwise_iou
from detectron2.utils.events import EventStorage

SIDE = 96
OBJECT = [8.0, 8.0, 40.0, 40.0]


def detector(kind):
    torch.manual_seed(0)
    return build_model(tiny_config(*DETECTORS[kind])).train()


def batch(ignored=None, boxes=(OBJECT,)):
    objects = Instances((SIDE, SIDE))
    objects.gt_boxes = Boxes(torch.tensor(boxes).reshape(-1, 4))
    objects.gt_classes = torch.zeros(len(boxes), dtype=torch.long)
    labels = objects if ignored is None else ObjectsAndIgnored(objects, torch.tensor(ignored))
    image = torch.randint(0, 256, (3, SIDE, SIDE), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return [{"image": image, "instances": labels, "height": SIDE, "width": SIDE}]


def losses(model, samples):
    torch.manual_seed(2)
    with EventStorage():
        return model(samples)


@pytest.mark.parametrize("kind", DETECTORS)
def test_without_ignored_boxes_losses_are_detectron2s_bit_for_bit(kind):
    model = detector(kind)
    usual, changed = copy.deepcopy(model), copy.deepcopy(model)
    ignore_marked(changed)
    ignore_marked(changed)
    expected, found = losses(usual, batch()), losses(copy.deepcopy(changed), batch())
    assert expected and found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert type(usual) in type(changed).__mro__ and changed.state_dict().keys() == usual.state_dict().keys()


@pytest.mark.parametrize("kind", DETECTORS)
def test_where_all_but_an_object_is_ignored_only_the_object_is_learned(kind, monkeypatch):
    model = detector(kind)
    ignore_marked(model)
    everywhere = [[0.0, 0.0, SIDE, SIDE]]
    seen = []
    if kind != "RetinaNet":
        sample = ROIHeads.label_and_sample_proposals
        monkeypatch.setattr(ROIHeads, "label_and_sample_proposals", lambda *args: seen.append(args) or sample(*args))
    found = losses(model, batch(everywhere))
    assert all(torch.isfinite(loss) for loss in found.values())
    for loss in losses(model, batch(everywhere, boxes=())).values():
        assert loss == 0
    for heads, proposals, targets in list(seen):
        with EventStorage():
            (kept,) = heads.label_and_sample_proposals(proposals, targets)
        assert not (kept.gt_classes == heads.num_classes).any()
        is_object = pairwise_iou(kept.proposal_boxes, Boxes(torch.tensor([OBJECT])))[:, 0] >= 0.5
        assert len(kept) == 0 or is_object.all()


def test_no_stage_of_a_cascade_learns_background_where_it_is_ignored(monkeypatch):
    options = ("MODEL.ROI_HEADS.NAME", "CascadeROIHeads", "MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG", True)
    torch.manual_seed(0)
    model = build_model(tiny_config(*TWO_STAGES, *options)).train()
    usual = copy.deepcopy(model)
    ignore_marked(model)
    expected, ours = losses(usual, batch()), losses(copy.deepcopy(model), batch())
    assert expected and all(torch.equal(ours[name], expected[name]) for name in expected)
    stages = {}
    for predictor in model.roi_heads.box_predictor:
        learn, seen = predictor.losses, stages.setdefault(predictor, [])
        monkeypatch.setattr(predictor, "losses", lambda _, each, a=learn, b=seen: b.extend(each) or a(_, each))
    losses(model, batch([[0.0, 0.0, SIDE, SIDE]]))
    assert len(stages) == 3 and all(map(len, stages.values()))
    learned = [each.gt_classes for seen in stages.values() for each in seen]
    assert not (torch.cat(learned) == model.roi_heads.num_classes).any()


@pytest.mark.parametrize("kind", ["FPN", "RetinaNet"])
def test_anchors_of_the_background_are_left_out_by_the_share_of_them_in_the_image_that_is_ignored(kind):
    model = detector(kind)
    part = model if kind == "RetinaNet" else model.proposal_generator
    label = "label_anchors" if kind == "RetinaNet" else "label_and_sample_anchors"
    background = model.num_classes if kind == "RetinaNet" else 0
    # In the ignored box; of which a third is outside of the image, and the rest is in it; half and less in it; apart.
    anchors = [[60.0, 60, 80, 80], [70, 60, 106, 84], [50, 60, 70, 80], [45, 60, 65, 80], [0, 60, 30, 90], OBJECT]
    (sample,) = batch([[60.0, 50.0, SIDE, SIDE]])
    expected, found = [], []
    for numbers in (expected, found):
        with EventStorage():
            (labels,), _ = getattr(part, label)([Boxes(torch.tensor(anchors))], [sample["instances"]])
        numbers += labels.tolist()
        ignore_marked(model)
    assert expected[:-1] == [background] * 5 and expected[-1] not in (background, -1)
    assert found == [-1, -1, -1, background, background, expected[-1]]


def test_ignored_boxes_go_along_to_a_device_and_through_workers():
    (sample,) = batch([[1.0, 2.0, 3.0, 4.0]])
    moved = pickle.loads(pickle.dumps(sample["instances"])).to("cpu")
    assert moved.ignored.tolist() == [[1, 2, 3, 4]] and moved.gt_boxes.tensor.tolist() == [OBJECT]
