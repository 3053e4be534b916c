"""Two machines for real: network namespaces with addresses of their own, where the system lets us make some."""

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest
import torch
from commands import ROOT, TINY, run
from torch.distributed.elastic.utils.distributed import get_free_port

from revisit.engine.command import run_command
from revisit.engine.launch import find_processes, interface_towards

TIMEOUT = 30  # seconds for a collective of the run that is cut off, whose processes start within that of each other
LIMIT = 240  # seconds, for what takes a few where nothing else runs


def train_command(flags: str, options: str) -> str:
    return (
        f"tools/train_net.py --config-file configs/toy/pretrain.yaml {flags} {TINY} SEED 3 "
        f"SOLVER.CHECKPOINT_EPOCHS 1 {options}"
    )


class Machines:
    """Two places to run commands in: namespaces joined by a cable, or two addresses of the loopback interface."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen] = []
        self._ports = count(29511)  # a run's address stays taken for a while
        self.names = [f"revisit{os.getpid()}{n}" for n in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        self.separate = self._connect()
        if not self.separate:
            self.close()
            self.addresses = ["127.0.0.1", "127.0.0.2"]

    def _connect(self) -> bool:
        one, two = self.names
        commands = [
            f"ip netns add {one}",
            f"ip netns add {two}",
            f"ip link add veth0 netns {one} type veth peer name veth0 netns {two}",
        ]
        for name, address in zip(self.names, self.addresses, strict=True):
            commands += [
                f"ip -n {name} addr add {address}/24 dev veth0",
                f"ip -n {name} link set veth0 up",
                f"ip -n {name} link set lo up",
            ]
        try:
            return all(subprocess.run(shlex.split(c), capture_output=True).returncode == 0 for c in commands)
        except FileNotFoundError:
            return False

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        for name in self.names:
            try:
                subprocess.run(["ip", "netns", "del", name], capture_output=True)
            except FileNotFoundError:
                return

    def start(self, command: str, machine: int, datasets: Path) -> subprocess.Popen:
        words = [sys.executable, *shlex.split(command)]
        if self.separate:
            words = ["ip", "netns", "exec", self.names[machine], *words]
        environment = os.environ | {"DETECTRON2_DATASETS": str(datasets), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def train(self, options: str, datasets: Path, flags: str = "") -> list[subprocess.Popen]:
        url = f"tcp://{self.addresses[0]}:{next(self._ports) if self.separate else get_free_port()}"
        return [
            self.start(
                train_command(f"--num-machines 2 --machine-rank {n} --dist-url {url} {flags}", options), n, datasets
            )
            for n in range(2)
        ]

    def cut_off(self, processes: list[subprocess.Popen]) -> None:
        """The cable is pulled; where there is none, the second machine stops in its tracks."""
        if self.separate:
            subprocess.run(["ip", "-n", self.names[1], "link", "set", "veth0", "down"], check=True)
        else:
            os.killpg(processes[1].pid, signal.SIGSTOP)

    def repair(self) -> None:
        if self.separate:
            subprocess.run(["ip", "-n", self.names[1], "link", "set", "veth0", "up"], check=True)


@pytest.fixture
def machines():
    made = Machines()
    yield made
    made.close()


def losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.json").read_text().splitlines()
    return [json.loads(line)["total_loss"] for line in lines if "total_loss" in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model_final.pth", weights_only=True)["model"]


def assert_same_run(one: Path, two: Path) -> None:
    assert losses(one) == pytest.approx(losses(two), abs=1e-6) and len(losses(one)) > 1
    for name, value in weights(one).items():
        assert torch.allclose(value.double(), weights(two)[name].double(), rtol=0, atol=1e-6), name


def finish(processes: list[subprocess.Popen]) -> list[str]:
    outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)[-4000:]
    return outputs


@pytest.fixture(scope="module")
def one(toy_root, tmp_path_factory) -> Path:
    """A run of two processes on one machine."""
    output = tmp_path_factory.mktemp("one")
    run("python " + train_command("--num-gpus 2", f"SOLVER.MAX_ITER 21 OUTPUT_DIR {output}"), toy_root)
    return output


def test_two_machines_are_as_good_as_one(machines, one, toy_root, tmp_path):
    first, second = finish(machines.train(f"SOLVER.MAX_ITER 21 OUTPUT_DIR {tmp_path}", toy_root))
    assert "2 gloo processes" in first and "eta: " in first and "eta: " not in second
    assert_same_run(one, tmp_path)


def test_a_machine_that_is_cut_off_ends_the_run_which_resumes_when_it_is_back(machines, toy_root, tmp_path):
    options = f"SOLVER.MAX_ITER 150 OUTPUT_DIR {tmp_path}/two"
    processes = machines.train(options, toy_root, f"--timeout {TIMEOUT / 60}")
    end = time.monotonic() + LIMIT
    while not (tmp_path / "two/last_checkpoint").exists():
        assert time.monotonic() < end and all(process.poll() is None for process in processes)
        time.sleep(0.02)
    machines.cut_off(processes)
    output, _ = processes[0].communicate(timeout=LIMIT)
    assert processes[0].returncode == 75, output[-3000:]
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "a process of the run on this or another machine does not answer" in line and "--resume" in line
    assert "Traceback" not in output
    if machines.separate:
        assert processes[1].wait(timeout=LIMIT) == 75
    else:
        os.killpg(processes[1].pid, signal.SIGKILL)
    processes[1].communicate()
    machines.repair()
    assert not (tmp_path / "two/model_final.pth").exists()
    first, _ = finish(machines.train(options, toy_root, "--resume"))
    assert "resuming at iteration" in first
    assert torch.load(tmp_path / "two/model_final.pth", weights_only=True)["iteration"] == 149


def test_torchrun_starts_the_processes(one, toy_root, tmp_path):
    torchrun = "python -m torch.distributed.run --standalone --nproc-per-node 2 "
    run(torchrun + train_command("", f"SOLVER.MAX_ITER 21 OUTPUT_DIR {tmp_path}"), toy_root)
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
        output = run("python " + train_command(flags, f"OUTPUT_DIR {tmp_path}"), toy_root, expect=2)
    assert f"2 processes do not find each other at {url}" in output and "Traceback" not in output


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_interface_is_the_one_that_leads_there():
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("no such host .invalid") is None
