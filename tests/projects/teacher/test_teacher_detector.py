"""The losses of a student on what its teacher found, and how the teacher follows; loops in float64."""

import math

import pytest
import torch
from commands import launch_forks
from small_detectors import (
    ONE_STAGE,
    SIDE,
    TWO_STAGES,
    found_boxes,
    labels,
    noise,
    overlap,
    small_config,
    small_teacher,
)
from torch import Tensor, nn
from trees import refused

from projects.Teacher.teacher_detector import _statistics
from revisit.config import add_revisit_config
from revisit.engine.setup import make_config
from revisit.keys import is_read

from detectron2.config import get_cfg
from detectron2.structures import BitMasks
from detectron2.utils import comm
from detectron2.utils.events import EventStorage

MANY = 10**5  # samples of regions: all of them
EVERY_ANCHOR = ("MODEL.RPN.BATCH_SIZE_PER_IMAGE", MANY, "MODEL.RPN.POSITIVE_FRACTION", 1.0)
MASKS = (
    "MODEL.MASK_ON",
    True,
    "MODEL.ROI_MASK_HEAD.NAME",
    "MaskRCNNConvUpsampleHead",
    "MODEL.ROI_MASK_HEAD.NUM_CONV",
    1,
)
FLIP = torch.tensor([[-1.0, 0, SIDE], [0, 1, 0], [0, 0, 1]], dtype=torch.float64)
FOUND = [
    found_boxes([[4, 4, 24, 24], [30, 34, 60, 62]], [2, 0], [0.9, 0.8]),
    found_boxes([[8, 20, 40, 44]], [1], [1.0]),
]
FLIPPED = [[[40, 4, 60, 24], [4, 34, 34, 62]], [[24, 20, 56, 44]]]
CLASSES = [[2, 0], [1]]


def photographs() -> list[dict]:
    return [{"image": image, "strong": image.flip(-1), "moves": FLIP} for image in noise(2)]


def labelled(seed: int = 5, each: int = 1) -> list[dict]:
    """A batch of two images with labels, and photographs without."""
    true = [labels([[4, 4, 24, 24]], [2]), labels([[8, 20, 40, 44], [2, 2, 30, 20]], [1, 0])]
    pairs = zip(noise(2, seed), true, photographs(), strict=True)
    return [{"image": image, "instances": boxes, "unlabelled": [seen] * each} for image, boxes, seen in pairs]


def recorded(module: nn.Module, call) -> list:
    """What ``call`` lets a module give out."""
    outputs = []
    handle = module.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    call()
    handle.remove()
    return outputs


def anchor_label(overlaps: list[list[float]], n: int, low: float, high: float) -> int:
    """Of anchor n, by IoU with each box: the box that it stands for, -1 for background, -2 for neither."""
    own = overlaps[n]
    best = max(range(len(own)), key=lambda m: own[m])
    is_a_box_s_best = any(own[m] == max(row[m] for row in overlaps) for m in range(len(own)))
    if own[best] >= high or is_a_box_s_best:
        return best
    return -1 if own[best] < low else -2


def rows_of(maps: list[Tensor], width: int) -> Tensor:
    """Maps (N, A W, h, w) of all levels as (N, anchors, W) float64, in the order of anchors."""
    parts = [m.double().unflatten(1, (-1, width)).permute(0, 3, 4, 1, 2).flatten(1, 3) for m in maps]
    return torch.cat(parts, dim=1).detach()


def test_of_two_stages_the_losses_are_those_of_objectness_and_classes_with_the_moved_boxes():
    model = small_teacher(*TWO_STAGES, *EVERY_ANCHOR, "TEACHER.WEIGHT", 3.0)
    heads, sampled, objectness, losses = model.student.roi_heads, [], [], {}
    sample = heads.label_and_sample_proposals
    heads.label_and_sample_proposals = lambda *given: sampled.append(sample(*given)) or sampled[-1]
    generator = model.student.proposal_generator

    def call():
        losses.update(model.unlabelled_losses(photographs(), FOUND))

    def call_and_record():
        objectness.extend(recorded(generator.rpn_head, call))

    with EventStorage(0):
        scores = recorded(heads.box_predictor, call_and_record)
    logits = rows_of(objectness[0][0], 1)[..., 0]
    sizes = [torch.empty(1, 1, *each.shape[2:]) for each in objectness[0][0]]
    anchors = torch.cat([boxes.tensor for boxes in generator.anchor_generator(sizes)]).double().tolist()
    total = 0.0
    for image, boxes in enumerate(FLIPPED):
        overlaps = [[overlap(anchor, box) for box in boxes] for anchor in anchors]
        for n in range(len(anchors)):
            label, x = anchor_label(overlaps, n, 0.3, 0.7), logits[image, n].item()
            if label > -2:
                total += math.log1p(math.exp(-x)) if label >= 0 else math.log1p(math.exp(x))
    assert losses["loss_rpn_cls_unlabelled"].item() == pytest.approx(3 * total / (2 * MANY), rel=1e-4)
    rows, terms = iter(scores[0][0].double().tolist()), []
    for regions, boxes, classes in zip(sampled[0], FLIPPED, CLASSES, strict=True):
        for region in regions.proposal_boxes.tensor.double().tolist():
            best = max(range(len(boxes)), key=lambda m: overlap(region, boxes[m]))
            target = classes[best] if overlap(region, boxes[best]) >= 0.5 else 3
            row = next(rows)
            terms.append(math.log(sum(map(math.exp, row))) - row[target])
    assert losses["loss_cls_unlabelled"].item() == pytest.approx(3 * sum(terms) / len(terms), rel=1e-5)
    assert losses.keys() == {"loss_rpn_cls_unlabelled", "loss_cls_unlabelled"}


