"""Start the processes of a run, or join those that somebody else started: NCCL on GPUs, gloo on machines without."""

import argparse
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.queues import SimpleQueue
from typing import NamedTuple
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.elastic.utils.distributed import get_free_port

from revisit.compat.private_names import forget_process_groups, kill_with_parent, set_local_group
from revisit.data.loading import workers
from revisit.engine.command import TIMEOUT
from revisit.engine.stop_signals import StopSignals
from revisit.errors import (
    InterruptedRunError,
    LostContactError,
    UserError,
    expect,
    first_line,
    is_lost_contact,
    translated,
    words_of_disk,
)
from revisit.threads import cores

from detectron2.utils import comm

START_METHOD = "spawn"  # a fork would lack the threads of its parent's torch, and could not use CUDA
LOOPBACK = "127.0.0.1"
_PATIENCE = timedelta(minutes=1)  # of a machine with a mistake, until the others come
_HEARD = 1.0  # seconds until the others have read what machine 0, where the store is, has written
GRACE = 5.0  # seconds: a process that failed by itself is heard before those that miss it, and these may end


class Processes(NamedTuple):
    """Which processes a run has, seen from one machine."""

    num_processes: int  # on each machine
    num_machines: int = 1
    machine_rank: int = 0
    dist_url: str = "auto"  # tcp://ADDRESS:PORT of machine 0
    timeout: timedelta = TIMEOUT  # for one collective

    @property
    def world_size(self) -> int:
        return self.num_processes * self.num_machines


def find_processes(args: argparse.Namespace) -> Processes:
    """The processes of a command line with Detectron2's options, or those of torchrun where it started this process."""
    timeout = timedelta(minutes=args.timeout)
    if not dist.is_torchelastic_launched():
        expect(
            0 <= args.machine_rank < args.num_machines,
            f"--machine-rank {args.machine_rank} of --num-machines {args.num_machines}: expected 0 to "
            f"{args.num_machines - 1}, counted from 0",
        )
        if args.num_machines == 1:
            _check_alone()
        return Processes(args.num_gpus, args.num_machines, args.machine_rank, args.dist_url, timeout)
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    world = int(os.environ["WORLD_SIZE"])
    machines = world // local
    expect(
        args.num_gpus in (1, local) and args.num_machines in (1, machines),
        f"torchrun started {machines} x {local} processes, but the options ask for {args.num_machines} x "
        f"{args.num_gpus}: leave out --num-gpus and --num-machines",
    )
    return Processes(local, machines, int(os.environ["GROUP_RANK"]), "env://", timeout)


