"""SIGTERM, SIGUSR1 and Ctrl-C end a run after a checkpoint, within two steps, and the run resumes from there.

When one process of several fails, all end: soon, with its reason, and nothing is left.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from multiprocessing import process
from multiprocessing.connection import Client
from multiprocessing.process import BaseProcess
from multiprocessing.resource_sharer import DupFd
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from commands import ROOT, TIMEOUT, TINY, launch_forks, popen, run, wait_until
from kills import fork
from runs import assert_same, load, train, train_for_module
from torch.utils.data import Dataset
from trees import refusal

from revisit.data.loading.workers import STOP_SIGNALS, SignalSafeLoader, start_worker
from revisit.engine import stop_signals
from revisit.engine.stop_signals import StopSignals
from revisit.errors import KilledWorkerError, StoppedRunError, UserError

from detectron2.engine import HookBase
from detectron2.utils import comm

OPTIONS = ("SOLVER.MAX_ITER", 7, "SOLVER.CHECKPOINT_PERIOD", 100, "VIEWS.NUM_SMALL", 0)
SIGNALLED = 3  # iteration


class Signal(HookBase):
    """Sends a signal to this process, in the middle of a step."""

    def __init__(self, number: int, rank: int = 0, times: int = 1):
        self._number, self._rank, self._times = number, rank, times

    def before_step(self) -> None:
        if self.trainer.iter == SIGNALLED and comm.get_rank() == self._rank:
            for _ in range(self._times):
                os.kill(os.getpid(), self._number)


@pytest.fixture(scope="module")
def untouched(toy_root, tmp_path_factory) -> dict:
    output = train_for_module(toy_root, tmp_path_factory.mktemp("untouched"), *OPTIONS)
    return load(output / "model_final.pth")["model"]


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGINT", 130)])
def test_a_signal_ends_the_run_after_its_step(toy_datasets, untouched, tmp_path, name, code):
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    message = f"stopped by {name} after iteration {SIGNALLED}, .* --resume continues"
    with pytest.raises(StoppedRunError, match=message) as caught:
        train(tmp_path, *OPTIONS, hook=Signal(signal.Signals[name]))
    assert caught.value.EXIT_CODE == code
    assert [path.name for path in tmp_path.glob("model_*")] == [f"model_{SIGNALLED:07d}.pth"]
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == handlers
    assert train(tmp_path, *OPTIONS, resume=True).start_iter == SIGNALLED + 1
    assert_same(load(tmp_path / "model_final.pth")["model"], untouched)


def hand_over_to_one_that_is_killed(begin: Callable[[int], object]) -> None:
    begin(0)
    handed_over = DupFd(1)
    address, _ = handed_over._id
    Client(address, authkey=process.current_process().authkey).close()
    os.close(handed_over.detach())  # by the same thread, so after that


def test_a_worker_has_no_words_for_a_training_process_that_is_killed_while_it_takes_a_batch():
    assert fork(partial(hand_over_to_one_that_is_killed, start_worker)) == (0, "")
    code, output = fork(partial(hand_over_to_one_that_is_killed, lambda worker: worker))
    assert code == 0 and "EOFError" in output  # as Python's thread says it


def test_a_second_ctrl_c_stops_at_once(toy_datasets, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, *OPTIONS, hook=Signal(signal.SIGINT, times=2))
    assert not list(tmp_path.glob("model_*"))


def test_a_signal_in_the_last_step_is_ignored(toy_datasets, tmp_path):
    train(tmp_path, "SOLVER.MAX_ITER", SIGNALLED + 1, hook=Signal(signal.SIGTERM))
    assert (tmp_path / "model_final.pth").exists()


def test_a_signal_after_the_training_changes_nothing(toy_root, tmp_path):
    late = "import atexit, os, runpy, signal\natexit.register(os.kill, os.getpid(), signal.SIGTERM)\n"
    (tmp_path / "late.py").write_text(f"{late}runpy.run_path('tools/train_net.py', run_name='__main__')\n")
    command = f"python {tmp_path}/late.py --config-file configs/toy/pretrain.yaml OUTPUT_DIR {tmp_path} {TINY}"
    assert "Total training time" in run(f"{command} SOLVER.MAX_ITER 1", toy_root)


def test_ctrl_c_wins_over_a_schedulers_signal():
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == 3


HANGING = """
import os, signal, sys, threading, time
from revisit.data.loading import workers
from revisit.engine import stop_signals
from revisit.engine.command import run_command

stop_signals.PATIENCE, workers._GRACE = 1, 0.5

class Hanging:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})  # as where the kernel waits for a disk
        time.sleep(600 * index)
        return index

def main():
    with stop_signals.StopSignals():
        batches = iter(workers.SignalSafeLoader(Hanging(), num_workers=1, prefetch_factor=1))
        next(batches)
        threading.Timer(0.1, os.kill, (os.getpid(), getattr(signal, sys.argv[1]))).start()
        next(batches)