def test_of_one_stage_it_is_the_focal_loss_with_the_moved_boxes():
    model = small_teacher(*ONE_STAGE, "TEACHER.WEIGHT", 3.0)
    head, losses = model.student.head, {}
    with EventStorage(0):
        ((logits, _),) = recorded(head, lambda: losses.update(model.unlabelled_losses(photographs(), FOUND)))
    rows = rows_of(logits, 3).tolist()
    sizes = [torch.empty(1, 1, *each.shape[2:]) for each in logits]
    anchors = torch.cat([boxes.tensor for boxes in model.student.anchor_generator(sizes)]).double().tolist()
    total, positives = 0.0, 0
    for image, (boxes, classes) in enumerate(zip(FLIPPED, CLASSES, strict=True)):
        overlaps = [[overlap(anchor, box) for box in boxes] for anchor in anchors]
        for n in range(len(anchors)):
            label = anchor_label(overlaps, n, 0.4, 0.5)
            positives += label >= 0
            for c in range(3) if label > -2 else ():
                p = 1 / (1 + math.exp(-rows[image][n][c]))
                is_class = label >= 0 and classes[label] == c
                total -= 0.25 * (1 - p) ** 2 * math.log(p) if is_class else 0.75 * p**2 * math.log(1 - p)
    expected = 3 * total / (0.9 * 100 + 0.1 * positives)
    assert losses.keys() == {"loss_cls_unlabelled"}
    assert losses["loss_cls_unlabelled"].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("options", [TWO_STAGES, (*TWO_STAGES, *MASKS), ONE_STAGE])
def test_after_the_burn_in_both_kinds_of_images_train_the_student_alone(options):
    model = small_teacher(*options, "TEACHER.THRESHOLD", (0.0,), "MODEL.RETINANET.SCORE_THRESH_TEST", 0.0)
    batch = labelled(each=2)
    for sample in batch:
        masks = torch.ones(len(sample["instances"]), SIDE, SIDE, dtype=torch.bool)
        sample["instances"].gt_masks = BitMasks(masks)
    losses = {}
    for iteration in (1, 2):  # the burn-in has two iterations
        with EventStorage(iteration):
            losses[iteration] = model(batch)
    added = losses[2].keys() - losses[1].keys()
    assert losses[1].keys() < losses[2].keys() and all(name.endswith("_unlabelled") for name in added)
    sum(losses[2].values()).backward()
    is_of_student = {name: name.startswith("student.") for name, _ in model.named_parameters()}
    assert all((p.grad is not None) == is_of_student[name] for name, p in model.named_parameters())
    table, count = model.tally.take()
    assert count == 4 and table[0].sum() > 0  # of the second iteration alone
    heads = getattr(model.student, "roi_heads", None)
    assert heads is None or heads.mask_on == ("MODEL.MASK_ON" in options)


