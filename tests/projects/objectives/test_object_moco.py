"""Objects: losses and gradients against loops in float64, what is left out, whole runs and what detectors take."""

import logging
import math

import pytest
import torch
from checkpoints import load_into, run_checkpoint, write_converted
from methods import assert_momentum_networks_follow, assert_shuffled_keys_come_back_in_order
from runs import assert_numbers_are_explained, assert_resumes, load, train
from tiny import (
    C4,
    FEATURE_DIM,
    LEVELS,
    OBJECTS,
    direct_losses,
    freeze_batch_norm,
    random_objects,
    random_views,
    step,
    tiny_config,
    tiny_model,
)
from torch import Tensor
from torch.nn.functional import normalize
from trees import refused

from projects.Objectives.object_moco import ObjectMoCo
from projects.Planning.step_cost import step_cost
from revisit.errors import UserError
from revisit.modeling.queue_size import default_queue_size

from detectron2.checkpoint import DetectionCheckpointer
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_backbone
from detectron2.modeling.meta_arch.fcos import FCOS, FCOSHead


def views_of(batch: int) -> dict:
    views = random_views(batch, large=64, small=32, num_small=2)
    return views | random_objects(batch)


def object_moco(*options: object) -> ObjectMoCo:
    return tiny_model(*OBJECTS, *options).train()


def aligned_region(pyramid: dict[str, Tensor], image: int, box: list[float]) -> Tensor:
    """RoIAlign of 2 x 2 bins with 2 x 2 points each, (C, 2, 2), of the level that the box's area says."""
    x0, y0, x1, y1 = box
    level = 4 + math.floor(math.log2(math.sqrt((x1 - x0) * (y1 - y0)) / 24 + 1e-8))
    level = min(max(level, 2), 5)
    values = pyramid[f"p{level}"][image]
    _, height, width = values.shape
    bins = []
    for row in range(2):
        for column in range(2):
            points = []
            for i in range(2):
                for j in range(2):
                    y = (y0 + (y1 - y0) * (row + (i + 0.5) / 2) / 2) / 2**level - 0.5
                    x = (x0 + (x1 - x0) * (column + (j + 0.5) / 2) / 2) / 2**level - 0.5
                    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
                    a, b = min(int(y), height - 2), min(int(x), width - 2)
                    dy, dx = y - a, x - b
                    points.append(
                        (1 - dy) * ((1 - dx) * values[:, a, b] + dx * values[:, a, b + 1])
                        + dy * ((1 - dx) * values[:, a + 1, b] + dx * values[:, a + 1, b + 1])
                    )
            bins.append(sum(points) / 4)
    return torch.stack(bins, dim=1).unflatten(1, (2, 2))


def rows_by_loops(model: ObjectMoCo, views: Tensor, boxes: Tensor, momentum: bool) -> tuple[list[Tensor], list[Tensor]]:
    """norm(h(o)) and norm(o) of (B, n, 4) boxes, one at a time."""
    prefix = "momentum_" if momentum else ""
    backbone, roi_heads, head = (
        getattr(model, f"{prefix}{name}") for name in ("backbone", "roi_heads", "projection_head")
    )
    maps = backbone((views - model.pixel_mean) / model.pixel_std)
    after, before = [], []
    for image, its in enumerate(boxes.tolist()):
        for box in its:
            if math.isnan(box[0]):
                after.append(None), before.append(None)
                continue
            o = roi_heads.box_head(aligned_region(maps, image, box)[None])[0]
            after.append(head(o) / head(o).norm()), before.append(o / o.norm())
    return after, before