run_command(main)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 75), ("SIGINT", 130)])
def test_a_signal_ends_a_run_whose_loader_hangs(toy_root, tmp_path, name, code):
    (tmp_path / "hanging.py").write_text(HANGING)
    text = run(f"python {tmp_path}/hanging.py {name}", toy_root, expect=code)
    assert text == (
        f"stopped by {name}, after which no batch came for 1 s (does a disk not answer?): the same command with "
        "--resume continues from the last checkpoint\n"
    )


class SlowInThisProcess:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.5)
        return index


def test_a_signal_waits_for_a_batch_that_this_process_makes(monkeypatch):
    monkeypatch.setattr(stop_signals, "PATIENCE", 1)
    with StopSignals() as signals:
        assert len(list(SignalSafeLoader(SlowInThisProcess(), num_workers=0))) == 1
        assert signals.received == 1 + STOP_SIGNALS.index(signal.SIGTERM)


def train_each(runs: dict[Path, dict]) -> None:
    for output, how in runs.items():
        train(output, *OPTIONS, **how)


def test_a_signal_to_one_process_ends_both(toy_datasets, tmp_path):
    """While random rows still fill the queue, which must be the same ones in both processes and after the resume."""
    stopped, untouched = tmp_path / "stopped", tmp_path / "untouched"
    with pytest.raises(StoppedRunError, match="stopped by SIGUSR1"):
        launch_forks(train_each, 2, {stopped: {"hook": Signal(signal.SIGUSR1, rank=1)}})
    (path,) = stopped.glob("model_*")
    assert path.name == f"model_{SIGNALLED + 1:07d}.pth"  # the second step's
    assert load(path)["model"]["queue.num_enqueued"] < 50
    launch_forks(train_each, 2, {stopped: {"resume": True}, untouched: {}})
    one, other = (load(folder / "model_final.pth") for folder in (stopped, untouched))
    for part in ("model", "trainer"):
        assert_same(one[part], other[part])


WORKERS = """
import multiprocessing, os, signal, sys
from torch.utils.data import get_worker_info
from revisit.data.loading.workers import STOP_SIGNALS, SignalSafeLoader

class Workers:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return get_worker_info().id

for at_work in (False, True):
    batches = iter(SignalSafeLoader(Workers(), num_workers=2, prefetch_factor=1))
    reported = set()
    while at_work and reported != {0, 1}:
        reported.add(int(next(batches)))
    for number in STOP_SIGNALS:
        for process in multiprocessing.active_children():
            os.kill(process.pid, number)
    assert {int(next(batches)) for _ in range(20)} == {0, 1} and len(multiprocessing.active_children()) == 2
print("alive", flush=True)
sys.exit(3)
"""


def test_workers_ignore_signals_and_end_with_training(toy_root, tmp_path):
    """Both when they have just been forked and when all are at work."""
    (tmp_path / "workers.py").write_text(WORKERS)
    command = f"python -W 'ignore:This DataLoader will create' {tmp_path}/workers.py"  # as a single core has it
    assert run(command, toy_root, expect=3) == "alive\n"


def test_a_worker_ended_before_its_start_ends(monkeypatch):
    start = BaseProcess.start

    def start_and_end(process: BaseProcess) -> None:
        start(process)
        os.kill(process.pid, signal.SIGUSR2)  # what _end_workers sends
        process.join(TIMEOUT)
        assert process.exitcode == 0

    monkeypatch.setattr(BaseProcess, "start", start_and_end)
    iter(SignalSafeLoader(range(10), num_workers=1))


def test_a_signal_while_workers_start_arrives_once(monkeypatch):
    heard, start = [], BaseProcess.start

    def start_and_signal(process: BaseProcess) -> None:
        start(process)
        os.kill(os.getpid(), signal.SIGTERM)
        heard.append("started")

    monkeypatch.setattr(BaseProcess, "start", start_and_signal)
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        batches = iter(SignalSafeLoader(range(10), num_workers=1))
        assert "started" in heard and heard.count(signal.SIGTERM) == 1
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.count(signal.SIGTERM) == 2 and len(list(batches)) == 10
    finally:
        signal.signal(signal.SIGTERM, before)


def fail_on_one_rank(error: Exception) -> None:
    """While loader workers are at it, which the process must not wait for."""
    batches = iter(SignalSafeLoader(range(100), num_workers=1))
    next(batches)
    if comm.get_rank() == 1:
        raise error
    comm.synchronize()  # would wait forever


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (ZeroDivisionError("of ours"), mp.ProcessRaisedException, "in fail_on_one_rank.*ZeroDivisionError: of ours"),
        (UserError("rank 1 cannot read its images"), UserError, "^rank 1 cannot read its images$"),
    ],
)
def test_one_processs_error_ends_all_with_its_message(error, raised, message):
    with pytest.raises(raised, match=f"(?s){message}"):
        launch_forks(fail_on_one_rank, 2, error)


