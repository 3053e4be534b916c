"""Continuing: what is kept against loops in float64, which blocks learn how fast, the end against the start."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import TINY, documented, launch_forks, run
from runs import assert_numbers_are_explained, assert_resumes, assert_same, load, train
from tiny import BACKBONE, random_views, step, tiny_config, tiny_model
from torch import Tensor
from trees import refusal
from true_steps import take_steps

from projects.Objectives import against_start
from projects.Objectives.against_start import TRAINED, compare
from projects.Objectives.relations import between_cells, between_images
from projects.Weights.timm_backbone import TimmBackbone
from projects.Weights.timm_description import TimmDescription
from revisit.checkpoint.flags import flags_of, write_flags
from revisit.checkpoint.metrics_file import read_metrics
from revisit.engine.setup import make_config
from revisit.engine.solver import build_optimizer
from revisit.modeling.backbone.description import describe
from revisit.modeling.bn_groups import batch_norms

METHODS = ("ContinuedSimCLR", "ContinuedDIET", "ContinuedKNNMoCo")
KNN = ("DATASETS.TEST", ("toy_objects_heldout",), "KNN_EVAL.BANK", "toy_objects_train", "KNN_EVAL.IMAGE_SIZE", 32)
CONVNEXT = ("MODEL.BACKBONE.NAME", "build_timm_backbone", "MODEL.TIMM.NAME", "convnext_tiny")
CONVNEXT += ("MODEL.TIMM.OPTIONS", ["depths", [1, 1, 1, 1], "dims", [8, 16, 24, 32]])


def write_start(path: Path, *options: object) -> Path:
    """A random backbone, as tools/convert_to_d2.py leaves it, with statistics that are not those of any batch."""
    model = tiny_model(*options)
    for layer in batch_norms(model.backbone):
        layer.running_mean.uniform_(-0.2, 0.2)
        layer.running_var.uniform_(0.5, 2)
    torch.save({"model": model.backbone.state_dict()}, path)
    write_flags(path, flags_of(tiny_config(*options), describe(model)), "a test")
    return path


@pytest.fixture
def start(tmp_path) -> Path:
    return write_start(tmp_path / "start.pth")


def options_of(start: Path, method: str = "ContinuedSimCLR", *options: object) -> tuple:
    """Of a run that continues, with views of two cells in height and width."""
    of_views = ("VIEWS.LARGE_SIZE", 64, "VIEWS.NUM_SMALL", 0, "NEIGHBORS.WEIGHT", 0.0, "DIET.NUM_IMAGES", 60)
    return ("MODEL.META_ARCHITECTURE", method, "MODEL.WEIGHTS", str(start), *of_views, *options)


def started(start: Path, method: str = "ContinuedSimCLR", *options: object) -> torch.nn.Module:
    """The model with the start's values in its encoders."""
    model = tiny_model(*options_of(start, method, *options))
    model.give_back_start()
    return model.train()


def batch_of(seed: int = 0) -> dict:
    return random_views(8, large=64, num_small=0, seed=seed) | {"index": torch.arange(8)}


def random_maps(*sizes: tuple[int, int, int, int], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes]


def loop_over_pairs(rows: list[Tensor], theirs: list[Tensor]) -> Tensor:
    """The mean squared difference of the cosines of all pairs, one at a time."""
    pairs = [(i, n) for i in range(len(rows)) for n in range(len(rows))]

    def cosine(one: Tensor, other: Tensor) -> Tensor:
        return (one * other).sum() / (one.square().sum().sqrt() * other.square().sum().sqrt())

    return sum((cosine(rows[i], rows[n]) - cosine(theirs[i], theirs[n])) ** 2 for i, n in pairs) / len(pairs)


def cells_by_loops(maps: list[Tensor], theirs: list[Tensor]) -> Tensor:
    views = [(g, t) for ours, others in zip(maps, theirs, strict=True) for g, t in zip(ours, others, strict=True)]
    views = [(g, t) for g, t in views if g[0].numel() > 1]
    places = [[(y, x) for y in range(g.shape[1]) for x in range(g.shape[2])] for g, _ in views]
    losses = [
        loop_over_pairs([g[:, y, x] for y, x in of_view], [t[:, y, x] for y, x in of_view])
        for (g, t), of_view in zip(views, places, strict=True)
    ]
    return sum(losses) / len(losses)


