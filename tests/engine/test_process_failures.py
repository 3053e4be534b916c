"""When one process of several fails, all end: soon, with its reason, and nothing is left."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.multiprocessing as mp
from commands import ROOT, TINY, launch_forks

from revisit.data.workers import SignalSafeLoader

from detectron2.utils import comm

LIMIT = 180  # seconds, for what takes a few where nothing else runs


def break_on_one_rank() -> None:
    """While loader workers are at it, which the process must not wait for."""
    batches = iter(SignalSafeLoader(range(100), num_workers=1))
    next(batches)
    if comm.get_rank() == 1:
        raise ZeroDivisionError("a defect of ours")
    comm.synchronize()  # would wait forever


def test_a_defect_in_one_process_ends_all_with_its_traceback():
    with pytest.raises(
        mp.ProcessRaisedException, match="(?s)in break_on_one_rank.*ZeroDivisionError: a defect of ours"
    ):
        launch_forks(break_on_one_rank, 2)


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


class Run:
    """Two processes with two loader workers each, started as a user does."""

    def __init__(self, output: Path, datasets: Path):
        command = (
            f"tools/train_net.py --config-file configs/toy/pretrain.yaml --num-gpus 2 OUTPUT_DIR {output} {TINY} "
            "SOLVER.MAX_ITER 100000 DATALOADER.NUM_WORKERS 2"
        )
        # The name of this test's run is in the environment of whatever it starts.
        self._mark = f"REVISIT_TEST={output}"
        environment = os.environ | {"DETECTRON2_DATASETS": str(datasets), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, *shlex.split(command)], cwd=ROOT, text=True, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, start_new_session=True,
            env=environment | {"REVISIT_TEST": str(output), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        wait_until(lambda: (output / "metrics.json").exists() and (output / "metrics.json").stat().st_size)

    def pids(self) -> list[int]:
        """Processes of the run that live."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                mine = self._mark.encode() in (folder / "environ").read_bytes().split(b"\0")
                alive = (folder / "stat").read_text().rpartition(") ")[2][0] != "Z"
            except OSError:  # gone meanwhile
                continue
            found += [int(folder.name)] if mine and alive else []
        return found

    def ranks(self) -> list[int]:
        """The training processes: the launcher's children that have children."""
        parents = {pid: _parent(pid) for pid in self.pids()}
        return [pid for pid, parent in parents.items() if parent == self.process.pid and pid in parents.values()]

    def close(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return -1


@pytest.fixture
def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


@pytest.fixture
def running(toy_root, tmp_path):
    run = Run(tmp_path / "run", toy_root)
    yield run
    run.close()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("victim", ["a training process", "the launcher"])
def test_a_killed_process_takes_all_others_with_it(shared_memory, running, victim):
    assert len(running.pids()) >= 7 and len(running.ranks()) == 2
    os.kill(running.ranks()[0] if victim == "a training process" else running.process.pid, signal.SIGKILL)
    wait_until(lambda: not running.pids())
    if victim == "a training process":
        stderr = running.process.stderr.read()
        assert running.process.wait() == 128 + signal.SIGKILL
        assert "terminated with signal SIGKILL, so the others were ended; --resume continues" in stderr
        assert "Traceback" not in stderr
    wait_until(lambda: set(os.listdir("/dev/shm")) <= shared_memory)  # other tests use it for moments, at the same time
