"""What a training step makes, keeps in memory and computes, found by running it on tensors without numbers.

The trainer's own step runs on torch's fake tensors: forward, backward, optimiser and the method's hooks. Of several
processes one runs, whose exchanges with the others return at once.
"""

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, sdpa_backward_flop_count, sdpa_flop_count

from projects.Planning.simulation import (
    CPU_ATTENTION,
    CPU_ATTENTION_BACKWARD,
    FakeStore,
    FakeTensorMode,
    TorchDispatchMode,
    is_mutable,
    name_of,
    storage_key,
    tree_leaves,
    unset_fake_temporarily,
)
from revisit.data.views.mapper import training_mapper
from revisit.engine.dry_run import build_meta_model
from revisit.engine.solver import build_optimizer
from revisit.engine.train_step import TrainStep

from detectron2.config import CfgNode
from detectron2.utils.events import EventStorage

aten = torch.ops.aten
_LATE = 2**40  # an even iteration, when whatever waits has joined


class StepCost(NamedTuple):
    """Of one process and one step."""

    shapes: dict[str, list]  # views, maps and rows of every part of the network, rings of a queue
    memory: dict[str, int]  # bytes by kind, at the moment when they are the most
    forward_flops: int  # floating-point operations: two for a multiplication with an addition
    backward_flops: int
    traffic: int  # bytes that operations read and write, each tensor once: a GPU's memory moves no fewer