def images_by_loops(maps: list[Tensor], theirs: list[Tensor]) -> Tensor:
    return loop_over_pairs(*([view.flatten(1).mean(dim=1) for one in each for view in one] for each in (maps, theirs)))


@pytest.mark.parametrize(("ours", "loops"), [(between_cells, cells_by_loops), (between_images, images_by_loops)])
def test_the_difference_of_relations_and_its_gradient_equal_loops_in_float64(ours, loops):
    maps = [each.requires_grad_() for each in random_maps((3, 5, 2, 2), (2, 5, 1, 3), (1, 5, 1, 1), seed=0)]
    theirs = random_maps((3, 7, 2, 2), (2, 7, 1, 3), (1, 7, 1, 1), seed=1)
    found, expected = ours(maps, theirs), loops(maps, theirs)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10) and found > 0.01
    gradients = (torch.autograd.grad(each, maps, materialize_grads=True) for each in (found, expected))
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_views_of_a_single_cell_have_no_relations():
    maps = random_maps((3, 5, 1, 1), seed=0)
    assert "VIEWS.LARGE_SIZE" in refusal(between_cells, maps, maps)


def test_relations_are_kept_by_a_rotation_of_all_features():
    (maps,) = random_maps((3, 5, 2, 2), seed=0)
    rotation = torch.linalg.qr(random_maps((1, 1, 5, 5), seed=1)[0][0, 0])[0]
    turned = torch.einsum("nchw,cd->ndhw", maps, rotation)
    for difference in (between_cells, between_images):
        assert difference([turned], [maps]).item() == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("relations", ["images", "cells"])
def test_any_objective_keeps_the_relations_of_the_views_that_it_learns_from(method, relations, start):
    keep = ("KEEP.WEIGHT", 3.0, "KEEP.RELATIONS", relations)
    model, batch = started(start, method, *keep), batch_of()
    plain = started(start, method)
    losses, _ = step(model, batch)
    others, _ = step(plain, batch)
    assert losses.keys() - others.keys() == {"loss_keep"}
    assert all(losses[name] == value for name, value in others.items())
    views = [batch["positive"]] if method == "ContinuedKNNMoCo" else [batch["anchor"], batch["positive"]]
    images = torch.stack(views, dim=1).flatten(0, 1)
    with torch.no_grad():
        maps, theirs = plain.feature_map(plain.backbone, images), model.start.last_map(images)
    expected = {"images": images_by_loops, "cells": cells_by_loops}[relations]([maps.double()], [theirs.double()])
    assert losses["loss_keep"].item() == pytest.approx(3 * expected.item(), rel=1e-4) and expected > 1e-4


def test_nothing_is_lost_before_the_first_step_where_statistics_are_frozen(start):
    model = started(start, "ContinuedSimCLR", "KEEP.WEIGHT", 1.0, "CONTINUE.FROZEN_STATISTICS", True)
    losses, _ = step(model, batch_of())
    assert losses["loss_keep"] < 1e-10
    assert not any("start" in name for name in model.state_dict())


VIT = ("MODEL.BACKBONE.NAME", "build_timm_backbone", "MODEL.TIMM.NAME", "vit_tiny_patch16_224", "MODEL.TIMM.OPTIONS")
VIT += (["img_size", 64, "patch_size", 16, "embed_dim", 64, "depth", 3, "num_heads", 1],)


@pytest.mark.parametrize("network", [CONVNEXT, VIT])
@pytest.mark.parametrize("relations", ["images", "cells"])
def test_any_network_of_timms_continues(network, relations, tmp_path):
    start = write_start(tmp_path / "start.pth", *network)
    keep = ("KEEP.WEIGHT", 1.0, "KEEP.RELATIONS", relations, "CONTINUE.TRAIN_BLOCKS", 1, "CONTINUE.LAYER_DECAY", 0.5)
    model = started(start, "ContinuedSimCLR", *network, *keep)
    losses, _ = step(model, batch_of())
    assert losses["loss_keep"] < 1e-10
    sum(losses.values()).backward()
    learns = {name for name, parameter in model.backbone.named_parameters() if parameter.grad is not None}
    assert learns == set(model.blocks[-1])
    groups = build_optimizer(tiny_config(*options_of(start), *network), model).param_groups
    assert {group["lr"] for group in groups} == {0.05, 0.05 / 2}


