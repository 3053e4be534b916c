"""Mixed precision, gradient accumulation and memory format change how a step is computed, never what it is.

A loss that is not finite ends the run in one line, with the inputs as pictures and every checkpoint as it was.
"""

from pathlib import Path
from types import FunctionType

import cv2
import numpy as np
import pytest
import torch
from commands import launch_forks
from runs import load, train
from tiny import random_views, tiny_config, tiny_model
from trees import refused
from true_steps import sgd, take_steps

import revisit.engine.train_step as train_step_module
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.engine.optimizers import OPTIMIZER_REGISTRY
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.train_step import NonFiniteLossError, TrainStep, report_non_finite, split_batch
from revisit.errors import UserError
from revisit.modeling.distributed import unwrap

from detectron2.engine import HookBase
from detectron2.utils import comm
from detectron2.utils.events import EventStorage
from fvcore.common.history_buffer import HistoryBuffer
from fvcore.nn import focal_loss, sigmoid_focal_loss

BATCH = 8


def steps(*options: object, channels_last: bool = False, **how: object) -> dict:
    """Three true steps with BN in evaluation mode; what they leave."""
    model = tiny_model(*options)
    if channels_last:
        model.to(memory_format=torch.channels_last)
    labels = torch.arange(3 * BATCH).chunk(3)
    batches = [{**random_views(BATCH, small=24, seed=n), "label": labels[n]} for n in range(3)]
    return take_steps(model, tiny_config(*options), batches, **how)


@pytest.mark.parametrize(
    ("options", "how", "rtol"),
    [
        ((), {"accumulation_steps": 2}, 1e-5),
        ((), {"accumulation_steps": 4}, 1e-5),
        (("MODEL.META_ARCHITECTURE", "MoCo"), {"accumulation_steps": 2}, 1e-5),
        ((), {"channels_last": True}, 1e-4),
    ],
)
def test_parts_and_layout_change_nothing_beyond_rounding(options, how, rtol):
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


def test_float16_skips_an_overflow_and_saves_its_scale():
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
def test_a_checkpoint_leaves_the_steps_computation_open(precision):
    """One from before steps were fused, from a run that clips gradients, or from one in another precision."""
    model = tiny_model()
    plain, fused = sgd(model), sgd(model, fused=True)
    TrainStep(model, [], fused, precision=precision).load_state_dict(TrainStep(model, [], plain).state_dict())
    assert fused.param_groups[0]["fused"] is True


def test_optimiser_state_takes_the_parameters_layout():
    """A fused step takes what lies at one place of memory for what belongs together."""
    conv = torch.nn.Conv2d(3, 8, 3, bias=False)
    before = TrainStep(conv, [], sgd(conv, momentum=0.9))
    momentum = torch.arange(8.0 * 27).view(8, 3, 3, 3)
    before.optimizer.state[conv.weight]["momentum_buffer"] = momentum
    saved = before.state_dict()
    conv.to(memory_format=torch.channels_last)
    step, start = TrainStep(conv, [], sgd(conv, momentum=0.9, fused=True)), conv.weight.detach().clone()
    step.load_state_dict(saved)
    conv.weight.grad = torch.zeros_like(conv.weight)
    step.optimizer.step()
    assert torch.allclose(conv.weight.detach(), start - 0.05 * 0.9 * momentum)


def test_the_first_step_that_float16_does_not_skip_has_the_momentum_of_its_gradient():
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = OPTIMIZER_REGISTRY.get("SGD")(tiny_config(), [{"params": [weight]}])
    scaler = torch.amp.GradScaler("cpu")
    torch.use_deterministic_algorithms(True)  # what lay in memory is NaN
    try:
        for gradient in (torch.inf, torch.inf, 1.0):
            weight.grad = scaler.scale(torch.full((8,), gradient))
            scaler.step(optimizer)
            scaler.update()
    finally:
        torch.use_deterministic_algorithms(False)
    assert optimizer.state[weight]["momentum_buffer"].tolist() == pytest.approx([1.0] * 8, abs=1e-3)  # weight decay


