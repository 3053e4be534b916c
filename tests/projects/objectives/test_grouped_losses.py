"""The losses with groups and with a cycle against loops in float64, however many scores may be in memory at once."""

import math

import numpy as np
import pytest
import torch
from tiny import loss_inputs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from projects.Objectives.grouped_losses import RULES, Cycle, Groups, grouped_losses, mine
from revisit.modeling.losses.contrastive import contrastive_losses

BATCH, QUEUE, TAU, K = 6, 37, 0.2, 5
ROWS_OF_START = -1


def groups_of(num_groups: int, rule: str, num: int, *, batch: int = BATCH, queue: int = QUEUE) -> Groups:
    """Random groups of images and of rows, the last of which are those of the start."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(num_groups, (batch,), generator=generator)
    rows = torch.randint(num_groups, (queue,), generator=generator)
    rows[-4:] = ROWS_OF_START
    return Groups(images.repeat_interleave(num), rows, RULES[rule])


def cycle_of(num: int, *, batch: int = BATCH, others: int = 3, dtype: torch.dtype = torch.float64) -> Cycle:
    """This process's anchors, and those of others before them."""
    anchors = torch.randn(others + batch, 24, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    own = torch.arange(others, others + batch).repeat_interleave(num)
    return Cycle(torch.nn.functional.normalize(anchors, dim=1).to(dtype), own)


def losses_of(x: dict[str, Tensor], groups: Groups | None, cycle: Cycle | None, k: int = K, **options) -> dict:
    """Both losses, and the gradient of L_inst + 0.4 L_nn."""
    positives = x["positives"].clone().requires_grad_()
    max_scores = options.get("max_scores", 0)
    mined = mine(x["positives_g"].flatten(0, 1), x["queue_g"], k, groups, cycle, max_scores)
    losses = grouped_losses(positives, x["anchors"], x["queue"], groups, mined, temperature=TAU, **options)
    (losses["loss_inst"] + 0.4 * losses["loss_nn"]).backward()
    return losses | {"gradient": positives.grad, "counts": mined.counts}


def by_loops(x: dict[str, Tensor], groups: Groups | None, rule: str, cycle: Cycle | None, k: int = K) -> tuple:
    """L_inst, L_nn, how many neighbours count, as docs/method.md has them, one positive at a time."""
    p, a, queue, p_g, queue_g = (x[name] for name in ("positives", "anchors", "queue", "positives_g", "queue_g"))
    inst, nearest, counted = [], [], 0
    for m, (i, j) in enumerate(np.ndindex(*p.shape[:2])):
        is_same = [
            groups is not None and int(groups.of_rows[n]) == int(groups.of_positives[m]) for n in range(len(queue))
        ]
        s = [float(p[i, j] @ row) / TAU for row in queue]
        others = [n for n in range(len(queue)) if not is_same[n]]
        in_inst = others if rule in ("exclude", "attract") else range(len(queue))
        in_nn = others if rule == "exclude" else range(len(queue))
        positive = float(p[i, j] @ a[i]) / TAU
        partition = math.exp(positive) + sum(math.exp(s[n]) for n in in_inst)
        inst.append(-math.log(math.exp(positive) / partition))
        cosine = [float(p_g[i, j] @ row) for row in queue_g]
        if rule == "attract":
            chosen = sorted(range(len(queue)), key=lambda n: (not is_same[n], -cosine[n]))[:k]
        else:
            chosen = sorted(others, key=lambda n: -cosine[n])[:k]
        if cycle is not None:
            back = {
                n: max(range(len(cycle.anchors)), key=lambda b: float(cycle.anchors[b] @ queue_g[n])) for n in chosen
            }
            chosen = [n for n in chosen if back[n] == int(cycle.own[m])]
        counted += len(chosen)
        if chosen:
            partition = sum(math.exp(s[n]) for n in in_nn)
            nearest.append(sum(-math.log(math.exp(s[n]) / partition) for n in chosen) / len(chosen))
    return np.mean(inst), np.mean(nearest) if nearest else 0.0, counted


@pytest.mark.parametrize("max_scores", [0, 100])
@pytest.mark.parametrize("num", [1, 5])
@pytest.mark.parametrize("with_cycle", [False, True])
@pytest.mark.parametrize("rule", [*RULES, None])
def test_each_rule_equals_loops_in_float64(rule, with_cycle, num, max_scores):
    x = loss_inputs(num, batch=BATCH, queue_size=QUEUE)
    groups = groups_of(3, rule, num) if rule else None
    cycle = cycle_of(num) if with_cycle else None
    inst, nearest, counted = by_loops(x, groups, rule, cycle)
    losses = losses_of(x, groups, cycle, max_scores=max_scores)
    assert losses["loss_inst"].item() == pytest.approx(inst, rel=1e-12)
    assert losses["loss_nn"].item() == pytest.approx(nearest, rel=1e-12)
    assert losses["counts"].sum() == counted and (not with_cycle or 0 < counted < BATCH * num * K)
    single = {name: value.float() for name, value in x.items()}
    one = losses_of(single, groups, cycle_of(num, dtype=torch.float32) if with_cycle else None, max_scores=max_scores)
    assert one["loss_inst"].item() == pytest.approx(inst, rel=1e-5)
    assert one["loss_nn"].item() == pytest.approx(nearest, rel=1e-5)


@pytest.mark.parametrize("max_scores", [0, 100])
@pytest.mark.parametrize("rule", RULES)
def test_gradients_equal_central_differences_of_the_loops(rule, max_scores):
    x, groups, cycle = loss_inputs(2, batch=3, queue_size=QUEUE), groups_of(3, rule, 2, batch=3), cycle_of(2, batch=3)
    gradient = losses_of(x, groups, cycle, max_scores=max_scores)["gradient"]
    for place in [(0, 0, 0), (1, 1, 7), (2, 0, 15)]:
        step = torch.zeros_like(x["positives"])
        step[place] = 1e-5
        ahead, back = (by_loops(x | {"positives": x["positives"] + h * step}, groups, rule, cycle) for h in (1, -1))
        inst, nearest = ((ahead[n] - back[n]) / 2e-5 for n in (0, 1))
        assert gradient[place].item() == pytest.approx(inst + 0.4 * nearest, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_where_no_group_repeats_the_losses_are_those_of_knn_moco_bit_by_bit(rule, dtype):
    x = loss_inputs(5, batch=BATCH, queue_size=QUEUE, dtype=dtype)
    groups = Groups(torch.arange(BATCH).repeat_interleave(5), torch.arange(QUEUE) + BATCH, RULES[rule])
    for max_scores in (0, 100):
        losses = losses_of(x, groups, None, max_scores=max_scores)
        positives = x["positives"].clone().requires_grad_()
        plain = contrastive_losses(
            **x | {"positives": positives}, temperature=TAU, num_neighbors=K, max_scores=max_scores
        )
        (plain["loss_inst"] + 0.4 * plain["loss_nn"]).backward()
        assert torch.equal(losses["loss_inst"], plain["loss_inst"])
        assert torch.equal(losses["loss_nn"], plain["loss_nn"])
        torch.testing.assert_close(losses["gradient"], positives.grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(("rule", "is_left"), [("exclude", False), ("attract", True), ("across", False)])
def test_a_queue_of_the_own_group_alone_gives_finite_losses_and_gradients(rule, is_left):
    x = loss_inputs(2, batch=3, queue_size=8)
    groups = Groups(torch.zeros(6, dtype=torch.int64), torch.zeros(8, dtype=torch.int64), RULES[rule])
    losses = losses_of(x, groups, None)
    assert (losses["loss_nn"] != 0) == is_left and losses["counts"].all() == is_left
    assert (losses["loss_inst"] == 0) == (rule != "across")  # nothing to tell the anchor from
    assert losses["gradient"].isfinite().all()


def test_fewer_neighbours_count_where_fewer_rows_are_of_another_group():
    x = loss_inputs(2, batch=3, queue_size=8)
    of_rows = torch.tensor([0, 0, 0, 0, 0, 1, 2, ROWS_OF_START])
    groups = Groups(torch.zeros(6, dtype=torch.int64), of_rows, RULES["across"])
    losses = losses_of(x, groups, None)
    assert losses["counts"].sum(dim=1).tolist() == [3] * 6
    assert losses["loss_nn"].item() == pytest.approx(by_loops(x, groups, "across", None)[1], rel=1e-12)


def test_a_cycle_that_keeps_nothing_gives_no_loss_and_no_gradient():
    x = loss_inputs(2, batch=3, queue_size=QUEUE)
    cycle = Cycle(x["queue_g"][:1], torch.ones(6, dtype=torch.int64))  # all rows find the anchor of another process
    mined = mine(x["positives_g"].flatten(0, 1), x["queue_g"], K, None, cycle)
    positives = x["positives"].requires_grad_()
    loss = grouped_losses(positives, x["anchors"], x["queue"], None, mined, temperature=TAU)["loss_nn"]
    loss.backward()
    assert loss == 0 and not positives.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_queues_of_16_bits_agree_with_float64(dtype):
    x, groups = loss_inputs(5, batch=BATCH, queue_size=QUEUE), groups_of(3, "exclude", 5)
    rounded = {name: value.to(dtype) if "queue" in name else value.float() for name, value in x.items()}
    inst, nearest, _ = by_loops({name: value.double() for name, value in rounded.items()}, groups, "exclude", None)
    losses = losses_of(rounded, groups, None)
    assert losses["loss_inst"].item() == pytest.approx(inst, rel=1e-5)
    assert losses["loss_nn"].item() == pytest.approx(nearest, rel=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_no_more_scores_than_allowed_are_in_memory(rule):
    x, groups = loss_inputs(5, batch=2, queue_size=400), groups_of(3, rule, 5, batch=2, queue=400)
    with Largest() as largest:
        losses_of(x, groups, cycle_of(5, batch=2), 7, max_scores=500)
    assert 0 < largest.numbers <= 500


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest scores or masks of scores have."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.mm.default, torch.ops.aten.eq.Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result
