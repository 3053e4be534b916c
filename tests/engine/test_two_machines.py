"""Two machines of one process each, here on one; and processes that torchrun has started."""

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from commands import ROOT, TIMEOUT, TINY, launch_forks, popen, run, wait_until
from PIL import Image
from runs import load
from torch.distributed.elastic.utils.distributed import get_free_port
from trees import refused

from revisit.checkpoint.metrics_file import read_metrics
from revisit.checkpoint.run_folder import checkpoints_of_run, iteration_of
from revisit.engine.command import run_command
from revisit.engine.launch import find_processes
from revisit.engine.machines_alike import check_tensors
from revisit.errors import LostContactError, UserError

from detectron2.utils import comm

ANSWER = 12  # seconds for a collective of the run that is cut off, whose processes start within that of each other


def train_command(flags: str, output: Path, iterations: int) -> str:
    return (
        f"tools/train_net.py --config-file configs/toy/pretrain.yaml {flags} {TINY} SEED 3 "
        f"SOLVER.CHECKPOINT_EPOCHS 1 SOLVER.MAX_ITER {iterations} OUTPUT_DIR {output}"
    )


Started = list[tuple[subprocess.Popen, Path]]  # a process, and the file of what it says


@pytest.fixture
def start(toy_datasets, tmp_path, monkeypatch) -> Iterator[Callable[..., Started]]:
    """Starts a training's process as each of two machines does."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started: Started = []

    def start_both(
        output: Path,
        iterations: int,
        flags: str = "",
        flags_of_second: str = "",
        of_second: str = "",
        root: Path = ROOT,
        **environment: str,
    ) -> Started:
        """The second machine may have more flags, more keys, another root and environment."""
        url = f"tcp://127.0.0.1:{get_free_port()}"
        for rank in range(2):
            machine = f"--num-machines 2 --machine-rank {rank} --dist-url {url} {flags}" + f" {flags_of_second}" * rank
            command = train_command(machine, output, iterations) + f" {of_second}" * rank
            words = [sys.executable, *shlex.split(command)]
            place = {"cwd": root, "env": os.environ | environment} if rank else {"cwd": ROOT}
            log = tmp_path / f"{len(started)}.log"
            with open(log, "w") as file:
                process = popen(words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, **place)
            started.append((process, log))
        return started[-2:]

    yield start_both
    for process, _ in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def finish(runs: Started, code: int) -> list[str]:
    """Wait for the processes to end with this exit code; returns what each has said."""
    for process, log in runs:
        assert process.wait(TIMEOUT) == code, log.read_text()[-3000:]
    return [log.read_text() for _, log in runs]


def assert_same_run(one: Path, two: Path) -> None:
    losses = [[value for _, value in read_metrics(run / "metrics.json")["total_loss"]] for run in (one, two)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6) and len(losses[0]) > 1
    assert_same_weights(one, two)


def assert_same_weights(one: Path, two: Path) -> None:
    weights, others = (load(run / "model_final.pth")["model"] for run in (one, two))
    for name, value in weights.items():
        assert torch.allclose(value.double(), others[name].double(), rtol=0, atol=1e-6), name


@pytest.fixture(scope="module")
def one(toy_root, tmp_path_factory) -> Path:
    """A run of two processes on one machine."""
    output = tmp_path_factory.mktemp("one")
    run("python " + train_command("--num-gpus 2", output, 21), toy_root)
    return output


def test_two_machines_are_as_good_as_one(start, one, tmp_path):
    first, second = finish(start(tmp_path / "two", 21), 0)
    assert "2 gloo processes" in first and "eta: " in first and "eta: " not in second
    assert_same_run(one, tmp_path / "two")


def test_a_machine_that_does_not_answer_ends_the_run_which_resumes_when_it_is_back(start, tmp_path):
    output = tmp_path / "two"
    first, second = start(output, 100000, f"--timeout {ANSWER / 60}")
    wait_until(lambda: list(output.glob("model_*.pth")))
    os.killpg(second[0].pid, signal.SIGSTOP)
    (output_of_first,) = finish([first], LostContactError.EXIT_CODE)
    (line,) = [line for line in output_of_first.splitlines() if line.startswith("error: ")]
    assert "--resume" in line and "Traceback" not in output_of_first
    os.killpg(second[0].pid, signal.SIGKILL)
    assert not (output / "model_final.pth").exists()
    last = iteration_of(checkpoints_of_run(output)[0]) + 3
    resumed, _ = finish(start(output, last + 1, "--resume"), 0)
    assert "resuming at iteration" in resumed
    assert load(output / "model_final.pth")["iteration"] == last


def assert_refused_by_both(runs: Started, *words: str) -> None:
    """In one line, which no loop that resumes repeats, and nothing is trained."""
    texts = finish(runs, UserError.EXIT_CODE)
    lines = {line for text in texts for line in text.splitlines() if line.startswith("error: ")}
    assert len(lines) == 1 and all("error: " in text and "Traceback" not in text for text in texts)
    assert [word for word in words if word not in str(lines)] == [], lines
    assert all("eta: " not in text for text in texts)


@pytest.mark.parametrize(
    ("of_second", "words"),
    [
        ("SOLVER.BASE_LR 0.02", ["SOLVER.BASE_LR is 0.024 on machine 0, 0.02 on machine 1"]),
        ("SOLVER.WEIGHT_DECAY 0.5", ["SOLVER.WEIGHT_DECAY is 0.0005 on machine 0, 0.5 on machine 1"]),
        ("SOLVER.LR_SCHEDULER_NAME WarmupMultiStepLR", ["SOLVER.LR_SCHEDULER_NAME is"]),
        ("SOLVER.MAX_ITER 22", ["SOLVER.MAX_ITER is 21 on machine 0, 22 on machine 1"]),
        ("SEED 4", ["SEED is 3 on machine 0, 4 on machine 1"]),
        ("SEED -1", ["SEED is 3 on machine 0, 'drawn' on machine 1"]),
        ("TEST.EVAL_PERIOD 3", ["TEST.EVAL_PERIOD is 0 on machine 0, 3 on machine 1"]),
    ],
)
def test_a_key_that_one_machine_has_otherwise_ends_both(start, tmp_path, of_second, words):
    assert_refused_by_both(start(tmp_path / "run", 21, of_second=of_second), *words)


def test_a_folder_of_its_own_on_one_machine_ends_both(start, tmp_path):
    runs = start(tmp_path / "run", 21, of_second=f"OUTPUT_DIR {tmp_path / 'other'}")
    assert_refused_by_both(runs, "OUTPUT_DIR is 'process", "on machine 0, 'nobody' on machine 1")


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("number of images", Path.unlink),
        ("names", lambda image: image.rename(image.with_name("zzz.png"))),
        ("files' sizes", lambda image: Image.open(image).crop((0, 0, 40, 40)).save(image)),
    ],
)
def test_other_images_on_one_machine_end_both(start, toy_root, tmp_path, part, change):
    shutil.copytree(toy_root, tmp_path / "datasets")
    change(min((tmp_path / "datasets").rglob("object_centric/train/*/*")))
    runs = start(tmp_path / "run", 21, DETECTRON2_DATASETS=str(tmp_path / "datasets"))
    assert_refused_by_both(runs, f"toy_objects_train, {part} is")


def test_other_weights_of_the_same_name_on_one_machine_end_both(start, one, tmp_path):
    folders = [tmp_path / "0", tmp_path / "1"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        checkpoint = load(one / "model_final.pth")
        checkpoint["model"]["backbone.stem.conv1.weight"] += number
        torch.save(checkpoint, folder / "start.pth")
    runs = start(
        tmp_path / "run", 21, f"--weights {folders[0]}/start.pth", of_second=f"MODEL.WEIGHTS {folders[1]}/start.pth"
    )
    assert_refused_by_both(runs, "MODEL.WEIGHTS is 'a file of sha256")


def load_otherwise() -> str:
    """As the first process of a machine that loads another value."""
    comm.get_local_size, comm.get_local_rank = lambda: 1, lambda: 0
    network = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(network.weight, 1.0)
    torch.nn.init.constant_(network.bias, comm.get_rank())
    with pytest.raises(UserError) as raised:
        check_tensors(network)
    return str(raised.value)


def test_tensors_that_are_loaded_otherwise_on_one_machine_end_both():
    first, second = launch_forks(load_otherwise, 2)
    assert first == second and "the network as loaded is '" in first and "on machine 1" in first


def test_a_mistake_that_one_machine_finds_before_it_starts_its_processes_ends_both(start, tmp_path):
    runs = start(tmp_path / "run", 21, of_second="MODEL.WEIGHTS nowhere.pth")
    assert_refused_by_both(runs, "machine 1: MODEL.WEIGHTS nowhere.pth not found")


def test_other_numbers_of_processes_end_both(start, tmp_path):
    runs = start(tmp_path / "run", 21, flags_of_second="--num-gpus 2")
    assert_refused_by_both(runs, "machine 0 starts 2 x 1 processes, but machine 1 starts 2 x 2 processes")


def test_another_state_of_the_code_on_one_machine_ends_both(start, tmp_path):
    root = tmp_path / "code"
    for name in ("revisit", "projects", "tools", "configs"):
        shutil.copytree(ROOT / name, root / name)
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -q -m another"):
        subprocess.run(["git", *words.split()], cwd=root, check=True)
    assert_refused_by_both(start(tmp_path / "run", 21, root=root, PYTHONPATH=str(root)), "the code's commit is")


def test_torchrun_starts_the_processes_again_when_one_is_killed_and_they_resume(one, toy_datasets, tmp_path):
    """By the first command, without a hand."""
    output = tmp_path / "run"
    torchrun = "-m torch.distributed.run --standalone --max-restarts 1 --nproc-per-node 2 "
    words = [sys.executable, *shlex.split(torchrun + train_command("--resume", output, 21))]
    with open(tmp_path / "log", "w") as log:
        how = {"stderr": subprocess.STDOUT, "cwd": ROOT, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
        process = popen(words, stdout=log, **how)
    try:
        wait_until(lambda: list(output.glob("model_*.pth")))
        os.kill(json.loads((output / "run.lock").read_text())["process"], signal.SIGKILL)
        assert process.wait(TIMEOUT) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        process.kill()
    assert "resuming at iteration" in (tmp_path / "log").read_text()
    assert_same_weights(one, output)


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


@pytest.mark.parametrize(("machines", "rank"), [(1, 1), (2, 2)])
def test_a_machine_that_a_run_does_not_have_is_refused_at_once(machines, rank):
    options = argparse.Namespace(num_gpus=1, num_machines=machines, machine_rank=rank, dist_url="auto", timeout=30)
    refused(f"--machine-rank {rank} of .* expected 0 to {machines - 1}, counted from 0", find_processes, options)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"])
def test_processes_that_another_launcher_has_started_do_not_train_alone_without_a_word(monkeypatch, capsys, name):
    options = argparse.Namespace(num_gpus=1, num_machines=1, machine_rank=0, dist_url="auto", timeout=30)
    for count in ("", "1"):
        monkeypatch.setenv(name, count)
        assert find_processes(options).world_size == 1 and not capsys.readouterr().err
    monkeypatch.setenv(name, "2")
    if name.startswith("SLURM"):  # the tasks of a job, of which this may be the only one that trains
        assert find_processes(options).world_size == 1
        assert "warning: SLURM_NTASKS is 2, but each process" in capsys.readouterr().err
    else:
        refused(f"^{name} is 2, but each process", find_processes, options)
    options.num_machines = 2
    assert find_processes(options).world_size == 2


def test_an_address_that_is_taken_is_reported(toy_root, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        flags = f"--num-machines 2 --machine-rank 0 --dist-url {url} --timeout 0.02"
        output = run("python " + train_command(flags, tmp_path, 21), toy_root, expect=2)
    assert f"2 processes do not find each other at {url}" in output and "Traceback" not in output
