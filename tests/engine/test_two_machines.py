"""Two machines for real: network namespaces with addresses of their own, where the system lets us make some."""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from commands import ROOT, TIMEOUT, TINY, popen, run, wait_until
from runs import load
from torch.distributed.elastic.utils.distributed import get_free_port

from revisit.checkpoint.run_folder import checkpoints_of_run, iteration_of
from revisit.engine.command import run_command
from revisit.engine.launch import find_processes, interface_towards
from revisit.viz.curves import read_metrics

ANSWER = 20  # seconds for a collective of the run that is cut off, whose processes start within that of each other
# "in_namespace.py NAME SCRIPT ARGUMENTS": what "ip netns exec NAME python SCRIPT ARGUMENTS" does, as a fork can do it.
IN_NAMESPACE = """
import ctypes, os, runpy, sys
_, namespace, *sys.argv = sys.argv
assert ctypes.CDLL(None).setns(os.open(f"/var/run/netns/{namespace}", os.O_RDONLY), 0) == 0
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def train_command(flags: str, output: Path, iterations: int) -> str:
    return (
        f"tools/train_net.py --config-file configs/toy/pretrain.yaml {flags} {TINY} SEED 3 "
        f"SOLVER.CHECKPOINT_EPOCHS 1 SOLVER.MAX_ITER {iterations} OUTPUT_DIR {output}"
    )


class Machines:
    """Two places to run commands in: namespaces joined by a cable, or two addresses of the loopback interface."""

    def __init__(self, folder: Path):
        self._script = folder / "in_namespace.py"
        self._script.write_text(IN_NAMESPACE)
        self._started: list[tuple[subprocess.Popen, Path]] = []
        self._names = one, two = [f"revisit{os.getpid()}{n}" for n in "ab"]
        commands = [f"netns add {one}", f"netns add {two}"]
        commands.append(f"link add veth0 netns {one} type veth peer name veth0 netns {two}")
        for number, name in enumerate(self._names, start=1):
            commands.append(f"-n {name} addr add 10.77.0.{number}/24 dev veth0")
            commands += [f"-n {name} link set {device} up" for device in ("veth0", "lo")]
        self.separate = all(self._ip(command) for command in commands)

    @staticmethod
    def _ip(command: str) -> bool:
        try:
            return subprocess.run(["ip", *command.split()], capture_output=True).returncode == 0
        except FileNotFoundError:
            return False

    def close(self) -> None:
        for process, _ in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for name in self._names:
            self._ip(f"netns del {name}")

    def train(self, output: Path, iterations: int, flags: str = "") -> list[tuple[subprocess.Popen, Path]]:
        """Start the training's process on each machine; what it says goes to the file that is returned with it."""
        port = 29511 + len(self._started)  # a run's address stays taken for a while
        url = f"tcp://10.77.0.1:{port}" if self.separate else f"tcp://127.0.0.1:{get_free_port()}"
        for n in range(2):
            machine = f"--num-machines 2 --machine-rank {n} --dist-url {url} {flags}"
            command = train_command(machine, output, iterations)
            if self.separate:
                command = f"{self._script} {self._names[n]} {command}"
            log = self._script.with_name(f"{len(self._started)}.log")
            with open(log, "w") as file:
                words, how = [sys.executable, *shlex.split(command)], {"cwd": ROOT, "start_new_session": True}
                self._started.append((popen(words, stdout=file, stderr=subprocess.STDOUT, **how), log))
        return self._started[-2:]

    def set_cable(self, up: bool, second: subprocess.Popen) -> None:
        """Pull or mend it; where there is none, the second machine's process stops in its tracks, and is ended."""
        if self.separate:
            assert self._ip(f"-n {self._names[1]} link set veth0 {'up' if up else 'down'}")
        else:
            os.killpg(second.pid, signal.SIGKILL if up else signal.SIGSTOP)


@pytest.fixture
def machines(toy_datasets, tmp_path, monkeypatch) -> Iterator[Machines]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = Machines(tmp_path)
    yield made
    made.close()


def finish(runs: list[tuple[subprocess.Popen, Path]], codes: tuple[int, ...]) -> list[str]:
    """Wait for the processes to end with these exit codes; returns what each has said."""
    for (process, log), code in zip(runs, codes, strict=False):
        assert process.wait(TIMEOUT) == code, log.read_text()[-3000:]
    return [log.read_text() for _, log in runs]


def assert_same_run(one: Path, two: Path) -> None:
    losses = [[value for _, value in read_metrics(run / "metrics.json")["total_loss"]] for run in (one, two)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6) and len(losses[0]) > 1
    weights, others = (load(run / "model_final.pth")["model"] for run in (one, two))
    for name, value in weights.items():
        assert torch.allclose(value.double(), others[name].double(), rtol=0, atol=1e-6), name


@pytest.fixture(scope="module")
def one(toy_root, tmp_path_factory) -> Path:
    """A run of two processes on one machine."""
    output = tmp_path_factory.mktemp("one")
    run("python " + train_command("--num-gpus 2", output, 21), toy_root)
    return output


def test_two_machines_are_as_good_as_one(machines, one, tmp_path):
    first, second = finish(machines.train(tmp_path, 21), (0, 0))
    assert "2 gloo processes" in first and "eta: " in first and "eta: " not in second
    assert_same_run(one, tmp_path)


def test_a_machine_that_is_cut_off_ends_the_run_which_resumes_when_it_is_back(machines, tmp_path):
    output = tmp_path / "two"
    runs = machines.train(output, 100000, f"--timeout {ANSWER / 60}")
    wait_until((output / "last_checkpoint").exists)
    machines.set_cable(False, runs[1][0])
    said, _ = finish(runs, (75, 75) if machines.separate else (75,))
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "a process of the run on this or another machine does not answer" in line and "--resume" in line
    assert "Traceback" not in said
    machines.set_cable(True, runs[1][0])
    assert not (output / "model_final.pth").exists()
    last = iteration_of(checkpoints_of_run(output)[0]) + 3
    said, _ = finish(machines.train(output, last + 1, "--resume"), (0, 0))
    assert "resuming at iteration" in said
    assert load(output / "model_final.pth")["iteration"] == last


def test_torchrun_starts_the_processes(one, toy_root, tmp_path):
    torchrun = "python -m torch.distributed.run --standalone --nproc-per-node 2 "
    run(torchrun + train_command("", tmp_path, 21), toy_root)
    assert_same_run(one, tmp_path)


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_and_other_numbers_do_not_go_together_which_one_process_says(monkeypatch, capsys, rank):
    environment = {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = argparse.Namespace(num_gpus=3, num_machines=1, timeout=30)
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: find_processes(options))
    message = "error: torchrun started 1 x 2 processes, but the options ask for 1 x 3"
    assert capsys.readouterr().err.count(message) == 1 - rank


def test_an_address_that_is_taken_is_reported(toy_root, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        flags = f"--num-machines 2 --machine-rank 0 --dist-url {url} --timeout 0.1"
        output = run("python " + train_command(flags, tmp_path, 21), toy_root, expect=2)
    assert f"2 processes do not find each other at {url}" in output and "Traceback" not in output


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_interface_is_the_one_that_leads_there():
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("no such host .invalid") is None