def test_a_process_that_exits_by_its_own_decision_is_not_called_a_lost_one(capsys):
    with pytest.raises(SystemExit, match="^1$"):
        launch_forks(fail_on_one_rank, 2, SystemExit(1))
    assert "--resume" not in capsys.readouterr().err


def living(session: int) -> dict[int, int]:
    """The processes of a session, and their parents."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone meanwhile
            state, parent, _, its_session = file.read_text().rpartition(") ")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                parents[int(file.parent.name)] = int(parent)
    return parents


def held_memory() -> set[str]:
    """Shared memory by name, but for what has no size yet: a process killed as it makes some leaves an empty name."""
    names = set()
    for entry in os.scandir("/dev/shm"):
        with suppress(FileNotFoundError):
            names |= {entry.name} if entry.stat().st_size else set()
    return names


def memory_of(processes: Collection[int]) -> set[str]:
    """The shared memory that they have now, by name: semaphores, and tensors on their way."""
    maps = (Path(f"/proc/{process}/maps").read_text() for process in processes)
    return set(re.findall(r" /dev/shm/(\S+)$", "\n".join(maps), re.MULTILINE))


def owner_of(name: str) -> int:
    """The process that has made a tensor's shared memory, which torch names after it; 0 of other memory."""
    made_by = re.match(r"torch_(\d+)_", name)
    return int(made_by[1]) if made_by else 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("victim", "start"), [("a training process", popen), ("the launcher", subprocess.Popen)])
def test_a_killed_process_takes_all_others_with_it(toy_datasets, monkeypatch, tmp_path, victim, start):
    """Of a launcher and two training processes with two loader workers each; what a fork leaves ends with the tests."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    metrics = tmp_path / "run/metrics.json"
    command = (
        f"tools/train_net.py --config-file configs/toy/pretrain.yaml --num-gpus 2 OUTPUT_DIR {metrics.parent} {TINY} "
        "SOLVER.MAX_ITER 100000 DATALOADER.NUM_WORKERS 2 KNN_EVAL.BANK '' KNN_EVAL.LINEAR False DATASETS.TEST ()"
    )
    with open(tmp_path / "output", "w") as output:
        words = [sys.executable, *shlex.split(command)]
        launcher = start(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        wait_until(lambda: metrics.exists() and metrics.stat().st_size)
        parents = living(launcher.pid)
        ranks = [pid for pid, parent in parents.items() if parent == launcher.pid and pid in parents.values()]
        assert len(parents) >= 7 and len(ranks) == 2
        memory = memory_of([launcher.pid, *ranks])
        assert memory or start is popen  # what forks share has no name
        os.kill(ranks[0] if victim == "a training process" else launcher.pid, signal.SIGKILL)
        wait_until(lambda: not living(launcher.pid))
    finally:
        for pid in living(launcher.pid):
            os.kill(pid, signal.SIGKILL)
    if victim == "a training process":
        text = (tmp_path / "output").read_text()
        assert launcher.wait(TIMEOUT) == 128 + signal.SIGKILL
        assert "terminated with signal SIGKILL, so the others were ended; --resume continues" in text
        assert "Traceback" not in text
    # Other tests have some, too, at the same time.
    wait_until(lambda: not [name for name in held_memory() if name in memory or owner_of(name) in parents])


class NoRoom(Dataset):
    """As torch says it where /dev/shm is full."""

    def __init__(self, words: str):
        self._words = words

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        raise RuntimeError(self._words)


@pytest.mark.parametrize(
    "words",
    [
        "unable to write to file </torch_12_345_0>: No space left on device (28)",
        "unable to allocate shared memory(shm) for file </torch_12_345_0>: Cannot allocate memory (12)",
    ],
)
def test_a_full_shared_memory_is_said_in_one_line(words):
    message = refusal(next, iter(SignalSafeLoader(NoRoom(words), num_workers=1)))
    assert message.startswith("/dev/shm") and "docker run --shm-size 8g" in message


class KillsItsWorker(Dataset):
    """As the system does where memory has run out: as the worker makes an image, or once it has handed over a batch."""

    def __init__(self, number: int = signal.SIGKILL, *, later: bool = False):
        self._number, self._later = number, later

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 3 and self._later:
            threading.Timer(1.0, os.kill, (os.getpid(), self._number)).start()
        elif index == 3:
            os.kill(os.getpid(), self._number)
        return torch.zeros(3)


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "Killed. Most often memory"), (signal.SIGBUS, "Bus error. Most often /dev/shm")],
)
def test_a_killed_worker_is_said_in_one_line(number, words):
    with pytest.raises(KilledWorkerError, match=f"killed by signal: {words}"):
        list(SignalSafeLoader(KillsItsWorker(number), num_workers=2))


def test_a_worker_that_is_killed_during_a_step_is_said_in_one_line():
    """Torch raises wherever the training process is."""
    batches = iter(SignalSafeLoader(KillsItsWorker(later=True), num_workers=1))
    for _ in range(4):
        next(batches)
    with pytest.raises(KilledWorkerError, match=r"killed by signal: Killed\. Most often memory ran out"):
        time.sleep(20)