def step_cost(cfg: CfgNode, num_processes: int) -> StepCost:
    """The cost of a step of pretraining after every loss has joined.

    float16 is planned as bfloat16; a step on a GPU as the same step on a CPU. Under autocast every pass casts fake
    weights again, where a real run keeps the first cast.
    """
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.DEVICE = "cpu"
    cfg.SOLVER.MAX_ITER = _LATE
    cfg.SOLVER.METRICS_PERIOD = 2  # the numbers of this step are not looked at
    with _only_process_of(num_processes):
        model = build_meta_model(cfg)
        if cfg.MODEL.CHANNELS_LAST:
            model.to(memory_format=torch.channels_last)
        with FakeTensorMode(allow_non_fake_inputs=True):
            batch = random_views(cfg, cfg.SOLVER.IMS_PER_BATCH // num_processes)
            model.to_empty(device="cpu").train()
            return _run(_ready_step(cfg, model, batch), batch, num_processes)


def random_views(cfg: CfgNode, batch: int) -> dict[str, Tensor]:
    """Views of noise, always the same, in the sizes and the memory layout of the loader's."""
    generator = torch.Generator().manual_seed(0)
    mapper = training_mapper(cfg)
    views = {"index": torch.arange(batch)}
    for name, shape in mapper.shapes.items():
        pixels = torch.randint(0, 256, (batch, *shape), dtype=torch.uint8, generator=generator)
        views[name] = pixels.movedim(-1, -3)
    with unset_fake_temporarily():  # real annotations, of images of COCO's usual size
        added = [mapper.plan(480, 640, 0, n).annotations for n in range(batch)]
        return views | {name: torch.from_numpy(np.stack([arrays[name] for arrays in added])) for name in added[0]}


def _ready_step(cfg: CfgNode, model: nn.Module, batch: dict[str, Tensor]) -> TrainStep:
    """The trainer's step as it is in the middle of a run: the optimiser has its state, every loss has joined."""
    optimizer = build_optimizer(cfg, model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    step = TrainStep(
        model,
        repeat(batch),
        optimizer,
        precision=torch.bfloat16 if cfg.SOLVER.AMP.ENABLED else None,
        accumulation_steps=cfg.SOLVER.ACCUMULATION_STEPS,
        metrics_period=cfg.SOLVER.METRICS_PERIOD,
    )
    step.register_hooks(model.hooks(cfg, 1))
    step.iter = step.max_iter = _LATE
    return step


def _run(step: TrainStep, batch: dict[str, Tensor], num_processes: int) -> StepCost:
    model, marks = step.model, []  # operations before and after each forward
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    # DistributedDataParallel exchanges gradients in buffers of its own.
    exchanged = [torch.empty_like(parameter) for parameter in trained] if num_processes > 1 else []
    kinds = {
        "weights": parameters,
        "optimizer": [x for state in step.optimizer.state.values() for x in state.values() if isinstance(x, Tensor)],
        "gradients": chain(exchanged, (parameter.grad for parameter in trained)),  # no list, which would keep them
        "buffers": list(model.buffers()),
        "batch": batch.values(),
    }
    with _record_shapes(model) as shapes, flop_counter() as counter, LiveMemory(kinds) as memory:
        for register in (model.register_forward_pre_hook, model.register_forward_hook):
            register(lambda *_: marks.append(counter.get_total_flops()))
        take(step)
    forward = sum(marks[1::2]) - sum(marks[::2])
    memory.assign("gradients", (parameter.grad for parameter in trained))
    shapes = {name: list(view.shape) for name, view in batch.items()} | shapes
    return StepCost(shapes, memory.peak(), forward, counter.get_total_flops() - forward, memory.traffic)


def take(step: TrainStep) -> None:
    """Take a step, with the hooks that belong to it."""
    with EventStorage(step.iter) as step.storage:
        step.before_step()
        step.run_step()
        step.after_step()


def flop_counter() -> FlopCounterMode:
    """Torch's counter, entered by ``with``, and what it lacks: groups of convolutions in the gradient of their weights,
    and attention on a CPU."""
    return FlopCounterMode(
        display=False,
        custom_mapping={
            aten.convolution_backward: _gradients_of_convolution,
            CPU_ATTENTION: _attention,
            CPU_ATTENTION_BACKWARD: _gradients_of_attention,
        },
    )


def _attention(query, key, value, *_, **__) -> int:
    return sdpa_flop_count(query, key, value)


def _gradients_of_attention(grad, query, key, value, *_, **__) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


def _gradients_of_convolution(grad, x, weight, bias, stride, padding, dilation, transposed, *rest, out_shape) -> int:
    """As many operations as forward for the gradient of the input, and again for that of the weight."""
    *_, asked = rest
    return sum(asked[:2]) * conv_flop_count(x, weight, grad, transposed)


@contextmanager
def _record_shapes(model: nn.Module) -> Iterator[dict[str, list]]:
    """Shapes by part of the network: of all that it returns, each once, or of its rows where it is not called."""
    shapes: dict[str, list] = {}

    def note(name: str, output: object) -> None:
        outputs = output.items() if isinstance(output, dict) else [("", output)]
        for part, value in outputs:
            if isinstance(value, Tensor):
                of_part = shapes.setdefault(f"{name}.{part}".rstrip("."), [])
                if list(value.shape) not in of_part:
                    of_part.append(list(value.shape))

    children = dict(model.named_children())
    for name, child in children.items():
        child.register_forward_hook(lambda _, __, output, name=name: note(name, output))
    yield shapes
    for name, child in children.items():
        if not any(key.partition(".")[0] == name for key in shapes):
            for part, value in child.named_buffers(recurse=False):
                if value.dim() == 2:
                    shapes[f"{name}.{part}"] = list(value.shape)


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that live while it is entered, and of those that operations read and write:
    ``traffic``. ``kinds`` has tensors that are there from the beginning; others that come up without being made are
    ``buffers``, what is made is ``activations``.
    """

    def __init__(self, kinds: dict[str, Iterable[Tensor]]):
        super().__init__()
        self.traffic = 0
        self._living: dict[int, tuple[weakref.ref, int]] = {}  # storages by address, with their numbers
        self._changes: list[tuple[int, int]] = []  # number of a storage; bytes, negative where it ends
        self._kinds: list[str] = []  # of the storages by number
        for kind, tensors in kinds.items():
            for tensor in tensors:
                self._note(tensor, kind)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for value in tree_leaves((args, kwargs)):
            self._note(value, "buffers")
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            self._note(value, "activations")
        self.traffic += _moved(func, tree_leaves((args, kwargs)), tree_leaves(result))
        return result

    def assign(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Say of what kind tensors are that were made on the way and still live."""
        for tensor in tensors:
            _, number = self._living[storage_key(tensor)]
            self._kinds[number] = kind

    def peak(self) -> dict[str, int]:
        """Bytes by kind at the moment when their sum is the largest."""
        now: dict[str, int] = defaultdict(int)
        total = 0
        most = 0
        peak = {}
        for number, change in self._changes:
            now[self._kinds[number]] += change
            total += change
            if total > most:
                most = total
                peak = dict(now)
        return peak

    def _note(self, value: object, kind: str) -> None:
        if not isinstance(value, Tensor):
            return
        storage = value.untyped_storage()
        address = storage_key(storage)
        number = len(self._kinds)
        size = storage.nbytes()
        if address in self._living:
            return

        def end(_: weakref.ref) -> None:
            del self._living[address]
            self._changes.append((number, -size))

        self._living[address] = (weakref.ref(storage, end), number)
        self._changes.append((number, size))
        self._kinds.append(kind)


def _moved(func: object, inputs: list, outputs: list) -> int:
    """Bytes that an operation reads and writes: none where it makes a view, or memory that nothing is in yet."""
    read, written = ([tensor for tensor in leaves if isinstance(tensor, Tensor)] for leaves in (inputs, outputs))
    storages = {storage_key(tensor) for tensor in read}
    is_view = not is_mutable(func) and all(storage_key(tensor) in storages for tensor in written)
    if is_view or "empty" in name_of(func):
        return 0
    return sum(tensor.numel() * tensor.element_size() for tensor in chain(read, written))


@contextmanager
def _only_process_of(count: int) -> Iterator[None]:
    """Be the first of ``count`` processes of which no other exists."""
    if count == 1:
        yield
        return
    dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