def _check_alone() -> None:
    """Raise UserError where another launcher than torchrun has started several processes, each of which would train by
    itself. A job of SLURM with several tasks may have started one of them."""
    counts = {name: os.environ.get(name, "") for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")}
    for name, count in counts.items():
        if not count.isdecimal() or int(count) < 2:
            continue
        alone = f"{name} is {count}, but each process that is started without torchrun trains by itself"
        way_out = "expected torchrun, --num-gpus and --num-machines, or tools/slurm.py"
        expect(name.startswith("SLURM"), f"{alone}: {way_out}; where one process is meant, unset {name}")
        print(f"warning: {alone}: {way_out}, or one task", file=sys.stderr)


# Not Detectron2's launch: that of 0.6 knows CUDA alone; that of main passes no signal on, ends with a traceback, and
# leaves processes behind where it is killed.
def launch(main: Callable[..., object], processes: Processes, *, device: str, args: tuple = ()) -> None:
    """Run ``main(*args)`` in every process. One process in all is this one.

    Raises:
        UserError: more processes than GPUs; whatever UserError a process raised.
        LostContactError: a process or machine did not answer within the timeout.
        SystemExit: a process was killed, with the shell's exit code for it.
    """
    mp.set_start_method(workers.START_METHOD, force=True)  # also of a plug-in's own loader, whatever Python's is
    on_gpu = device != "cpu" and not device.startswith("mps")
    expect(
        on_gpu or device == "cpu" or processes.world_size == 1,
        f"MODEL.DEVICE {device}, which one process alone can use: expected one, or MODEL.DEVICE cpu",
    )
    index = _index_of_gpu(processes, device) if on_gpu else None
    if processes.world_size > 1:
        if dist.is_torchelastic_launched():
            _run_rank(int(os.environ["LOCAL_RANK"]), None, main, on_gpu, processes, args)
        else:
            _launch_several(main, on_gpu, processes, args)
        return
    if index is not None:
        torch.cuda.set_device(index)
    else:
        _use_own_cores(1)
    main(*args)


def _index_of_gpu(processes: Processes, device: str) -> int | None:
    """The GPU that ``device`` names by number, which one process alone may. Raises UserError for too few GPUs."""
    with translated(f"MODEL.DEVICE {device}"):
        gpus = torch.cuda.device_count()
        index = torch.device(device).index
    has = f"this machine has {gpus} GPU{'s' * (gpus != 1)}"
    expect(processes.num_processes <= gpus, f"--num-gpus {processes.num_processes}, but {has}")
    if index is not None:
        expect(
            processes.world_size == 1, f"MODEL.DEVICE {device}, but each process has a GPU of its own: expected cuda"
        )
        expect(index < gpus, f"MODEL.DEVICE {device}, but {has}, counted from 0: expected cuda")
    return index


def _launch_several(main: Callable[..., object], on_gpu: bool, processes: Processes, args: tuple) -> None:
    if processes.dist_url == "auto":
        expect(processes.num_machines == 1, "several machines need --dist-url tcp://ADDRESS:PORT of machine 0")
        processes = processes._replace(dist_url=f"tcp://{LOOPBACK}:{get_free_port()}")
    user_errors = mp.get_context(START_METHOD).SimpleQueue()
    try:
        _start_and_join((user_errors, main, on_gpu, processes, args), processes.num_processes)
    except mp.ProcessExitedException as error:
        if error.exit_code == 1:  # by its own decision, and its words are in the log: TEST.EXPECTED_RESULTS
            sys.exit(1)
        if error.exit_code > 0 and not user_errors.empty():  # else it was killed, and the others say that they miss it
            kind, message = user_errors.get()
            raise kind(message) from None
        if on_gpu and error.exit_code == -signal.SIGABRT:
            raise LostContactError(
                "a process aborted, as NCCL makes it do when another one does not answer; the log above says which. "
                "Start all of them again with --resume"
            ) from None
        print(f"error: {error}, so the others were ended; --resume continues from the last checkpoint", file=sys.stderr)
        sys.exit(error.exit_code if error.exit_code > 0 else 128 - error.exit_code)


def _start_and_join(args: tuple, count: int) -> None:
    """Run ``_run_rank`` in ``count`` new processes until all have ended, or one has failed and the others are ended.

    The signals that stop a training are passed on to them. Where this process is killed, so are they.
    """
    context = mp.start_processes(_run_rank, args, nprocs=count, join=False, start_method=START_METHOD)

    def forward(number: int) -> None:
        for pid in context.pids():
            with suppress(ProcessLookupError):
                # From a terminal they have Ctrl-C themselves, and a second one would stop them at once.
                os.kill(pid, signal.SIGTERM if number == signal.SIGINT else number)

    signals = StopSignals(forward)
    try:
        with signals:
            while not context.join(grace_period=GRACE):
                pass
    except mp.ProcessExitedException:
        if signals.interrupted and args[0].empty():  # while nothing was trained, so that the processes ended at once
            raise KeyboardInterrupt from None
        raise
    finally:
        for process in context.processes:
            process.kill()


def _run_rank(
    local_rank: int,
    user_errors: SimpleQueue | None,
    main: Callable[..., object],
    on_gpu: bool,
    processes: Processes,
    args: tuple,
) -> None:
    """One process of several. Its UserErrors go to ``user_errors``, or are printed where there is none."""
    if user_errors is not None:
        kill_with_parent()
        if not mp.parent_process().is_alive():  # killed before the line above
            os._exit(1)
        # Also the workers of a plug-in's own loader: a spawned process would spawn them, 5 s each.
        mp.set_start_method(workers.START_METHOD, force=True)
    try:
        _join(local_rank, on_gpu, processes)
        main(*args)
    except KeyboardInterrupt:
        os._exit(InterruptedRunError.EXIT_CODE)
    except Exception as error:
        if is_lost_contact(error):
            time.sleep(GRACE)
            where = "on this or another machine" if processes.num_machines > 1 else "of this machine"
            what = f"a process of the run {where} does not answer ({first_line(error)})"
            error = LostContactError(f"{what}. Start all of them again with --resume")
        if words := words_of_disk(error):
            error = UserError(words)
        if not isinstance(error, UserError):
            raise
        if user_errors is None:
            print(f"error: {error}", file=sys.stderr, flush=True)
        else:
            user_errors.put((type(error), str(error)))
        os._exit(error.EXIT_CODE)  # the other ranks may be waiting inside a collective
    forget_process_groups()
    dist.destroy_process_group()


def _join(local_rank: int, on_gpu: bool, processes: Processes) -> None:
    if on_gpu:
        torch.cuda.set_device(local_rank)
    else:
        _use_own_cores(processes.num_processes)
    rank = processes.machine_rank * processes.num_processes + local_rank
    if processes.num_machines == 1:  # else both listen where the machine's name, or a network's speed, leads them
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", loopback)
    try:
        store = _meet(processes, rank)
        if processes.num_machines > 1 and not dist.is_torchelastic_launched():
            _compare_machines(store, processes)
        dist.init_process_group(
            backend="nccl" if on_gpu else "gloo",
            # torchrun's store outlives a restart: without a prefix, processes find the addresses of those that ended.
            store=dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store),
            world_size=processes.world_size,
            rank=rank,
            timeout=processes.timeout,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{processes.world_size} processes do not find each other at {processes.dist_url} ({first_line(error)}): "
            "expected the address of machine 0, a free port, and every machine to be started (GLOO_SOCKET_IFNAME names "
            "the interface that leads to the others)"
        ) from error
    of_this_machine, _ = dist.new_subgroups(processes.num_processes)
    set_local_group(of_this_machine)
    comm.synchronize()