@pytest.mark.parametrize("found", [[found_boxes([], [], [])] * 2, FOUND * 50])
@pytest.mark.parametrize("options", [TWO_STAGES, (*TWO_STAGES, *MASKS), ONE_STAGE])
def test_photographs_leave_the_losses_on_labels_as_they_are(options, found):
    """At the same weights, to 0.0: RetinaNet normalises by a running count of its positive anchors."""
    with_photographs, alone = small_teacher(*options), small_teacher(*options)
    for iteration in range(3):
        losses = []
        for model in (with_photographs, alone):
            batch = labelled(seed=iteration)
            for sample in batch:
                sample["instances"].gt_masks = BitMasks(torch.ones(len(sample["instances"]), SIDE, SIDE))
            torch.manual_seed(iteration)  # of the anchors and regions that are drawn
            with EventStorage(iteration):
                losses.append(model.student(batch))
                if model is with_photographs:
                    seen = photographs() * (len(found) // 2)
                    model.unlabelled_losses(seen, found)
        assert losses[0].keys() == losses[1].keys()
        assert all(torch.equal(loss, losses[1][name]) for name, loss in losses[0].items())


def test_each_stage_of_a_cascade_learns_its_classes():
    cascade = ("MODEL.ROI_HEADS.NAME", "CascadeROIHeads", "MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG", True)
    model = small_teacher(*TWO_STAGES, *cascade)
    with EventStorage(0):
        losses = model.unlabelled_losses(photographs(), FOUND)
    stages = {f"loss_cls_stage{n}_unlabelled" for n in range(3)}
    assert losses.keys() == {"loss_rpn_cls_unlabelled"} | stages


def test_in_photographs_where_nothing_is_found_all_is_background():
    model = small_teacher(*TWO_STAGES)
    with EventStorage(0):
        losses = model.unlabelled_losses(photographs(), [found_boxes([], [], [])] * 2)
    assert all(loss.isfinite() and loss > 0 for loss in losses.values())


def test_the_teacher_is_the_student_in_the_burn_in_then_its_moving_average_with_its_statistics():
    model = small_teacher(*TWO_STAGES)
    generator = torch.Generator().manual_seed(1)
    names = [name for name, _ in model.student.named_parameters()]
    names += [name for name, _ in model.student.named_buffers() if "running" in name]
    expected = {}
    for iteration in range(5):
        tensors = model.student.state_dict()
        for name in names:
            tensors[name].add_(torch.rand(tensors[name].shape, generator=generator))
        model.follow(iteration)
        for name in names:
            kept = 0.9 if iteration >= 2 else 0.0
            before = expected.get(name, torch.zeros_like(tensors[name], dtype=torch.float64))
            expected[name] = kept * before + (1 - kept) * tensors[name].double()
    found = model.teacher.state_dict()
    assert names and all(torch.allclose(found[name].double(), expected[name], rtol=1e-5) for name in names)
    others = found.keys() - set(names)
    assert all(torch.equal(found[name], model.student.state_dict()[name]) for name in others if "num_b" not in name)


def followed(momentum: float) -> list[Tensor]:
    """Statistics of student and teacher where plain BN gave each process's student its own."""
    model = small_teacher(*TWO_STAGES)
    model.momentum = momentum
    students, teachers = _statistics(model.student), _statistics(model.teacher)
    for values in students:
        values.fill_(1 + 2 * comm.get_rank())
    model.follow(iteration=2)
    return [torch.cat(students), torch.cat(teachers)]


def test_the_teacher_of_all_processes_follows_the_mean_of_their_statistics():
    (one, teacher), (other, same) = launch_forks(followed, 2, 0.0)
    assert (one == 1).all() and (other == 3).all()
    assert (teacher == 2).all() and torch.equal(teacher, same)


def test_a_plain_detectors_tensors_start_both_and_a_checkpoint_is_a_plain_detector_with_a_student():
    model = small_teacher(*TWO_STAGES)
    plain = {key: value for key, value in model.state_dict().items() if not key.startswith("student.")}
    assert plain.keys() == model.student.state_dict().keys()
    others = {key: value + 1 for key, value in plain.items()}
    assert not any(model.load_state_dict(others))
    assert all(torch.equal(value, others[key.removeprefix("student.")]) for key, value in model.state_dict().items())
    model.follow(0)
    assert model.evaluated(model) is model.teacher and model.teacher.training and not model.eval().teacher.training


def test_it_reads_the_keys_of_its_detector_and_of_looks():
    cfg = small_config(*TWO_STAGES)
    reads = ("MODEL.RPN.NMS_THRESH", "INPUT.MIN_SIZE_TRAIN", "VIEWS.POLICY", "TEACHER.WEIGHT", "DATASETS.UNLABELLED")
    assert all(is_read(cfg, key) for key in reads)
    others = ("MODEL.RETINANET.NUM_CONVS", "MOCO.TEMPERATURE", "VIEWS.NUM_SMALL", "MODEL.SEM_SEG_HEAD.NORM")
    assert not any(is_read(cfg, key) for key in others)
    plain = get_cfg()
    add_revisit_config(plain)
    assert not is_read(plain, "TEACHER.WEIGHT")


def test_the_recipe_of_a_retinanet_without_its_name_is_refused_with_the_key():
    options = (*ONE_STAGE, "TEACHER.DETECTOR", "GeneralizedRCNN", "MODEL.RPN.IN_FEATURES", ["p2", "p3"])
    message = "no map p2, which TEACHER.DETECTOR GeneralizedRCNN reads: for the recipe of a RetinaNet add"
    refused(message, small_teacher, *options)


def test_a_name_that_no_registry_has_is_not_taken_for_a_missing_map():
    with pytest.raises(KeyError, match="NoAnchors"):
        small_teacher(*TWO_STAGES, "MODEL.ANCHOR_GENERATOR.NAME", "NoAnchors")


def test_a_network_that_predicts_no_boxes_is_refused():
    options = ["MODEL.META_ARCHITECTURE", "TeacherDetector", "TEACHER.DETECTOR", "SemanticSegmentor"]
    message = "TEACHER.DETECTOR is 'SemanticSegmentor': expected one of GeneralizedRCNN, RetinaNet"
    refused(message, make_config, "configs/toy/faster_rcnn_fpn.yaml", options)