def test_a_parameter_whose_gradient_comes_later_learns_as_by_steps_that_are_not_fused():
    learned = []
    for is_fused in (True, False):
        parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        cfg = tiny_config("SOLVER.CLIP_GRADIENTS.ENABLED", not is_fused)
        optimizer = OPTIMIZER_REGISTRY.get("SGD")(cfg, [{"params": parameters}])
        assert optimizer.param_groups[0]["fused"] is is_fused
        for count in (1, 2, 2):
            for parameter in parameters[:count]:
                parameter.grad = torch.full((3,), 2.0)
            optimizer.step()
        learned.append(torch.cat(parameters))
    assert torch.allclose(*learned) and learned[0].unique().numel() == 2


class FocalLoss(torch.nn.Module):
    """RetinaNet's loss of logits, which are the parameters, in a TorchScript that nothing has called yet."""

    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.randn(1000, generator=torch.Generator().manual_seed(0)))
        plain = FunctionType(sigmoid_focal_loss.__code__, vars(focal_loss), argdefs=sigmoid_focal_loss.__defaults__)
        plain.__annotations__ = sigmoid_focal_loss.__annotations__
        self.loss = torch.jit.script(plain)

    def forward(self, batch: list) -> dict:
        return {"loss": self.loss(self.logits, (self.logits > 1).float(), alpha=0.25, gamma=2.0, reduction="sum")}


def test_a_process_takes_its_first_steps_as_its_later_ones():
    model, gradients = FocalLoss(), []
    step = TrainStep(model, [[0]] * 4, torch.optim.SGD(model.parameters(), lr=0.0))
    with EventStorage(0):
        for _ in range(4):
            step.run_step()
            gradients.append(model.logits.grad.clone())
    assert all(torch.equal(gradients[0], gradient) for gradient in gradients)


def test_batches_are_split_in_order_without_reports():
    assert split_batch(list("abcdef"), 3) == [["a", "b"], ["c", "d"], ["e", "f"]]
    views = {**random_views(4), "read_errors": ["x"], "num_fallbacks": 1}
    first, second = split_batch(views, 2)
    assert set(first) == {"anchor", "positive", "small"}
    assert torch.equal(torch.cat([first["small"], second["small"]]), views["small"])


def test_waiting_for_data_leaves_out_what_the_device_does(monkeypatch):
    seconds = [0.0]

    def after(wait: float, value: object) -> object:
        seconds[0] += wait
        return value

    monkeypatch.setattr(train_step_module.time, "perf_counter", lambda: seconds[0])
    views = random_views(BATCH, small=24)
    views["deferred"] = lambda batch, device: after(5.0, {"small": batch["small"] + 1})
    small, batches = views["small"], (after(2.0, views) for _ in range(1))
    step = PretrainTrainer.build_step(tiny_config(), tiny_model(), batches)
    with EventStorage(0) as storage:
        step.run_step()
        assert storage.history("data_time").latest() == 2.0
    assert torch.equal(step.last_batch["small"], small + 1)


def test_a_steps_randomness_depends_on_seed_and_counters(monkeypatch):
    class Draw(torch.nn.Linear):
        def forward(self, batch: dict) -> dict:
            self.drawn = torch.rand(3)
            return {"loss": self.weight.sum()}

    model = Draw(1, 1)
    monkeypatch.setattr(comm, "get_rank", lambda: 2)
    with EventStorage(5):
        TrainStep(model, [{}], sgd(model), seed=7).run_step()
    words = np.random.Generator(np.random.Philox(key=[7, 6], counter=[0, 0, 2, 5])).integers(2**32, size=3)
    assert torch.equal(model.drawn, torch.rand(3, generator=torch.Generator().manual_seed(int(words[2]))))


def test_losses_gathered_late_are_the_same():
    def run(period: int, count: int) -> tuple[dict, list[int]]:
        model = tiny_model("SOLVER.METRICS_PERIOD", period)
        batches = [random_views(BATCH, small=24, seed=n) for n in range(count)]
        step = TrainStep(model, batches, sgd(model), metrics_period=period)
        with EventStorage(0) as storage:
            counts = []
            for n in range(count):
                storage.iter = n
                step.run_step()
                assert not any(loss.requires_grad for _, kept in step._steps for loss in kept.values())  # no graphs
                model.enqueue_pending_keys()
                counts.append(len(storage.histories().get("loss_inst", HistoryBuffer()).values()))
            step.gather_metrics()
            return {name: [v for v, _ in h.values()] for name, h in storage.histories().items()}, counts

    (every, told_each), (third, told_third) = run(1, 5), run(3, 5)
    assert told_each == [1, 2, 3, 4, 5] and told_third == [0, 0, 3, 3, 3]
    for name in ("loss_inst", "loss_nn", "total_loss"):
        assert third[name] == every[name] and len(every[name]) == 5
    assert third["contrast_top1"] == every["contrast_top1"][2:3]  # monitors are of the step that is read