NETWORKS = ["resnet26d", "convnext_tiny", "vit_tiny_patch16_224", "tf_efficientnet_lite0"]


@pytest.mark.parametrize("name", NETWORKS)
def test_blocks_of_timms_networks_hold_every_parameter_once_the_stem_first(name):
    with torch.device("meta"):
        network = TimmBackbone(name)
    blocks = TimmDescription().blocks(network)
    names = [name for block in blocks for name in block]
    assert sorted(names) == sorted(name for name, _ in network.named_parameters()) and len(blocks) > 8
    assert any("stem" in name or "conv1" in name or "patch_embed" in name for name in blocks[0])
    assert not any("stem" in name or "patch_embed" in name for block in blocks[1:] for name in block)


def test_a_block_learns_the_slower_the_deeper_it_lies_below_the_head(start):
    options = options_of(start, "ContinuedSimCLR", "CONTINUE.LAYER_DECAY", 0.5, "SOLVER.BASE_LR", 1.0)
    model = tiny_model(*options)
    groups = build_optimizer(tiny_config(*options), model).param_groups
    rates = {parameter: group["lr"] for group in groups for parameter in group["params"]}
    blocks = ["stem", *(f"res{stage}.{block}" for stage in range(2, 6) for block in range(2))]
    for n, block in enumerate(blocks):
        found = {rates[parameter] for parameter in model.backbone.get_submodule(block).parameters()}
        assert found == {0.5 ** (9 - n)}, block
    assert {rates[parameter] for parameter in model.projection_head.parameters()} == {1.0}
    assert len(rates) == len(list(model.parameters()))


@pytest.mark.parametrize("method", METHODS)
def test_only_the_last_blocks_learn_and_frozen_statistics_stay(method, start):
    options = ("CONTINUE.TRAIN_BLOCKS", 2, "KEEP.WEIGHT", 1.0)
    model = started(start, method, *options)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = tiny_config(*options_of(start, method, *options))
    optimizer = build_optimizer(config, model)
    sum(step(model, batch_of())[0].values()).backward()
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    of_backbone = {name for name in changed if "backbone." in name}
    assert {name.partition("backbone.")[2].rpartition("res5.")[1] for name in of_backbone} == {"res5."}
    assert any("res5.0.conv1.norm.running_mean" in name for name in of_backbone)
    still = started(start, method, "CONTINUE.FROZEN_STATISTICS", True)
    statistics = {name: value.clone() for name, value in still.backbone.named_buffers()}
    step(still, batch_of())
    assert_same(dict(still.backbone.named_buffers()), statistics)
    assert not any(layer.training for part in still.encoders() for layer in batch_norms(part))


def run_steps(start: str, relations: str) -> dict:
    options = options_of(Path(start), "ContinuedSimCLR", "KEEP.WEIGHT", 5.0, "KEEP.RELATIONS", relations)
    options += ("CONTINUE.LAYER_DECAY", 0.8, "CONTINUE.TRAIN_BLOCKS", 7)
    model = tiny_model(*options).double()
    model.give_back_start()
    model.start.double()
    return take_steps(model, tiny_config(*options), [batch_of(n) for n in range(3)], frozen_bn=False)


