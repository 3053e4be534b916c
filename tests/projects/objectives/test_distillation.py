"""Distillation: its loss against loops in float64, whatever teacher there is, one process and two, a run to its end."""

from pathlib import Path

import pytest
import torch
from checkpoints import maps_of, random_resnet
from commands import TINY, documented, launch_forks, run
from runs import assert_numbers_are_explained, assert_resumes, assert_same, load, train
from tiny import FEATURE_DIM, random_views, step, tiny_config, tiny_model
from torch import Tensor
from torch.nn.functional import normalize
from trees import refusal, refused
from true_steps import take_steps

from projects.Objectives.distillation import TEACHER, divergence, paired_cells, relations
from projects.Planning.step_cost import step_cost
from revisit.checkpoint.flags import flags_of, flags_path, write_flags
from revisit.checkpoint.named_weights import NAMED_WEIGHTS_REGISTRY
from revisit.engine.setup import make_config
from revisit.errors import UserError
from revisit.modeling.backbone.description import describe
from revisit.network.frozen_network import load_frozen
from revisit.network.network import Network
from revisit.plugins import load_plugins

DISTILLATION = ("MODEL.META_ARCHITECTURE", "Distillation", "VIEWS.NUM_SMALL", 2, "DISTILLATION.CELL_WEIGHT", 0.5)
RELATIONS = ("VIEWS.LARGE_SIZE", 64, "DISTILLATION.RELATION_WEIGHT", 0.5)  # of 2 x 2 cells
TIMM = ("MODEL.BACKBONE.NAME", "build_timm_backbone", "MODEL.TIMM.NAME")
CONVNEXT = (*TIMM, "convnext_tiny", "MODEL.TIMM.OPTIONS", ["depths", [1, 1, 1, 1], "dims", [8, 16, 24, 32]])
VIT = (*TIMM, "vit_tiny_patch16_224", "MODEL.TIMM.OPTIONS")
VIT += (["img_size", 32, "patch_size", 8, "embed_dim", 64, "depth", 2, "num_heads", 1],)


def rows(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def write_teacher(path: Path, *options: object) -> Path:
    """A random backbone of twice the tiny one's width, as tools/convert_to_d2.py leaves it."""
    wide = ("MODEL.RESNETS.STEM_OUT_CHANNELS", 16, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16)
    cfg, model = tiny_config(*wide, *options), tiny_model(*wide, *options)
    torch.save({"model": model.backbone.state_dict()}, path)
    write_flags(path, flags_of(cfg, describe(model)), "a test")
    return path


@pytest.fixture
def teacher(tmp_path) -> Path:
    return write_teacher(tmp_path / "teacher.pth")


def teacher_of(path: Path, *options: object) -> Network:
    return load_frozen(tiny_config(TEACHER, str(path), *options), TEACHER)


def divergence_by_loops(g: Tensor, others: Tensor, t: Tensor, their_others: Tensor, tau: float, own: int) -> Tensor:
    total = 0
    for i in range(len(g)):
        kept = [n for n in range(len(others)) if own < 0 or n != own + i]
        p, q = ([(x[i] @ y[n] / tau).exp() for n in kept] for x, y in ((t, their_others), (g, others)))
        total += sum(a / sum(p) * ((a / sum(p)).log() - (b / sum(q)).log()) for a, b in zip(p, q, strict=True))
    return total / len(g)


@pytest.mark.parametrize("own", [-1, 0, 2])
def test_the_divergence_and_its_gradient_equal_loops_in_float64(own):
    inputs = [rows(4, 7, seed=1).requires_grad_(), rows(6, 7, seed=2).requires_grad_()]
    theirs = (rows(4, 5, seed=3), rows(6, 5, seed=4), 0.3, own)
    found, expected = divergence(*inputs, *theirs), divergence_by_loops(*inputs, *theirs)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    for ours, loops in zip(*(torch.autograd.grad(each, inputs) for each in (found, expected)), strict=True):
        assert torch.allclose(ours, loops, rtol=1e-9, atol=1e-12)


def test_relations_are_those_of_cells_within_their_view_in_float64():
    pairs = [(rows(2, 4, 7, seed=1), rows(2, 4, 5, seed=2)), (rows(3, 1, 7, seed=3), rows(3, 1, 5, seed=4))]
    pairs.append((rows(1, 9, 7, seed=5), rows(1, 9, 5, seed=6)))
    views = [(g, t) for ours, theirs in pairs for g, t in zip(ours, theirs, strict=True) if len(g) > 1]
    expected = sum(len(g) * divergence_by_loops(g, g, t, t, 0.3, 0) for g, t in views) / sum(len(g) for g, _ in views)
    assert relations(pairs, 0.3).item() == pytest.approx(expected.item(), rel=1e-10)
    with pytest.raises(UserError, match="LARGE_SIZE"):
        relations(pairs[1:2], 0.3)


def test_it_is_zero_for_features_that_are_the_teachers_but_for_a_rotation():
    theirs = rows(6, 5)
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).double())[0]
    ours = theirs @ rotation
    assert divergence(ours, ours, theirs, theirs, 0.1, 0).item() == pytest.approx(0, abs=1e-12)
    assert divergence(rows(6, 5, seed=9), ours, theirs, theirs, 0.1).item() > 0.1


