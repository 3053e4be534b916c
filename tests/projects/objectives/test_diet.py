"""DIET: its loss and gradient against loops in float64, and how many images it tells apart."""

import pytest
import torch
from tiny import FEATURE_DIM, freeze_batch_norm, random_views, step, tiny_config, tiny_model
from trees import refused

from projects.Objectives.diet import index_loss
from revisit.keys import Facts, network_of, resolve_auto_values

OPTIONS = ("MODEL.META_ARCHITECTURE", "DIET", "VIEWS.NUM_SMALL", 2)


@pytest.mark.parametrize("max_scores", [2**20, 40, 1])
def test_loss_and_gradient_are_those_of_the_formula_whole_and_in_parts(max_scores):
    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(n, 6, generator=generator, dtype=torch.float64).requires_grad_() for n in (7, 11))
    images, smoothing = torch.tensor([3, 0, 10, 3, 5, 5, 9]), 0.8
    expected = 0.0
    for row, image in zip(rows, images.tolist(), strict=True):
        scores = [sum(a * b for a, b in zip(row, each, strict=True)) for each in weight]
        total = sum(score.exp() for score in scores).log()
        expected += (total - (1 - smoothing) * scores[image] - smoothing * sum(scores) / 11) / 7
    loss = index_loss(rows, weight, images, smoothing, max_scores)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    for one, other in zip(
        torch.autograd.grad(loss, [rows, weight]), torch.autograd.grad(expected, [rows, weight]), strict=True
    ):
        assert (one - other).abs().max() < 1e-12


def test_every_view_is_told_from_all_images_but_its_own_one_at_a_time():
    model, views = freeze_batch_norm(tiny_model(*OPTIONS, "DIET.NUM_IMAGES", 9).train()), random_views(3, num_small=2)
    indices, smoothing = [4, 0, 7], model.label_smoothing
    losses, _ = step(model, views | {"index": torch.tensor(indices)})
    expected = []
    with torch.no_grad():
        for n, index in enumerate(indices):
            for view in (views["anchor"][n], views["positive"][n], *views["small"][n]):
                scores = (model.images.weight @ model.pooled(model.backbone, view[None])[0]).double()
                total = scores.exp().sum().log()
                expected.append(total - (1 - smoothing) * scores[index] - smoothing * scores.mean())
    assert losses["loss_inst"].item() == pytest.approx(float(sum(expected) / 12), rel=1e-5)


def test_scores_are_float32_under_autocast():
    """The gradient of the weight is that of the formula over the features, however these were computed."""
    model = freeze_batch_norm(tiny_model(*OPTIONS, "VIEWS.NUM_SMALL", 0, "DIET.NUM_IMAGES", 9).train())
    views, images = random_views(3, num_small=0), torch.tensor([4, 0, 7])
    with torch.autocast("cpu", torch.bfloat16):
        losses, _ = step(model, views | {"index": images})
        pairs = torch.stack([views["anchor"], views["positive"]], dim=1).flatten(0, 1)
        rows = model.pooled(model.backbone, pairs).detach().double()
    weight = model.images.weight.detach().double().requires_grad_()
    expected = index_loss(rows, weight, images.repeat_interleave(2), model.label_smoothing, 2**20)
    (computed,) = torch.autograd.grad(losses["loss_inst"], [model.images.weight])
    (gradient,) = torch.autograd.grad(expected, [weight])
    assert (computed - gradient).norm() < 1e-5 * gradient.norm()


def test_diet_has_a_row_for_every_image():
    cfg = tiny_config(*OPTIONS)
    resolve_auto_values(cfg, Facts(images=100))
    assert cfg.DIET.NUM_IMAGES == 100
    assert tiny_model(*OPTIONS, "DIET.NUM_IMAGES", 100).images.weight.shape == (100, FEATURE_DIM)


def test_fewer_rows_than_images_are_refused():
    cfg = tiny_config(*OPTIONS, "DIET.NUM_IMAGES", 9)
    network_of(cfg).warn(cfg, 9, 8)
    refused("NUM_IMAGES 9 gives no row to some of the 10 images: expected as many", network_of(cfg).warn, cfg, 10, 8)
