"""Mixed precision, gradient accumulation and memory format change how a step is computed, never what it is."""

import pytest
import torch
from tiny import random_views, tiny_model
from true_steps import sgd, take_steps

from revisit.engine.train_step import TrainStep, split_batch

from detectron2.utils.events import EventStorage
from fvcore.common.history_buffer import HistoryBuffer

BATCH = 8


def steps(*options: object, channels_last: bool = False, **how: object) -> dict:
    """Three true steps with BN in evaluation mode; what they leave."""
    model = tiny_model(*options)
    if channels_last:
        model.to(memory_format=torch.channels_last)
    labels = torch.arange(3 * BATCH).chunk(3)
    return take_steps(model, [{**random_views(BATCH, small=24, seed=n), "label": labels[n]} for n in range(3)], **how)


@pytest.mark.parametrize(
    ("options", "how", "rtol"),
    [
        ((), {"accumulation_steps": 2}, 1e-5),
        ((), {"accumulation_steps": 4}, 1e-5),
        (("MODEL.META_ARCHITECTURE", "MoCo"), {"accumulation_steps": 2}, 1e-5),
        ((), {"channels_last": True}, 1e-4),
    ],
)
def test_the_batch_in_parts_or_in_another_layout_changes_nothing_beyond_rounding(options, how, rtol):
    plain, other = steps(*options), steps(*options, **how)
    assert other["losses"] == pytest.approx(plain["losses"], rel=rtol)
    for name, value in plain["model"].items():
        difference = (other["model"][name].double() - value.double()).norm()
        assert difference <= rtol * value.double().norm() + 1e-12, name
    assert torch.equal(other["model"]["queue.labels"], plain["model"]["queue.labels"])


def test_bfloat16_steps_stay_close_and_keep_float32_weights():
    exact, rounded = steps(), steps(precision=torch.bfloat16)
    assert rounded["losses"] == pytest.approx(exact["losses"], rel=0.02)
    assert rounded["losses"] != exact["losses"]
    for value in rounded["model"].values():
        assert value.dtype in (torch.float32, torch.int64)
    keys, rough = (run["model"]["queue.keys"][:BATCH] for run in (exact, rounded))  # of the first step
    assert ((keys * rough).sum(dim=1) > 0.999).all()


def test_float16_scales_the_loss_skips_an_overflow_and_saves_the_scale():
    model = tiny_model()
    optimizer = sgd(model)
    step = TrainStep(model, [random_views(BATCH, small=24)] * 3, optimizer, precision=torch.float16)
    before = model.backbone.stem.conv1.weight.clone()
    with EventStorage(0) as storage:
        step.grad_scaler.load_state_dict({**step.grad_scaler.state_dict(), "scale": 2.0**40})  # surely overflows
        step.run_step()
        assert torch.equal(model.backbone.stem.conv1.weight, before)
        assert storage.history("grad_scale").latest() == 2.0**39
        assert storage.history("skipped_steps").latest() == 1
        step.grad_scaler.load_state_dict({**step.grad_scaler.state_dict(), "scale": 128.0})
        step.run_step()
    assert not torch.equal(model.backbone.stem.conv1.weight, before)
    again = TrainStep(model, [], optimizer, precision=torch.float16)
    again.load_state_dict(step.state_dict())
    assert again.grad_scaler.get_scale() == 128.0 and again.skipped_steps == 1


@pytest.mark.parametrize("precision", [None, torch.float16])
def test_a_checkpoint_does_not_say_how_a_step_is_computed(precision):
    """One from before steps were fused, from a run that clips gradients, or from one in another precision."""
    model = tiny_model()
    plain, fused = sgd(model), sgd(model, fused=True)
    TrainStep(model, [], fused, precision=precision).load_state_dict(TrainStep(model, [], plain).state_dict())
    assert fused.param_groups[0]["fused"] is True


def test_batches_are_split_in_order_and_leave_their_reports_out():
    assert split_batch(list("abcdef"), 3) == [["a", "b"], ["c", "d"], ["e", "f"]]
    views = {**random_views(4), "read_errors": ["x"], "num_fallbacks": 1}
    first, second = split_batch(views, 2)
    assert set(first) == {"anchor", "positive", "small"}
    assert torch.equal(torch.cat([first["small"], second["small"]]), views["small"])


def test_losses_gathered_every_few_steps_are_the_same_losses():
    def run(period: int, count: int) -> tuple[dict, list[int]]:
        model = tiny_model("SOLVER.METRICS_PERIOD", period)
        batches = [random_views(BATCH, small=24, seed=n) for n in range(count)]
        step = TrainStep(model, batches, sgd(model), metrics_period=period)
        with EventStorage(0) as storage:
            counts = []
            for n in range(count):
                storage.iter = n
                step.run_step()
                model.enqueue_pending_keys()
                counts.append(len(storage.histories().get("loss_inst", HistoryBuffer()).values()))
            step.gather_metrics()
            return {name: [v for v, _ in h.values()] for name, h in storage.histories().items()}, counts

    (every, told_each), (third, told_third) = run(1, 5), run(3, 5)
    assert told_each == [1, 2, 3, 4, 5] and told_third == [0, 0, 3, 3, 3]
    for name in ("loss_inst", "loss_nn", "total_loss"):
        assert third[name] == every[name] and len(every[name]) == 5
    assert third["contrast_top1"] == every["contrast_top1"][2:3]  # monitors are of the step that is read
