"""One optimiser step: the forward under autocast, the batch in parts, one update; and a report of a loss that is not
finite."""

import contextlib
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from revisit.data.images.pixel_format import PixelFormat
from revisit.data.randomness import Stream, seed_global_generators
from revisit.errors import UserError, on_one_line
from revisit.files import write_whole
from revisit.keys import COUNT, declare, one_of
from revisit.modeling.distributed import gather_rows, unwrap

from detectron2.engine.train_loop import SimpleTrainer
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage
from fvcore.common.registry import Registry

BATCH_PICTURE_REGISTRY = Registry("BATCH_PICTURE")
BATCH_PICTURE_REGISTRY.__doc__ = """
Pictures of the batch of a loss that is not finite: functions of the batch, of a path STEM and of the images'
PixelFormat, which write STEM_*.png.
"""

declare(
    "SOLVER.AMP.DTYPE",
    "bfloat16",
    "Of autocast, with SOLVER.AMP.ENABLED: bfloat16, or float16, whose loss is scaled.",
    one_of("bfloat16", "float16"),
)
declare(
    "SOLVER.ACCUMULATION_STEPS",
    1,
    "Passes over IMS_PER_BATCH / ACCUMULATION_STEPS images before each optimiser step: the memory of the part, the "
    "gradient and the keys of the whole.",
    COUNT,
)


class NonFiniteLossError(Exception):
    """A loss is not finite; the step has changed nothing yet.

    Args:
        losses: by name, the value of every process in the order of their ranks.
    """

    def __init__(self, iteration: int, losses: dict[str, list[float]]):
        super().__init__(f"a loss of iteration {iteration} is not finite: {losses}")
        self.iteration = iteration
        self.losses = losses


class TrainStep(SimpleTrainer):
    """Detectron2's SimpleTrainer with mixed precision and gradient accumulation, on the CPU as on a GPU.

    Args:
        prepare: what is done with a batch once it is there, as part of the step: it is no wait for data.
        precision: dtype of autocast, or None for float32 throughout. float16 scales the loss.
        seed: of what the model draws in a step, such as dropout, by iteration and process.
        metrics_period: steps whose losses are gathered together, after the last of them: only then does the host wait
            for the device, but for float16's loss scale. A loss that is not finite is noticed as late; with 1, before
            the step changes anything.
        accumulation_steps: parts that every process's batch is run in. Gradient and logged losses are the means of
            the parts', so those of the whole batch where a loss is a mean over images (pretraining); a mean over
            labelled pixels weighs each part alike, as it does each process. BN sees one part at a time.
    """

    def __init__(
        self,
        *args: object,
        prepare: Callable[[dict | list], dict | list] = lambda batch: batch,
        precision: torch.dtype | None = None,
        seed: int = 0,
        accumulation_steps: int = 1,
        metrics_period: int = 1,
    ):
        super().__init__(*args)
        self._prepare = prepare
        self._precision = precision
        self._seed = seed
        self._accumulation_steps = accumulation_steps
        self._metrics_period = metrics_period
        self._steps: list[tuple[int, dict[str, Tensor]]] = []  # iterations and losses that are not gathered yet
        self._device = next(self.model.parameters()).device.type
        self.grad_scaler = torch.amp.GradScaler(self._device, enabled=precision == torch.float16)
        self.skipped_steps = 0  # in which float16 overflowed

    def run_step(self) -> None:
        start = time.perf_counter()
        batch = next(self._data_loader_iter)
        data_time = time.perf_counter() - start
        self.last_batch = batch = self._prepare(batch)
        seed_global_generators(self._seed, Stream.STEP, get_event_storage().iter, comm.get_rank())
        if self._device == "cuda":  # the products that autocast leaves to float32: scores and neighbours
            torch.backends.cuda.matmul.allow_tf32 = self._precision is not None
        self.optimizer.zero_grad()
        parts = split_batch(batch, self._accumulation_steps)
        means: dict[str, Tensor] = {}
        for part in parts:
            # DDP averages gradients over processes once, after the last part.
            ddp = isinstance(self.model, nn.parallel.DistributedDataParallel)
            with self.model.no_sync() if ddp and part is not parts[-1] else contextlib.nullcontext():
                # Of a TorchScript, such as RetinaNet's loss, torch makes something after its first steps that rounds
                # otherwise, and a resumed run has other first steps. On a GPU that saves memory, and stays.
                as_in_first_steps = torch.jit.optimized_execution(self._device != "cpu")
                autocast = torch.autocast(self._device, self._precision, enabled=self._precision is not None)
                with autocast, as_in_first_steps:
                    losses = self.model(part)
                self.grad_scaler.scale(sum(losses.values()) / len(parts)).backward()
            for name, loss in losses.items():
                means[name] = means.get(name, 0) + loss.detach() / len(parts)
        iteration = get_event_storage().iter
        self._steps.append((iteration, {**means, "data_time": torch.tensor(data_time)}))
        if (iteration + 1) % self._metrics_period == 0:
            self.gather_metrics()
        # The optimiser's step, unless float16 has overflowed: then the loss is scaled down for the next ones.
        before = self.grad_scaler.get_scale()
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
        if self.grad_scaler.is_enabled():
            scale = self.grad_scaler.get_scale()
            self.skipped_steps += scale < before
            get_event_storage().put_scalars(smoothing_hint=False, grad_scale=scale, skipped_steps=self.skipped_steps)

    def gather_metrics(self) -> None:
        """Log the steps since the last time: means of losses over processes, the longest wait for data.

        All processes see all losses, unlike Detectron2's, so that all of them stop where one is not finite.
        """
        steps = self._steps
        self._steps = []
        for _, alike in itertools.groupby(steps, key=lambda step: tuple(step[1])):  # a loss may join on the way
            self._write_metrics(list(alike))

    def _write_metrics(self, steps: list[tuple[int, dict[str, Tensor]]]) -> None:
        rows = [torch.stack([loss.to(self._device, torch.float64) for loss in losses.values()]) for _, losses in steps]
        everywhere = gather_rows(torch.stack(rows)[None]).tolist()  # by process, step and loss
        storage = get_event_storage()
        for n, (iteration, losses) in enumerate(steps):
            values = {name: [losses_of[n][column] for losses_of in everywhere] for column, name in enumerate(losses)}
            storage.put_scalar("data_time", max(values.pop("data_time")))
            means = {name: sum(one) / len(one) for name, one in values.items()}
            if not all(map(math.isfinite, means.values())):
                raise NonFiniteLossError(iteration, values)
            storage.put_scalars(total_loss=sum(means.values()), **means)

    def _names(self) -> dict[nn.Parameter, str]:
        return {parameter: name for name, parameter in unwrap(self.model).named_parameters()}

    def state_dict(self) -> dict:
        """The optimiser's state by name of the parameter: groups may be others where it is loaded."""
        names = self._names()
        optimizer = {names[parameter]: state for parameter, state in self.optimizer.state.items()}
        return {
            "optimizer": optimizer,
            "grad_scaler": self.grad_scaler.state_dict(),
            "skipped_steps": self.skipped_steps,
        }

    def load_state_dict(self, state_dict: dict) -> None:
        """The state of every parameter is the checkpoint's; hyper-parameters, and how a step is computed, stay ours."""
        names = self._names()
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                for key, value in state_dict["optimizer"].get(names[parameter], {}).items():
                    if isinstance(value, Tensor) and value.shape == parameter.shape:
                        # A fused step goes through memory in its order, which MODEL.CHANNELS_LAST may have changed.
                        value = torch.empty_like(parameter).copy_(value)
                    elif isinstance(value, Tensor) and group.get("fused"):
                        value = value.to(parameter.device)
                    self.optimizer.state[parameter][key] = value
        if scaler := state_dict["grad_scaler"]:  # empty where the run was not in float16 so far
            self.grad_scaler.load_state_dict(scaler)
        self.skipped_steps = state_dict["skipped_steps"]


