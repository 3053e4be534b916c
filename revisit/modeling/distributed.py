"""What the processes of a run exchange: rows of all of them in one order, and the main process's state."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from revisit.compat.private_names import process_timeout
from revisit.errors import UserError

from detectron2.utils import comm


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, or the model itself."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def share_state(module: nn.Module) -> None:
    """Give every process the main process's weights and buffers, which are what it saves.

    A new model is another one on every process; later, BN statistics alone differ.
    """
    if comm.get_world_size() > 1:
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)


@contextmanager
def raised_by_all() -> Iterator[None]:
    """What one process finds wrong in the block, in which processes exchange nothing, all of them raise after it: they
    would wait for that one, and take its silence for a machine that is lost."""
    wrong = None
    try:
        yield
    except UserError as error:
        wrong = error
    first = next(filter(None, comm.all_gather(wrong)), None)
    if first:
        raise first


def consecutive_processes(count: int) -> dist.ProcessGroup:
    """The group of ``count`` processes with consecutive ranks that holds this one; all processes call it together.

    It waits for one of them as long as the group of all does.
    """
    group, _ = dist.new_subgroups(count, timeout=process_timeout())
    return group


def gather_rows(rows: Tensor) -> Tensor:
    """(B/P, W) on each process -> (B, W) on all of them, in order of rank, without gradient."""
    return start_gather(rows)()


def own_share(rows: Tensor) -> Tensor:
    """This process's (B/P, ...) of rows (B, ...) of all processes, in order of rank."""
    return rows.chunk(comm.get_world_size())[comm.get_rank()]


def gather_rows_with_gradient(rows: Tensor) -> Tensor:
    """(B/P, ...) on each process -> (B, ...) on all of them, in order of rank, with gradient to each."""
    return _Gathered.apply(rows) if comm.get_world_size() > 1 else rows


class _Gathered(torch.autograd.Function):
    """``gather_rows``, of which each process's rows get the sum of all processes' gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return gather_rows(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return own_share(total)


def start_gather(rows: Tensor) -> Callable[[], Tensor]:
    """``gather_rows`` that runs while other things are computed; the call that is returned waits for it."""
    if comm.get_world_size() == 1:
        return lambda: rows
    parts = [torch.empty_like(rows) for _ in range(comm.get_world_size())]
    work = dist.all_gather(parts, rows.contiguous(), async_op=True)

    def finish() -> Tensor:
        work.wait()
        return torch.cat(parts)

    return finish


def in_global_order(parts: list[Tensor]) -> Tensor:
    """Rows that ``gather_rows`` gave for each part of a step, as one gather of the whole step would give them.

    Each part (P * b, ...) holds b rows of every process in order of rank; the result (parts * P * b, ...) holds
    all rows of the first process, then all of the second.
    """
    by_process = torch.stack([part.unflatten(0, (comm.get_world_size(), -1)) for part in parts], dim=1)
    return by_process.flatten(0, 2)
