"""Start the processes of a run: NCCL on GPUs, gloo on a machine without."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from revisit.errors import UserError

from detectron2.utils import comm

TIMEOUT = timedelta(minutes=30)


def launch(
    main: Callable[..., object],
    num_processes: int,
    *,
    device: str,
    num_machines: int = 1,
    machine_rank: int = 0,
    dist_url: str = "auto",
    args: tuple = (),
) -> None:
    """Run ``main(*args)`` in ``num_processes`` processes on each of ``num_machines`` machines.

    Detectron2's own launch demands CUDA. On ``device`` cpu each process is a gloo rank with its share of the
    cores. One process in all runs in this process.

    Raises:
        UserError: more processes than GPUs; an address is needed; whatever UserError a process raised.
        SystemExit: a process was killed, with the shell's exit code for it.
    """
    world_size = num_processes * num_machines
    on_gpu = device != "cpu"
    if on_gpu and num_processes > torch.cuda.device_count():
        raise UserError(f"--num-gpus {num_processes}, but this machine has {torch.cuda.device_count()}")
    if world_size == 1:
        main(*args)
        return
    if dist_url == "auto":
        if num_machines > 1:
            raise UserError("several machines need --dist-url tcp://ADDRESS:PORT of machine 0")
        dist_url = f"tcp://127.0.0.1:{_free_port()}"
    user_errors = mp.get_context("spawn").SimpleQueue()
    try:
        mp.spawn(
            _run_rank,
            (user_errors, main, on_gpu, num_processes, num_machines, machine_rank, dist_url, args),
            nprocs=num_processes,
        )
    except mp.ProcessExitedException as error:
        if not user_errors.empty():
            raise UserError(user_errors.get()) from None
        sys.exit(error.exit_code if error.exit_code > 0 else 128 - error.exit_code)


def _run_rank(
    local_rank: int,
    user_errors: mp.SimpleQueue,
    main: Callable[..., object],
    on_gpu: bool,
    num_processes: int,
    num_machines: int,
    machine_rank: int,
    dist_url: str,
    args: tuple,
) -> None:
    if on_gpu:
        torch.cuda.set_device(local_rank)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // num_processes))
    dist.init_process_group(
        backend="nccl" if on_gpu else "gloo",
        init_method=dist_url,
        world_size=num_processes * num_machines,
        rank=machine_rank * num_processes + local_rank,
        timeout=TIMEOUT,
    )
    _create_local_group(num_processes, num_machines, machine_rank)
    comm.synchronize()
    try:
        main(*args)
    except UserError as error:
        user_errors.put(str(error))
        os._exit(UserError.EXIT_CODE)  # the other ranks may be waiting inside a collective
    # Groups that Detectron2 still refers to keep gloo's threads, which abort the process at its exit now and then.
    comm._get_global_gloo_group.cache_clear()
    comm._LOCAL_PROCESS_GROUP = None
    dist.destroy_process_group()


def _create_local_group(num_processes: int, num_machines: int, machine_rank: int) -> None:
    """The group of this machine's ranks, which Detectron2's comm asks for."""
    if hasattr(comm, "create_local_process_group"):  # Detectron2's main branch
        comm.create_local_process_group(num_processes)
        return
    for machine in range(num_machines):
        group = dist.new_group(list(range(machine * num_processes, (machine + 1) * num_processes)))
        if machine == machine_rank:
            comm._LOCAL_PROCESS_GROUP = group


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def log_processes(device: str) -> None:
    """Say on the main process what the run runs on."""
    world_size = comm.get_world_size()
    if device == "cpu":
        how = f"{world_size} gloo processes" if world_size > 1 else "one process"
        where = f"the CPU: {how}, {torch.get_num_threads()} threads each"
    else:
        where = f"{world_size} x {torch.cuda.get_device_name()}"
    logging.getLogger(__name__).info(f"Running on {where}")
