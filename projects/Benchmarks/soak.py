#!/usr/bin/env python
"""Kill training runs at random, let them go on, and see whether they end as if nothing had happened.

    python projects/Benchmarks/soak.py kill kill-saving --runs 30

kill         SIGKILL at any moment
kill-saving  SIGKILL while a checkpoint is being written
stop         SIGTERM: a checkpoint, and exit code 75

Every run is tools/train_net.py on ToyScenes, small, with 1 or 2 processes and 0 or 2 loader workers in turn, all on
the CPU. It is ended once, resumed and finished; then every tensor of its last checkpoint (encoders, queues, optimiser)
is compared, bit by bit, with that of a run that nobody touched. A line a run, and OUTPUT/KIND.json with all of them;
exit code 1 if any differs. Moments are drawn by --seed. About half a minute a run on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from projects.ToyScenes.write import make_toy_scenes
from revisit.checkpoint.run_folder import checkpoints_of_run, iteration_of
from revisit.engine.command import natural, run_command
from revisit.errors import StoppedRunError, UserError

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("kill", "kill-saving", "stop")
ITERATIONS, PERIOD = 24, 4
LIMIT = 600  # seconds: a run that has not ended by then never will
RECIPE = f"""
    MODEL.DEVICE cpu SEED 5 MOCO.QUEUE_SIZE 60000
    SOLVER.MAX_ITER {ITERATIONS} SOLVER.CHECKPOINT_PERIOD {PERIOD} SOLVER.IMS_PER_BATCH 8
    MOCO.BN_SPLITS 1 KNN_MOCO.NUM_NEIGHBORS 5 KNN_MOCO.WARMUP_EPOCHS 1 VIEWS.LARGE_SIZE 32 VIEWS.SMALL_SIZE 16
    MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8
    TEST.EVAL_EPOCHS 0 KNN_EVAL.IMAGE_SIZE 32 KNN_EVAL.LINEAR False