def split_batch(batch: dict | list, parts: int) -> list:
    """A batch in equal parts, in order: Detectron2's list of dicts, or the tensors of a dict (a ViewBatch)."""
    if isinstance(batch, list):
        size = len(batch) // parts
        return [batch[n * size : (n + 1) * size] for n in range(parts)]
    chunks = {name: value.chunk(parts) for name, value in batch.items() if isinstance(value, Tensor)}
    return [{name: chunk[n] for name, chunk in chunks.items()} for n in range(parts)]


def report_non_finite(
    error: NonFiniteLossError, output: Path, batch: dict | list, images: list[str], pixels: PixelFormat
) -> UserError:
    """Write the inputs of the processes whose loss it was, and return what all processes raise.

    Files: OUTPUT_DIR/non_finite/iteration_N_process_R.txt, the images; and their pictures, where a plug-in draws them.
    """
    ranks = {rank for values in error.losses.values() for rank, value in enumerate(values) if not math.isfinite(value)}
    folder = output / "non_finite"
    if comm.get_rank() in ranks:
        with contextlib.suppress(OSError):  # a full disk: what happened is reported all the same
            folder.mkdir(parents=True, exist_ok=True)
            stem = f"iteration_{error.iteration:07d}_process_{comm.get_rank()}"
            write_whole(folder / f"{stem}.txt", "".join(f"{on_one_line(name)}\n" for name in images))
            for _, draw in BATCH_PICTURE_REGISTRY:
                draw(batch, folder / stem, pixels)
    comm.synchronize()
    losses = ", ".join(f"{name} {' '.join(f'{value:g}' for value in values)}" for name, values in error.losses.items())
    return UserError(
        f"the loss of iteration {error.iteration} is not finite ({losses}). Nothing of this step has been saved; its "
        f"inputs are in {folder}. Lower SOLVER.BASE_LR or lengthen its warm-up, and resume from the last checkpoint "
        "with --resume, or start again without it"
    )