@pytest.mark.parametrize("relations", ["images", "cells"])
def test_two_processes_equal_one(relations, start):
    one, (both, _) = run_steps(str(start), relations), launch_forks(run_steps, 2, str(start), relations)
    assert both["losses"] == pytest.approx(one["losses"], rel=1e-6)
    for a, b in zip(one["gradients"], both["gradients"], strict=True):
        assert (a - b).norm() <= 1e-6 * a.norm()


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_was_killed_resumes_to_the_same_weights(method, start, toy_datasets, tmp_path):
    keep = ("KEEP.WEIGHT", 3.0, "CONTINUE.LAYER_DECAY", 0.8, "SOLVER.CHECKPOINT_PERIOD", 6, "SOLVER.MAX_ITER", 8)
    options = options_of(start, method, *keep, "VIEWS.LARGE_SIZE", 32, *KNN)
    train(tmp_path / "whole", *options)
    assert_resumes(tmp_path / "whole", tmp_path / "parts", 5, *options)  # the last iteration of an epoch follows
    assert_numbers_are_explained(tmp_path / "whole")


def test_another_start_is_refused_by_a_run_that_resumes(start, toy_datasets, tmp_path):
    options = options_of(start, "ContinuedSimCLR", "SOLVER.MAX_ITER", 2, "SOLVER.CHECKPOINT_PERIOD", 1)
    train(tmp_path / "run", *options)
    (tmp_path / "run/model_final.pth").unlink()
    write_start(start, "SEED", 8)
    torch.save({"model": {k: v + 1 for k, v in load(start)["model"].items()}}, start)
    assert "MODEL.WEIGHTS is not the network" in refusal(train, tmp_path / "run", *options, resume=True)


def right(images: int, *numbers: int) -> Tensor:
    return torch.tensor([number in numbers for number in range(images)])


def test_the_interval_is_that_of_a_paired_bootstrap():
    rng = np.random.default_rng(1)
    before, now = torch.from_numpy(rng.random(60) < 0.5), torch.from_numpy(rng.random(60) < 0.7)
    verdict = compare("knn_top1", before, now)
    images = rng.integers(60, size=(20_000, 60))
    differences = 100 * (now.numpy()[images].mean(axis=1) - before.numpy()[images].mean(axis=1))
    assert [verdict.low, verdict.high] == pytest.approx(np.percentile(differences, [2.5, 97.5]), abs=2)
    assert verdict.now - verdict.before == pytest.approx(100 * (now.double() - before.double()).mean().item())


@pytest.mark.parametrize(
    ("before", "now", "word"),
    [(0, 40, "better than"), (40, 0, "worse than"), (10, 11, "as good as"), (9, 9, "as good as")],
)
def test_a_run_is_better_or_worse_where_the_interval_says_so(before, now, word):
    verdict = compare("knn_top1", right(60, *range(before)), right(60, *range(now)))
    assert verdict.word == word and f"this run is {word} its start" in str(verdict)


def test_a_run_that_changes_nothing_is_as_good_as_its_start(start, toy_datasets, tmp_path, caplog):
    caplog.set_level(logging.INFO, "projects.Objectives.against_start")
    still = ("SOLVER.BASE_LR", 1e-12, "CONTINUE.FROZEN_STATISTICS", True, "SOLVER.MAX_ITER", 2)
    train(tmp_path / "run", *options_of(start, "ContinuedSimCLR", *still, *KNN))
    assert "as good as its start" in caplog.messages[-1] and "(+0.0; 95 % interval +0.0 to +0.0" in caplog.messages[-1]
    assert not (tmp_path / f"run/{TRAINED}.pth").exists()


def test_a_run_that_spoils_its_start_gives_it_back(start, toy_datasets, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "projects.Objectives.against_start")
    monkeypatch.setattr(against_start, "compare", lambda *args: compare("knn_top1", right(60, *range(40)), right(60)))
    output, options = tmp_path / "run", options_of(start, "ContinuedKNNMoCo", "VIEWS.LARGE_SIZE", 32, *KNN)
    trainer = train(output, *options)
    final, trained = (load(output / f"{name}.pth")["model"] for name in ("model_final", TRAINED))
    assert caplog.messages[-1].startswith("this run is worse than its start") and TRAINED in caplog.messages[-1]
    for key, value in load(start)["model"].items():
        assert torch.equal(final[f"backbone.{key}"], value) and torch.equal(final[f"momentum_backbone.{key}"], value)
    assert not torch.equal(trained["backbone.stem.conv1.weight"], final["backbone.stem.conv1.weight"])
    scores = read_metrics(output / "metrics.json")["knn_top1"]
    assert trainer.results["knn_top1"] == scores[0][1]
    assert scores[-1] == (9, scores[0][1])  # as a report shows model_final
    longer = (*options, "SOLVER.MAX_ITER", 12)
    assert f"rename {output}/{TRAINED}.pth" in refusal(train, output, *longer, resume=True)
    (output / f"{TRAINED}.pth").rename(output / "model_final.pth")
    assert train(output, *longer, resume=True).start_iter == 10