def test_cells_of_the_finer_map_are_averaged_to_those_of_the_coarser_one():
    fine, coarse = torch.arange(32.0).view(1, 2, 4, 4), torch.arange(12.0).view(1, 3, 2, 2) + 1
    ((ours,), (theirs,)) = paired_cells([fine], [coarse])[0]
    blocks = fine.unfold(2, 2, 2).unfold(3, 2, 2).mean(dim=(4, 5))[0]  # (2, 2, 2)
    expected = torch.stack([blocks[:, y, x] for y in range(2) for x in range(2)])
    assert torch.allclose(ours, normalize(expected, dim=1))
    assert torch.allclose(theirs, normalize(coarse[0].flatten(1).T, dim=1))


def test_a_teacher_of_torchvision_computes_as_it_does_there(tmp_path):
    resnet, images = random_resnet("resnet18"), torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    torch.save(resnet.state_dict(), tmp_path / "resnet18.pth")
    teacher = teacher_of(tmp_path / "resnet18.pth")
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    with torch.no_grad():
        assert torch.allclose(teacher.last_map(images), maps_of(resnet, (images / 255 - mean) / std), atol=1e-3)


@pytest.mark.parametrize(("options", "shape"), [(CONVNEXT, (2, 32, 2, 2)), (VIT, (2, 64, 8, 8))])
def test_of_a_teacher_of_another_family_the_last_map_is_taken(options, shape, tmp_path):
    model, images = tiny_model(*options).eval(), random_views(2, large=64)["anchor"]
    torch.save({"model": model.backbone.state_dict()}, tmp_path / "teacher.pth")
    write_flags(tmp_path / "teacher.pth", flags_of(tiny_config(*options), describe(model)), "a test")
    found = teacher_of(tmp_path / "teacher.pth").last_map(images)
    assert found.shape == shape
    with torch.no_grad():
        assert torch.allclose(found, model.feature_map(model.backbone, images), atol=1e-5)


def test_a_step_gives_gradient_to_the_network_alone_and_changes_nothing_of_the_teacher(teacher):
    model = tiny_model(*DISTILLATION, "DISTILLATION.TEACHER", str(teacher)).train()
    before = {name: value.clone() for name, value in model.teacher.state_dict().items()}
    losses, storage = step(model, random_views(8, num_small=2))
    assert losses.keys() == {"loss_pooled", "loss_cells"}
    sum(losses.values()).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("teacher."), name
    assert_same(model.teacher.state_dict(), before)
    assert not any(module.training for module in model.teacher.modules())
    assert not any("teacher" in name for name in model.state_dict())


@pytest.mark.parametrize(("option", "left"), [("POOLED_WEIGHT", "loss_cells"), ("CELL_WEIGHT", "loss_pooled")])
def test_a_loss_that_weighs_0_is_left_out(option, left, teacher):
    options = (*DISTILLATION, "DISTILLATION.TEACHER", str(teacher), f"DISTILLATION.{option}", 0.0)
    assert step(tiny_model(*options).train(), random_views(8, num_small=2))[0].keys() == {left}


def test_the_network_starts_as_without_a_teacher(teacher):
    model = tiny_model(*DISTILLATION, "DISTILLATION.TEACHER", str(teacher))
    assert_same(model.backbone.state_dict(), tiny_model().backbone.state_dict())


def run_steps(teacher: str) -> dict:
    options = (*DISTILLATION, "DISTILLATION.TEACHER", teacher, *RELATIONS)
    batches = [random_views(8, large=64, num_small=2, seed=n) for n in range(3)]
    model = tiny_model(*options).double()
    model.teacher.double()
    return take_steps(model, tiny_config(*options), batches, frozen_bn=False)


def test_two_processes_equal_one_batch_statistics_included(teacher):
    one, (both, _) = run_steps(str(teacher)), launch_forks(run_steps, 2, str(teacher))
    assert both["losses"] == pytest.approx(one["losses"], rel=1e-6)
    for a, b in zip(one["gradients"], both["gradients"], strict=True):
        assert (a - b).norm() < 1e-6 * a.norm()