class Diverge(HookBase):
    """From one iteration on, the weights of one process's model are such that its loss is no number."""

    def __init__(self, iteration: int, rank: int = 0):
        self._iteration, self._rank = iteration, rank

    def before_step(self) -> None:
        if self.trainer.iter == self._iteration and comm.get_rank() == self._rank:
            torch.nn.init.constant_(next(unwrap(self.trainer.model).projection_head.parameters()), float("nan"))


@pytest.mark.parametrize(("iteration", "last", "period"), [(5, 8, 1), (4, 8, 100), (4, 6, 100)])
def test_a_non_finite_loss_stops_with_its_views(toy_datasets, tmp_path, monkeypatch, iteration, last, period):
    """Also where losses are read every few steps: before a checkpoint, or at the end."""
    monkeypatch.setattr(PretrainTrainer, "test", lambda *_: pytest.fail("evaluated"))
    options = ("SOLVER.MAX_ITER", last, "SOLVER.CHECKPOINT_PERIOD", 2, "SOLVER.METRICS_PERIOD", period)
    with pytest.raises(UserError, match=rf"loss of iteration {iteration} is not finite \(loss_inst nan") as error:
        train(tmp_path, *options, hook=Diverge(iteration))
    assert "\n" not in str(error.value) and str(tmp_path / "non_finite") in str(error.value)
    stem = tmp_path / f"non_finite/iteration_{iteration:07d}_process_0"
    sheet = cv2.imread(f"{stem}_1.png")
    assert sheet.shape == (8 * 170 + 22, 6 * 170 + 22, 3) and sheet.std() > 20  # eight images, six views each
    listed = stem.with_suffix(".txt").read_text().split()
    assert len(set(listed)) == 8 and all(Path(name).is_file() for name in listed)
    assert sorted(path.name for path in tmp_path.glob("model_*")) == ["model_0000001.pth", "model_0000003.pth"]
    assert all(value.isfinite().all() for value in load(tmp_path / "model_0000003.pth")["model"].values())


def train_two(output: Path) -> None:
    train(output, "SOLVER.MAX_ITER", 8, "SOLVER.CHECKPOINT_PERIOD", 2, hook=Diverge(3, rank=1))


def test_one_processs_non_finite_loss_stops_all(toy_datasets, tmp_path):
    refused("loss of iteration 3 is not finite", launch_forks, train_two, 2, tmp_path)
    pictures = sorted(path.name for path in (tmp_path / "non_finite").iterdir())
    assert pictures == ["iteration_0000003_process_1.txt", "iteration_0000003_process_1_1.png"]
    assert [path.name for path in tmp_path.glob("model_*")] == ["model_0000001.pth"]


def test_nothing_changes_in_a_step_that_fails(monkeypatch):
    model = tiny_model().train()
    before = {name: value.clone() for name, value in model.named_parameters()}
    loss = model.projection_head[0].weight.sum() * float("inf")
    monkeypatch.setattr(type(model), "losses", lambda *_: {"loss_inst": loss})
    step = TrainStep(model, [random_views(8)], sgd(model))
    with EventStorage(4), pytest.raises(NonFiniteLossError, match="iteration 4"):
        step.run_step()
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_inputs_of_finetuning_are_shown_too(tmp_path):
    images = [torch.full((3, 20, 40), 90, dtype=torch.uint8), torch.full((3, 50, 30), 200, dtype=torch.uint8)]
    batch = [{"image": image, "file_name": f"{n}.jpg"} for n, image in enumerate(images)]
    error = NonFiniteLossError(12, {"loss_sem_seg": [float("inf")]})
    said = report_non_finite(error, tmp_path, batch, ["0.jpg", "1.jpg"], PHOTOGRAPHS)
    assert "loss_sem_seg inf" in str(said)
    assert cv2.imread(str(tmp_path / "non_finite/iteration_0000012_process_0_1.png")).shape == (90 + 170 + 22, 192, 3)
