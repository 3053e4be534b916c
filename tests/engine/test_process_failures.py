"""When one process of several fails, all end: soon, with its reason, and nothing is left."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch.multiprocessing as mp
from commands import ROOT, TINY, launch_forks, popen

from revisit.data.workers import SignalSafeLoader
from revisit.errors import UserError

from detectron2.utils import comm

LIMIT = 180  # seconds, for what takes a few where nothing else runs


def fail_on_one_rank(error: Exception) -> None:
    """While loader workers are at it, which the process must not wait for."""
    next(iter(SignalSafeLoader(range(100), num_workers=1)))
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
def test_what_one_process_raises_ends_all_with_its_message(error, raised, message):
    with pytest.raises(raised, match=f"(?s){message}"):
        launch_forks(fail_on_one_rank, 2, error)


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def living(session: int) -> dict[int, int]:
    """The processes of a session, and their parents."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone meanwhile
            state, parent, _, its_session = file.read_text().rpartition(") ")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found[int(file.parent.name)] = int(parent)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("victim", "start"), [("a training process", popen), ("the launcher", subprocess.Popen)])
def test_a_killed_process_takes_all_others_with_it(toy_datasets, monkeypatch, tmp_path, victim, start):
    """Of a launcher and two training processes with two loader workers each; what a fork leaves ends with the tests."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shared_memory, metrics = set(os.listdir("/dev/shm")), tmp_path / "run/metrics.json"
    command = (
        f"tools/train_net.py --config-file configs/toy/pretrain.yaml --num-gpus 2 OUTPUT_DIR {metrics.parent} {TINY} "
        "SOLVER.MAX_ITER 100000 DATALOADER.NUM_WORKERS 2"
    )
    with open(tmp_path / "output", "w") as output:
        words = [sys.executable, *shlex.split(command)]
        launcher = start(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        wait_until(lambda: metrics.exists() and metrics.stat().st_size)
        parents = living(launcher.pid)
        ranks = [pid for pid, parent in parents.items() if parent == launcher.pid and pid in parents.values()]
        assert len(parents) >= 7 and len(ranks) == 2
        os.kill(ranks[0] if victim == "a training process" else launcher.pid, signal.SIGKILL)
        wait_until(lambda: not living(launcher.pid))
    finally:
        for pid in living(launcher.pid):
            os.kill(pid, signal.SIGKILL)
    if victim == "a training process":
        said = (tmp_path / "output").read_text()
        assert launcher.wait(LIMIT) == 128 + signal.SIGKILL
        assert "terminated with signal SIGKILL, so the others were ended; --resume continues" in said
        assert "Traceback" not in said
    wait_until(lambda: set(os.listdir("/dev/shm")) <= shared_memory)  # other tests use it for moments, at the same time