def test_a_run_resumes_to_the_same_weights_and_its_backbone_converts(teacher, toy_root, toy_datasets, tmp_path):
    options = (*DISTILLATION, "DISTILLATION.TEACHER", str(teacher), "SOLVER.CHECKPOINT_PERIOD", 5)
    train(tmp_path / "whole", *options)
    assert_resumes(tmp_path / "whole", tmp_path / "parts", 4, *options)
    whole = load(tmp_path / "whole/model_final.pth")
    assert_numbers_are_explained(tmp_path / "whole")
    run(f"python tools/convert_to_d2.py {tmp_path}/whole/model_final.pth {tmp_path}/backbone.pth", toy_root)
    converted = load(tmp_path / "backbone.pth")["model"]
    assert all(torch.equal(value, whole["model"][f"backbone.{key}"]) for key, value in converted.items())
    assert "Distillation, 10 iterations" in (tmp_path / "backbone.yaml").read_text()


def test_memory_counts_the_teacher_and_the_scores_of_views_and_cells(teacher):
    cfg = tiny_config(*DISTILLATION, "DISTILLATION.TEACHER", str(teacher), "SOLVER.IMS_PER_BATCH", 512)
    cost = step_cost(cfg, 2)
    assert cost.shapes["backbone.res5"][0] == [2 * 256, FEATURE_DIM, 1, 1]
    assert cost.memory["activations"] > 4 * 4 * 4 * 256 * 4 * 512  # of cells: four of float32 against all views
    assert cost.memory["buffers"] > 1e6


@pytest.mark.docs
def test_the_commands_of_the_readme_run(teacher, toy_root, tmp_path):
    for command in documented("projects/Objectives/distillation.md"):
        command = command.replace("folder:/data/photos", "toy_scenes_train").replace("output/", f"{tmp_path}/")
        run(command.replace("teacher.pth", f"{teacher} {TINY} SOLVER.MAX_ITER 3"), toy_root)
    assert "Distillation, 3 iterations" in (tmp_path / "small/backbone.yaml").read_text()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("DISTILLATION.TEACHER nowhere.pth", "nowhere.pth"),
        ("DISTILLATION.TEACHER README.md", "README.md"),
        ("DISTILLATION.TEACHER README.md DISTILLATION.POOLED_WEIGHT 0.0", "DISTILLATION.POOLED_WEIGHT"),
        ("DISTILLATION.TEACHER README.md SOLVER.ACCUMULATION_STEPS 2", "SOLVER.ACCUMULATION_STEPS"),
    ],
)
def test_what_makes_no_sense_is_refused_by_key_or_file(options, named, toy_datasets):
    def plan() -> None:
        load_frozen(make_config("configs/toy/distillation.yaml", [*TINY.split(), *options.split()]), TEACHER)

    assert named in refusal(plan)


def test_a_teacher_may_be_a_name(teacher, toy_datasets, monkeypatch):
    load_plugins()  # which register what stays
    monkeypatch.setitem(NAMED_WEIGHTS_REGISTRY._obj_map, "test", lambda name: teacher.with_name(f"{name}.pth"))
    cfg = make_config("configs/toy/distillation.yaml", [*TINY.split(), TEACHER, "test:teacher"])
    assert load_frozen(cfg, TEACHER).title == "ResNet-18"


def test_a_teacher_of_another_bit_depth_is_refused(teacher):
    path = flags_path(teacher)
    path.write_text(path.read_text().replace("config:\n", "config:\n  INPUT.BIT_DEPTH: 16\n"))
    assert "INPUT.BIT_DEPTH" in refusal(teacher_of, teacher)
    assert teacher_of(teacher, "INPUT.BIT_DEPTH", 16).title == "ResNet-18"


def test_a_run_resumes_with_its_own_teacher_alone_wherever_it_lies(teacher, toy_datasets, tmp_path):
    options = (*DISTILLATION, "SOLVER.MAX_ITER", 2, "DISTILLATION.TEACHER")
    train(tmp_path / "run", *options, str(teacher))
    moved = [teacher.rename(tmp_path / "moved.pth"), flags_path(teacher).rename(tmp_path / "moved.yaml")][0]
    longer = (*options, str(moved), "SOLVER.MAX_ITER", 3)
    train(tmp_path / "run", *longer, resume=True)
    content = load(moved)
    content["model"]["stem.conv1.weight"][0, 0, 0, 0] += 1
    torch.save(content, moved)
    refused("DISTILLATION.TEACHER", train, tmp_path / "run", *longer, "SOLVER.MAX_ITER", 4, resume=True)
