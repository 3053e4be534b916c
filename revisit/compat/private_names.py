"""Names that torch, Detectron2, yacs and Ray keep to themselves and that no public name replaces.

No other file of the core uses such names (tests/test_house.py), so what a new release renames is mended here.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.multiprocessing import _prctl_pr_set_pdeathsig
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

__all__ = ["BatchNorm"]


def shared_bytes(shape: tuple[int, ...]) -> Tensor:
    """An empty uint8 tensor in memory that other processes can map."""
    storage = torch.UntypedStorage._new_shared(torch.Size(shape).numel(), device="cpu")
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, shape)


def move_means(means: Sequence[Tensor], values: Sequence[Tensor], momentum: float) -> None:
    """mean <- momentum mean + (1 - momentum) value, in place: a few kernels for all tensors, with the numbers of one at
    a time."""
    torch._foreach_mul_(means, momentum)
    torch._foreach_add_(means, values, alpha=1 - momentum)


def decode_value(text: object) -> Any:
    """What yacs makes of a value that was typed: a number, a list, text."""
    from detectron2.config import CfgNode

    return CfgNode._decode_cfg_value(text)


def schedule_of(scheduler: Any) -> Callable[[float], float]:
    """The schedule, over the share of the training that is done, of Detectron2's ``LRMultiplier``."""
    return scheduler._multiplier


def process_timeout() -> timedelta | None:
    """How long the processes of a run wait for each other; None of a dry run's, which do not wait."""
    device = torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")
    options = distributed.group.WORLD._get_backend(device).options
    return getattr(options, "_timeout", None)


@contextmanager
def processes_wait(timeout: timedelta) -> Iterator[None]:
    """In the block, which all processes of a run enter, they wait so long for each other, where that is longer."""
    usual = process_timeout() if distributed.is_initialized() else None
    groups = {distributed.group.WORLD, gloo_group()} if usual and usual < timeout else set()
    for group in groups:
        distributed.distributed_c10d._set_pg_timeout(timeout, group)
    try:
        yield
    finally:
        for group in groups:
            distributed.distributed_c10d._set_pg_timeout(usual, group)


def kill_with_parent() -> None:
    """Let the kernel kill this process when the one that started it dies.

    torch would send SIGINT, which asks a training for a checkpoint.
    """
    _prctl_pr_set_pdeathsig(signal.SIGKILL)


def gloo_group() -> distributed.ProcessGroup:
    """The gloo group of all processes, which Detectron2 makes once; collectives on the CPU work in it."""
    from detectron2.utils import comm

    return comm._get_global_gloo_group()


def set_local_group(group: distributed.ProcessGroup | None) -> None:
    """Tell Detectron2's comm which processes are on this machine."""
    from detectron2.utils import comm

    comm._LOCAL_PROCESS_GROUP = group


def forget_process_groups() -> None:
    """Drop Detectron2's references: gloo's threads of groups that are alive at exit abort the process now and then."""
    from detectron2.utils import comm

    comm._get_global_gloo_group.cache_clear()
    set_local_group(None)


@contextmanager
def ray_on_this_machine_alone() -> Iterator[None]:
    """A Ray cluster that is started in the block has its ports at 127.0.0.1, as on Windows and macOS, not at all
    addresses of this machine."""
    from ray._private import ray_constants

    among_machines, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = among_machines
