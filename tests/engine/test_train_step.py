"""Mixed precision, gradient accumulation and memory format change how a step is computed, never what it is."""

from pathlib import Path

import pytest
import torch
from commands import launch_forks
from tiny import freeze_batch_norm, random_views, tiny_model

from revisit.engine.train_step import TrainStep, split_batch
from revisit.modeling.distributed import gather_rows, in_global_order

from detectron2.engine.defaults import create_ddp_model
from detectron2.utils import comm
from detectron2.utils.events import EventStorage
from fvcore.common.history_buffer import HistoryBuffer

BATCH = 8


def steps(
    count: int = 3,
    parts: int = 1,
    precision: torch.dtype | None = None,
    channels_last: bool = False,
    options: tuple = (),
) -> dict:
    """True steps with BN in evaluation mode on this process's share; what they leave."""
    model = tiny_model(*options)
    if channels_last:
        model.to(memory_format=torch.channels_last)
    rank, processes = comm.get_rank(), comm.get_world_size()
    batches = []
    for n in range(count):
        batch = {**random_views(BATCH, small=24, seed=n), "label": torch.arange(BATCH) + 100 * n}
        batches.append({name: value.chunk(processes)[rank] for name, value in batch.items()})
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    wrapped = create_ddp_model(model, broadcast_buffers=False, device_ids=None)
    step = TrainStep(wrapped, batches, optimizer, precision=precision, accumulation_steps=parts)
    freeze_batch_norm(model)  # the step has put all of it into training mode
    losses = []
    for n in range(count):
        with EventStorage(n) as storage:
            step.run_step()
            losses.append(storage.histories()["total_loss"].latest() if rank == 0 else 0.0)
        model.update_momentum_encoder()
        model.enqueue_pending_keys()
    return {"losses": losses, "model": model.state_dict()}


def assert_same(one: dict, other: dict, rtol: float) -> None:
    assert other["losses"] == pytest.approx(one["losses"], rel=rtol)
    for name, value in one["model"].items():
        difference = (other["model"][name].double() - value.double()).norm()
        assert difference <= rtol * value.double().norm() + 1e-12, name


@pytest.mark.parametrize("architecture", ["MoCo", "KNNMoCo"])
def test_accumulation_over_parts_equals_the_whole_batch(architecture):
    options = ("MODEL.META_ARCHITECTURE", architecture)
    assert_same(steps(options=options), steps(parts=2, options=options), rtol=1e-5)


def save_steps(parts: int, output: Path) -> None:
    torch.save(steps(parts=parts), output / f"{comm.get_rank()}.pth")


def test_accumulation_by_two_processes_equals_one_process_with_the_whole_batch(tmp_path):
    launch_forks(save_steps, 2, 2, tmp_path)
    whole, first, second = steps(), *(torch.load(tmp_path / f"{rank}.pth") for rank in range(2))
    assert_same(whole, first, rtol=1e-5)
    assert first["model"]["queue.labels"].tolist() == whole["model"]["queue.labels"].tolist()
    for name in ("queue.keys", "queue.features"):
        assert torch.equal(first["model"][name], second["model"][name])


def test_keys_of_all_parts_enter_the_queue_together_and_in_order():
    labels = steps(count=1, parts=4)["model"]["queue.labels"]
    assert labels[:BATCH].tolist() == list(range(BATCH)) and (labels[BATCH:] == -1).all()


def test_channels_last_changes_no_number_beyond_rounding():
    assert_same(steps(), steps(channels_last=True), rtol=1e-4)


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
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
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
    optimizers = [torch.optim.SGD(model.projection_head.parameters(), lr=0.05, fused=fused) for fused in (None, True)]
    state = TrainStep(model, [], optimizers[0]).state_dict()
    TrainStep(model, [], optimizers[1], precision=precision).load_state_dict(state)
    assert optimizers[1].param_groups[0]["fused"] is True


def test_batches_are_split_in_order_and_leave_their_reports_out():
    assert split_batch(list("abcdef"), 3) == [["a", "b"], ["c", "d"], ["e", "f"]]
    views = {**random_views(4), "read_errors": ["x"], "num_fallbacks": 1}
    first, second = split_batch(views, 2)
    assert set(first) == {"anchor", "positive", "small"}
    assert torch.equal(torch.cat([first["small"], second["small"]]), views["small"])


def order_and_save(output: Path) -> None:
    mine = torch.arange(6) + 6 * comm.get_rank()
    parts = [gather_rows(part) for part in mine.chunk(3)]
    torch.save(in_global_order(parts), output / f"{comm.get_rank()}.pth")


def test_parts_of_two_processes_come_back_in_the_order_of_the_global_batch(tmp_path):
    launch_forks(order_and_save, 2, tmp_path)
    for rank in range(2):
        assert torch.load(tmp_path / f"{rank}.pth").tolist() == list(range(12))


def test_losses_gathered_every_few_steps_are_the_same_losses():
    def run(period: int, count: int) -> tuple[dict, list[int]]:
        model = tiny_model("SOLVER.METRICS_PERIOD", period)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
        batches = [random_views(BATCH, small=24, seed=n) for n in range(count)]
        step = TrainStep(model, batches, optimizer, metrics_period=period)
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