def losses_by_loops(model: ObjectMoCo, views: dict, weight: float, k: int, tau: float = 0.2) -> tuple[Tensor, Tensor]:
    """L_inst and lambda L_nn, as docs/method.md has them."""
    batch, queries = len(views["anchor"]), views["positive_objects"]
    with torch.no_grad():
        keys, _ = rows_by_loops(model, views["anchor"], views["anchor_objects"], momentum=True)
    keys = [keys[5 * i : 5 * i + 5] for i in range(batch)]
    pairs = []  # of a query after and before the head, and its key
    large = rows_by_loops(model, views["positive"], queries[:, :3], momentum=False)
    for n, (p, o) in enumerate(zip(*large, strict=True)):
        pairs.append((p, o, keys[n // 3][n % 3]))
    small = rows_by_loops(model, views["small"].flatten(0, 1), queries[:, 3:].reshape(-1, 1, 4), momentum=False)
    for n, (p, o) in enumerate(zip(*small, strict=True)):
        pairs.append((p, o, keys[n // 2][3 + n % 2]))
    inst = nearest = 0.0
    for p, o, key in pairs:
        if p is None:  # as one of which the network knows nothing
            inst, nearest = inst + math.log(len(model.queue.keys) + 1), nearest + math.log(len(model.queue.keys))
            continue
        scores = [p @ row / tau for row in model.queue.keys]
        partition = sum(score.exp() for score in scores)
        inst = inst - torch.log((p @ key / tau).exp() / ((p @ key / tau).exp() + partition))
        cosines = [float(o.detach() @ row) for row in model.queue.features]
        for n in sorted(range(len(cosines)), key=lambda n: -cosines[n])[:k]:
            nearest = nearest - torch.log(scores[n].exp() / partition) / k
    return inst / (5 * batch), weight * nearest / (5 * batch)


def test_losses_and_all_gradients_equal_loops_in_float64():
    """Pyramid levels, RoIAlign, rows, neighbours and both losses, one object at a time; convolutions are torch's."""
    model = freeze_batch_norm(object_moco().double())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("momentum_"):
                parameter.mul_(1.1)  # so that mixing up the encoders shows
    views = views_of(3)
    left_out = views["positive_objects"].isnan().any(dim=2)
    assert left_out.any() and not left_out.all()
    losses, storage = step(model, views)
    sum(losses.values()).backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    inst, nearest = losses_by_loops(model, views, 0.4, 5)
    (inst + nearest).backward()
    assert losses["loss_inst"].item() == pytest.approx(inst.item(), rel=1e-6)
    assert losses["loss_nn"].item() == pytest.approx(nearest.item(), rel=1e-6)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert found.keys() == trained and any("fpn_output5" in name for name in found)
    for name, parameter in model.named_parameters():
        if name in found:
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            assert torch.allclose(found[name], expected, rtol=1e-4, atol=1e-9), name
    assert storage.history("objects_seen").latest() == pytest.approx(100 * (1 - left_out.float().mean().item()))
    assert model.pending_keys[0]["keys"].shape == (15, 16)  # also of objects that are left out


def test_objects_without_a_place_are_left_out_and_a_batch_of_them_alone_moves_nothing():
    model, views = object_moco("NEIGHBORS.WEIGHT", 0.0), views_of(2)
    views["positive_objects"][:] = torch.nan
    losses, storage = step(model, views | {"label": torch.arange(len(views["anchor"]))})
    logged = {name: history.latest() for name, history in storage.histories().items()}
    assert all(map(math.isfinite, logged.values())) and logged["objects_seen"] == 0 and "contrast_top1" not in logged
    sum(losses.values()).backward()
    assert losses["loss_inst"].item() == pytest.approx(math.log(51))
    assert all(not p.grad.any() for p in model.parameters() if p.requires_grad)  # and each takes part, for DDP


def test_losses_of_images_are_those_of_knn_moco_beside_the_objects():
    model = freeze_batch_norm(object_moco("OBJECTS.IMAGE_WEIGHT", 0.5))
    views = views_of(3)
    losses, storage = step(model, views)
    logged = [value for value, _ in storage.history("loss_nn_raw").values()]
    assert logged == pytest.approx([losses["loss_nn"].item() / 0.4])  # whose curve has no losses of images in it
    alone, _ = step(freeze_batch_norm(object_moco()), views)
    assert {name: losses[name].item() for name in alone} == pytest.approx({n: x.item() for n, x in alone.items()})
    below, momentum = model.backbone.bottom_up, model.momentum_backbone.bottom_up
    with torch.no_grad():
        g = [model.pooled(below, images) for images in (views["positive"], *views["small"].unbind(1))]
        h = torch.stack([model.image_head(each) for each in g], dim=1)
        key = model.momentum_image_head(model.pooled(momentum, views["anchor"]))
    rows = (normalize(each, dim=-1).double().numpy() for each in (h, key, torch.stack(g, dim=1)))
    p, a, p_g = rows
    assert model.image_queue.length == model.queue.length // 5  # of as many images as the objects are of
    rings = model.image_queue.keys.double().numpy(), model.image_queue.features.double().numpy()
    inst, nearest = direct_losses(p, a, rings[0], p_g, rings[1], k=5)
    assert losses["image_loss_inst"].item() == pytest.approx(0.5 * inst, rel=1e-5)
    assert losses["image_loss_nn"].item() == pytest.approx(0.5 * 0.4 * nearest, rel=1e-5)


def test_the_queue_of_images_has_their_keys_and_features_in_the_batchs_order():
    model, views = freeze_batch_norm(object_moco("OBJECTS.IMAGE_WEIGHT", 0.5)), views_of(3)
    step(model, views | {"label": torch.tensor([5, 6, 7])})
    model.enqueue_pending_keys()
    assert model.queue.labels[:15].tolist() == [5] * 5 + [6] * 5 + [7] * 5  # of the objects of an image all
    for n, anchor in enumerate(views["anchor"]):
        with torch.no_grad():
            g = model.pooled(model.momentum_backbone.bottom_up, anchor[None])
            key = normalize(model.momentum_image_head(g))[0]
        torch.testing.assert_close(model.image_queue.keys[n], key, atol=1e-5, rtol=0)
        torch.testing.assert_close(model.image_queue.features[n], normalize(g)[0], atol=1e-5, rtol=0)
    assert model.image_queue.num_enqueued == 3


def test_a_run_resumes_bit_identical_and_explains_its_numbers(toy_datasets, tmp_path):
    options = (*OBJECTS, "MOCO.QUEUE_SIZE", 60, "OBJECTS.IMAGE_WEIGHT", 0.5, "SOLVER.MAX_ITER", 4)
    options += ("SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.CHECKPOINTS_KEPT", 0)
    train(tmp_path / "whole", *options)
    assert_numbers_are_explained(tmp_path / "whole")
    assert (tmp_path / "whole/neighbours_objects_0000003.png").exists()  # without any bank
    saved = load(tmp_path / "whole/model_final.pth")["model"]
    assert saved["queue.num_enqueued"] == 4 * 8 * 5 and saved["image_queue.num_enqueued"] == 4 * 8
    assert_resumes(tmp_path / "whole", tmp_path / "parts", 1, *options)


def test_a_dry_run_counts_a_step_without_boxes_that_have_values():
    cost = step_cost(tiny_config(*OBJECTS, "OBJECTS.IMAGE_WEIGHT", 1.0), 1)
    assert cost.shapes["positive_objects"] == [8, 5, 4] and cost.shapes["projection_head"] == [[40, 16]]
    assert cost.forward_flops > 0 and cost.backward_flops > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("VIEWS.SMALL_SIZE", 40), "SMALL_SIZE 40: the backbone's pyramid needs a multiple of 32 px"),
        (("VIEWS.MAX_IOU", 0.2), "MAX_IOU 0.2: expected 1, as objects lie in what views share"),
        (("OBJECTS.DRAWN_SHARE", 0.5), "DRAWN_SHARE 0.5: expected 0.0 without OBJECTS.PROPOSALS, as all are drawn"),
        (("MOCO.QUEUE_SIZE", 39), "QUEUE_SIZE 39 is smaller than the global batch of 40"),
        (("MOCO.QUEUE_SIZE", 44, "NEIGHBORS.NUM_NEIGHBORS", 9, "OBJECTS.IMAGE_WEIGHT", 1.0), "queue holds 8 images"),
    ],
)
def test_what_objects_cannot_be_learned_with_is_refused(options, message):
    refused(message, ObjectMoCo.check, tiny_config(*OBJECTS, *options), 8)


def pretrained(*options: object) -> dict:
    """A checkpoint whose batch norm has seen images."""
    content = run_checkpoint(*options)
    for name, values in content["model"].items():
        if name.endswith("running_mean"):
            values.uniform_(-0.1, 0.1)
    return content


def detector_config(kind: str, *options: object) -> CfgNode:
    """A detector over the backbone and the pyramid of OBJECTS."""
    maps = LEVELS[1:] if kind == "RetinaNet" else LEVELS
    cfg = tiny_config(*OBJECTS, "MODEL.META_ARCHITECTURE", kind, "MODEL.FPN.IN_FEATURES", maps)
    levels = ["p2", "p3", "p4", "p5", "p6"]
    cfg.merge_from_list(
        ["MODEL.RPN.IN_FEATURES", levels, "MODEL.RETINANET.IN_FEATURES", ["p3", "p4", "p5", "p6", "p7"]]
    )
    sizes = [[32], [64], [128], [256], [512]]
    cfg.merge_from_list(["MODEL.ANCHOR_GENERATOR.SIZES", sizes, "MODEL.ROI_HEADS.NUM_CLASSES", 3, *options])
    return cfg


@pytest.mark.parametrize("converted", [True, False])
@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("GeneralizedRCNN", (), ["40 of 40 pyramid", "4 of 4 box head"]),
        ("GeneralizedRCNN", ("MODEL.MASK_ON", True), ["40 of 40 pyramid", "4 of 4 box head"]),
        ("GeneralizedRCNN", ("MODEL.ROI_BOX_HEAD.FC_DIM", 32), ["40 of 40 pyramid", "the box head of"]),
        ("RetinaNet", (), ["30 of 30 pyramid", "the box head of"]),
    ],
)
def test_detectors_start_from_pyramid_and_box_head(kind, options, said, converted, tmp_path, caplog):
    content = pretrained(*OBJECTS)
    path = tmp_path / "weights.pth"
    write_converted(content, path) if converted else torch.save(content, path)
    with caplog.at_level(logging.INFO):
        model = load_into(detector_config(kind, *options), path)
    assert all(words in caplog.text for words in said)
    ours = content["model"]
    for key, value in model.state_dict().items():
        if key in ours and ("box_head" not in key or "4 of 4 box head" in said):
            assert torch.equal(value, ours[key]), key


def test_detectron2s_fcos_which_no_config_builds_takes_the_pyramid_too(tmp_path):
    path = write_converted(content := pretrained(*OBJECTS), tmp_path / "objects.pth")
    backbone, levels = build_backbone(detector_config("RetinaNet")), ["p3", "p4", "p5", "p6", "p7"]
    head = FCOSHead(input_shape=[ShapeSpec(channels=8)] * 5, conv_dims=[8], num_classes=3)
    pixels = {"pixel_mean": [0.0] * 3, "pixel_std": [1.0] * 3}
    fcos = FCOS(backbone=backbone, head=head, head_in_features=levels, num_classes=3, **pixels)
    DetectionCheckpointer(fcos).load(str(path))
    pyramid = {key: value for key, value in fcos.state_dict().items() if "fpn_" in key and "num_batches" not in key}
    assert len(pyramid) == 30 and all(torch.equal(content["model"][key], value) for key, value in pyramid.items())


def test_a_detector_with_another_pyramid_is_refused_by_name(tmp_path):
    path = write_converted(pretrained(*OBJECTS), tmp_path / "objects.pth")
    with pytest.raises(UserError, match="MODEL.FPN.OUT_CHANNELS is 16 here and 8 there"):
        load_into(detector_config("GeneralizedRCNN", "MODEL.FPN.OUT_CHANNELS", 16), path)
    with pytest.raises(UserError, match=r"another pyramid: fpn_lateral2.bias is \(8,\) here and None there"):
        load_into(detector_config("GeneralizedRCNN", "MODEL.FPN.NORM", ""), path)


def test_objects_over_res4_teach_a_c4_detector_its_res5_too(tmp_path):
    losses, _ = step(model := tiny_model(*C4).train(), views_of(2))
    sum(losses.values()).backward()
    assert model.row_dim == FEATURE_DIM and model.roi_heads.res5[0].conv1.weight.grad.any()
    content = pretrained(*C4)
    c4 = (*C4, "MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.RPN.IN_FEATURES", ["res4"])
    loaded = load_into(tiny_config(*c4), write_converted(content, tmp_path / "objects.pth")).state_dict()
    learned = {name: value for name, value in content["model"].items() if name.startswith(("backbone.", "roi_heads."))}
    assert all(torch.equal(loaded[name], value) for name, value in learned.items() if "res5.norm" not in name)


@pytest.mark.parametrize("source", [(), OBJECTS])
def test_objects_start_from_a_backbone_with_a_fresh_pyramid(source, tmp_path):
    path = write_converted(content := pretrained(*source), tmp_path / "backbone.pth")
    model, fresh = load_into(tiny_config(*OBJECTS), path).state_dict(), object_moco().state_dict()
    inner = "bottom_up." if source else ""
    for encoder in ("backbone", "momentum_backbone"):
        expected = content["model"][f"backbone.{inner}stem.conv1.weight"]
        assert torch.equal(model[f"{encoder}.bottom_up.stem.conv1.weight"], expected)
    lateral = "backbone.fpn_lateral2.weight"
    assert model[lateral].shape == fresh[lateral].shape
    assert not source or not torch.equal(model[lateral], content["model"][lateral])


def test_the_momentum_networks_of_objects_follow_their_own():
    assert_momentum_networks_follow(tiny_model(*OBJECTS, "OBJECTS.IMAGE_WEIGHT", 1.0))


def test_keys_of_objects_in_shuffled_anchors_come_back_in_order():
    assert_shuffled_keys_come_back_in_order(tiny_model(*OBJECTS, "MOCO.BN_GROUP", 4), views_of(8))


@pytest.mark.parametrize(("images", "rows"), [(100, 48 * 5), (10**6, 65536 // 5 * 5)])
def test_the_default_queue_holds_all_objects_of_an_image(images, rows):
    assert default_queue_size(tiny_config(*OBJECTS), images) == rows