def test_a_run_that_resumes_with_another_evaluation_is_compared_with_no_start(start, toy_datasets, tmp_path, caplog):
    caplog.set_level(logging.INFO, "projects.Objectives.against_start")
    options = options_of(start, "ContinuedSimCLR", *KNN)
    train(tmp_path / "run", *options, "SOLVER.MAX_ITER", 2)
    train(tmp_path / "run", *options, "SOLVER.MAX_ITER", 3, "KNN_EVAL.TEMPERATURE", 9.0, resume=True)
    assert "nobody can say: the start was evaluated otherwise" in caplog.messages[-1]
    assert not (tmp_path / f"run/{TRAINED}.pth").exists()


def test_without_labels_nothing_is_compared(start, toy_datasets, tmp_path, caplog):
    caplog.set_level(logging.INFO, "projects.Objectives.against_start")
    train(tmp_path / "run", *options_of(start, "ContinuedSimCLR", "SOLVER.MAX_ITER", 1))
    assert "nobody can say: DATASETS.TEST is empty" in caplog.messages[-1]


@pytest.mark.parametrize("network", [BACKBONE, CONVNEXT])
def test_the_recipe_builds_the_network_of_any_weights_for_their_pixels(network, tmp_path):
    options = (*network, "MODEL.PIXEL_STD", [50.0, 60.0, 70.0])
    start = write_start(tmp_path / "start.pth", *options)
    cfg = make_config("configs/own_images/continue.yaml", ["MODEL.WEIGHTS", str(start)])
    expected = flags_of(tiny_config(*options), describe(tiny_model(*options)))
    assert flags_of(cfg, describe(tiny_model(*options))) == expected
    typed = make_config("configs/own_images/continue.yaml", ["MODEL.WEIGHTS", str(start), "MODEL.PIXEL_STD", [1.0] * 3])
    assert typed.MODEL.PIXEL_STD == [1.0] * 3 and typed.MODEL.BACKBONE.NAME == cfg.MODEL.BACKBONE.NAME


def test_weights_that_nothing_is_known_of_are_refused(start, toy_datasets):
    start.with_suffix(".yaml").unlink()
    assert "convert the weights" in refusal(
        make_config, "configs/own_images/continue.yaml", ["MODEL.WEIGHTS", str(start)]
    )
    assert "MODEL.WEIGHTS is empty" in refusal(tiny_model, *options_of(Path()), "MODEL.WEIGHTS", "")


def test_parts_of_a_batch_have_no_relations_between_all_images(start):
    options = [
        "MODEL.WEIGHTS",
        str(start),
        "MODEL.META_ARCHITECTURE",
        "ContinuedDIET",
        "SOLVER.ACCUMULATION_STEPS",
        "2",
    ]
    recipe = "configs/own_images/continue.yaml"
    assert "KEEP.RELATIONS images" in refusal(make_config, recipe, [*options, "DIET.NUM_IMAGES", "60"])


@pytest.mark.docs
def test_the_commands_of_the_readme_run(toy_root, start, tmp_path):
    for command in documented("projects/Objectives/continue.md"):
        command = command.replace("folder:/data/photos", "toy_scenes_train").replace("output/", f"{tmp_path}/")
        quick = f"{TINY} SOLVER.MAX_ITER 2 MONITOR.IMAGES ''"
        text = run(command.replace("imagenet:efficientnet_lite0", f"{start} {quick}"), toy_root)
    assert "ContinuedSimCLR, 2 iterations" in (tmp_path / "continued/backbone.yaml").read_text(), text