"""


class Setup(NamedTuple):
    """How a run is made."""

    processes: int
    workers: int

    def __str__(self) -> str:
        return f"{self.processes} process(es), {self.workers} workers each"


SETUPS = [Setup(processes, workers) for workers in (0, 2) for processes in (1, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=KINDS, help="how runs are ended")
    parser.add_argument("--runs", type=natural, default=30, help="of each kind (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("output/soak"), help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    args = parser.parse_args()
    soak = Soak(args.output)
    failed = False
    for kind in args.kinds:
        rows = []
        for number in tqdm(range(args.runs), desc=kind, unit="run", disable=None):
            rows.append(soak.run(kind, number, random.Random(f"{args.seed} {number}")))
            tqdm.write(f"{kind}: " + ", ".join(f"{key} {value}" for key, value in rows[-1].items()))
        (args.output / f"{kind}.json").write_text(json.dumps(rows, indent=2))
        same, lost = sum(row["identical"] for row in rows), max(row["lost"] for row in rows)
        print(
            f"{kind}: {same} of {len(rows)} runs ended bit-identical; of what a checkpoint had or was getting, at most "
            f"{lost} iterations had to be done again"
        )
        failed |= same < len(rows) or lost > PERIOD
    if failed:
        sys.exit(1)


class Soak:
    """Runs under one folder, with the untouched ones that they are compared with."""

    def __init__(self, output: Path):
        self._output = output
        self._datasets = output.resolve() / "datasets"
        self._seconds: dict[int, float] = {}  # of an untouched run's iterations, by number of processes
        if not (self._datasets / "toy_scenes").exists():
            make_toy_scenes(self._datasets / "toy_scenes", num_images=60, seed=0, size=64, workers=1)

    def run(self, kind: str, number: int, rng: random.Random) -> dict:
        """End one run by chance, finish it, and compare."""
        setup = SETUPS[number % len(SETUPS)]
        if setup.processes not in self._seconds:
            self._make_reference(setup.processes)
        folder = self._output / kind / f"run_{number}"
        while True:  # until it was ended in the way that is asked for
            shutil.rmtree(folder, ignore_errors=True)
            process = self._start(setup, folder)
            _wait_for(lambda: "Starting training" in _log(folder), process)
            reached = getattr(self, f"_{kind.replace('-', '_')}")(process, folder, setup, rng)
            if reached is not None:
                break
            if process.wait() not in (0, -signal.SIGKILL):  # over first, or killed a moment too late
                raise UserError(f"the run in {folder} ended by itself with exit code {process.returncode}")
        self._finish(self._start(setup, folder, "--resume"))
        told = re.findall(r"resuming at iteration (\d+)", _log(folder))
        resumed = int(told[-1]) if told else 0
        same = _same(folder, self._reference(setup.processes))
        if same:
            shutil.rmtree(folder)
        return {"run": number, "setup": str(setup), "resumed at": resumed, "lost": reached - resumed, "identical": same}

    def _kill(self, process: subprocess.Popen, folder: Path, setup: Setup, rng: random.Random) -> int | None:
        """Iterations that were done for certain, by the checkpoints; None if the run was over first."""
        try:
            process.wait(rng.uniform(0, self._seconds[setup.processes]))
            return None
        except subprocess.TimeoutExpired:
            _end(process, signal.SIGKILL)
        return _done(folder)

    def _kill_saving(self, process: subprocess.Popen, folder: Path, setup: Setup, rng: random.Random) -> int | None:
        """As _kill; None if no checkpoint was being written when the run died."""
        after = PERIOD * rng.randrange(ITERATIONS // PERIOD)
        _wait_for(lambda: _done(folder) >= after and any(folder.glob("model_0*.pth.tmp")), process)
        time.sleep(rng.uniform(0, 0.1))
        if process.poll() is not None:
            return None
        _end(process, signal.SIGKILL)
        unfinished = [int(path.name[6:13]) for path in folder.glob("model_0*.pth.tmp")]
        return unfinished[0] + 1 if unfinished else None

    def _stop(self, process: subprocess.Popen, folder: Path, setup: Setup, rng: random.Random) -> int | None:
        try:
            process.wait(rng.uniform(0, self._seconds[setup.processes]))
            return None
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGTERM)
        code = process.wait(LIMIT)
        if code == 0:
            return None  # it came behind the last step
        if code != StoppedRunError.EXIT_CODE:
            raise UserError(f"{folder} ended with exit code {code}, expected {StoppedRunError.EXIT_CODE}")
        return _done(folder)

    def _reference(self, processes: int) -> Path:
        return self._output / f"untouched_{processes}"

    def _make_reference(self, processes: int) -> None:
        folder = self._reference(processes)
        shutil.rmtree(folder, ignore_errors=True)
        process = self._start(Setup(processes, 0), folder)
        _wait_for(lambda: "Starting training" in _log(folder), process)
        start = time.perf_counter()
        _wait_for(lambda: (folder / "model_final.pth").exists(), process)
        self._seconds[processes] = time.perf_counter() - start
        self._finish(process)

    def _start(self, setup: Setup, folder: Path, *options: str) -> subprocess.Popen:
        folder.mkdir(parents=True, exist_ok=True)
        words = [
            *(sys.executable, "tools/train_net.py", "--config-file", "configs/toy/pretrain.yaml", *options),
            *("--num-gpus", str(setup.processes), *RECIPE.split()),
            *("DATALOADER.NUM_WORKERS", str(setup.workers), "OUTPUT_DIR", str(folder.resolve())),
        ]
        environment = os.environ | {"DETECTRON2_DATASETS": str(self._datasets), "OMP_NUM_THREADS": "1"}
        with open(folder / "console.txt", "a") as console:
            return subprocess.Popen(
                words, cwd=ROOT, env=environment, stdout=console, stderr=console, start_new_session=True
            )

    def _finish(self, process: subprocess.Popen) -> None:
        if code := process.wait(LIMIT):
            raise UserError(f"a run in {self._output} ended with exit code {code}: its console.txt says why")


def _log(folder: Path) -> str:
    path = folder / "log.txt"
    return path.read_text() if path.exists() else ""


def _done(folder: Path) -> int:
    """Iterations that the newest checkpoint has behind it."""
    return max((iteration_of(path) + 1 for path in checkpoints_of_run(folder)), default=0)


def _wait_for(condition: object, process: subprocess.Popen) -> None:
    """Until the condition holds or the process has ended."""
    end = time.monotonic() + LIMIT
    while not condition() and process.poll() is None:
        if time.monotonic() > end:
            _end(process, signal.SIGKILL)
            raise UserError(f"process {process.pid} made no progress in {LIMIT} s")
        time.sleep(0.001)


def _end(process: subprocess.Popen, number: int) -> None:
    """Send a signal to the run and all that it has started."""
    os.killpg(process.pid, number)
    process.wait()


def _same(folder: Path, reference: Path) -> bool:
    """Whether the last checkpoints hold the same model and the same state of the trainer."""
    if not (folder / "model_final.pth").exists():
        return False
    one, other = (torch.load(path / "model_final.pth", weights_only=True) for path in (folder, reference))
    return all(_equal(one[name], other[name]) for name in ("model", "trainer"))


def _equal(one: object, other: object) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


if __name__ == "__main__":
    run_command(main)