def _use_own_cores(processes: int) -> None:
    """As many threads as this process may use cores: torch does not ask a container for its share of the machine."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), cores(processes)))


def _meet(processes: Processes, rank: int) -> dist.Store:
    """The store by which processes find each other. Torch's own listens at all addresses of the machine, and trusts
    whoever comes; that of one machine listens at 127.0.0.1."""
    url = urlsplit(processes.dist_url)
    if url.scheme != "tcp" or not url.port:
        return next(dist.rendezvous(processes.dist_url, rank, processes.world_size, timeout=processes.timeout))[0]
    is_host, listening = rank == 0, None
    if is_host and url.hostname == LOOPBACK:
        listening = socket.create_server((LOOPBACK, url.port)).detach()
    return dist.TCPStore(
        url.hostname,
        url.port,
        None,
        is_host,
        processes.timeout,
        wait_for_workers=False,
        master_listen_fd=listening,
    )


@contextmanager
def ending_all_machines(processes: Processes) -> Iterator[None]:
    """What one of several machines finds wrong in the block, before it starts its processes, ends all of them with the
    same line: the others would wait for these. torchrun itself ends the machines that it joins."""
    try:
        yield
    except UserError as error:
        if processes.num_machines == 1 or dist.is_torchelastic_launched():
            raise
        print(f"{error}: telling the other machines, for a minute at most", file=sys.stderr)
        patient = processes._replace(timeout=min(processes.timeout, _PATIENCE))
        with suppress(OSError, RuntimeError, ValueError):  # nobody comes
            _compare_machines(_meet(patient, processes.machine_rank), patient, wrong=str(error))
        raise


def _compare_machines(store: dist.Store, processes: Processes, wrong: str = "") -> None:
    """Raise UserError, on all machines the same, where one says what is ``wrong``, or counts their processes otherwise;
    each has to come."""
    shape = f"{processes.num_machines} x {processes.num_processes} processes"
    store.set(f"machine {processes.machine_rank}", json.dumps([processes.num_machines, shape, wrong]))
    count, expected, _ = first = json.loads(store.get("machine 0"))
    machines = [first, *(json.loads(store.get(f"machine {rank}")) for rank in range(1, count))]
    mistakes = [f"machine {rank}: {words}" for rank, (*_, words) in enumerate(machines) if words]
    others = [f"machine {rank} starts {shape}" for rank, (_, shape, _) in enumerate(machines) if shape != expected]
    if problems := mistakes or others:
        if processes.machine_rank == 0:
            time.sleep(_HEARD)
        raise UserError(problems[0] if mistakes else f"machine 0 starts {expected}, but {problems[0]}")


def log_processes(device: str) -> None:
    """Log what the run runs on."""
    world_size = comm.get_world_size()
    if device.startswith("cuda"):
        where = f"{world_size} x {torch.cuda.get_device_name()}"
    else:
        how = f"{world_size} gloo processes, each" if world_size > 1 else "one process"
        threads = torch.get_num_threads()
        name = "the CPU" if device == "cpu" else device
        where = f"{name}: {how} with {threads} thread{'s' * (threads > 1)}"
    logging.getLogger(__name__).info(f"Running on {where}")
