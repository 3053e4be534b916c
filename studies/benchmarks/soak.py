#!/usr/bin/env python
"""Kill training runs at random, resume them, and see whether they end as if nothing had happened.

    python studies/benchmarks/soak.py kill kill-saving --runs 30

kill             SIGKILL at any moment
kill-saving      SIGKILL while a checkpoint is being written
kill-evaluating  SIGKILL in the middle of an evaluation
stop             SIGTERM: a checkpoint, and exit code 75

Every run is tools/train_net.py on a small ToyScenes, with 1 or 2 processes and 0 or 2 loader workers in turn, all on
the CPU. It is ended once, resumed and finished; then its scores, and every tensor and value of its last and its best
checkpoint (encoders, queues, optimiser, what followed from evaluations) are compared, bit by bit, with those of an
untouched run. Prints a line for each run and writes OUTPUT/KIND.json; the exit
code is 1 if any differs. --seed draws the moments. A run takes about half a minute on two cores.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

from projects.ToyScenes.write import make_toy_scenes
from revisit.checkpoint.run_folder import checkpoints_of_run, iteration_of
from revisit.engine.command import natural, run_command, whole
from revisit.errors import StoppedRunError, UserError, expect
from revisit.files import output_path
from revisit.plugins import PACKAGES, find_file
from revisit.progress import progress

KINDS = ("kill", "kill-saving", "kill-evaluating", "stop")
ITERATIONS, PERIOD = 24, 4
LIMIT = 600  # seconds: a run that has not ended by then never will
RECIPE = f"""
    MODEL.DEVICE cpu SEED 5 MOCO.QUEUE_SIZE 60000
    SOLVER.MAX_ITER {ITERATIONS} SOLVER.CHECKPOINT_PERIOD {PERIOD} SOLVER.IMS_PER_BATCH 8 SOLVER.WARMUP_ITERS 0
    MOCO.BN_GROUP 0 NEIGHBORS.NUM_NEIGHBORS 5 NEIGHBORS.WARMUP_EPOCHS 1 VIEWS.LARGE_SIZE 32 VIEWS.SMALL_SIZE 16
    MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 SOLVER.AMP.ENABLED False
    TEST.EVAL_EPOCHS 0 TEST.EVAL_PERIOD 6 TEST.KEEP_BEST True MONITOR.IMAGES toy_scenes_train
    KNN_EVAL.IMAGE_SIZE 32 KNN_EVAL.LINEAR False
"""
PASSES = 4 * (1 + ITERATIONS // 6)  # over images, of all evaluations: bank, test images, watched ones, pairs of views
# Processes and loader workers of each.
SETUPS = [(processes, workers) for workers in (0, 2) for processes in (1, 2)]


def main() -> None:
    """End, resume and compare runs of each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=KINDS, help="how runs are ended")
    parser.add_argument("--runs", type=natural, default=30, help="of each kind (default: %(default)s)")
    parser.add_argument("--output", type=output_path, default="output/soak", help="(default: %(default)s)")
    parser.add_argument("--seed", type=whole, default=0, help="of the moments (default: %(default)s)")
    args = parser.parse_args()
    soak = Soak(args.output)
    failed = False
    for kind in args.kinds:
        rows = []
        for number in progress(kind, "run", range(args.runs)):
            rows.append(soak.run(kind, number, random.Random(f"{args.seed} {number}")))
            tqdm.write(f"{kind}: " + ", ".join(f"{key} {value}" for key, value in rows[-1].items()))
        (args.output / f"{kind}.json").write_text(json.dumps(rows, indent=2))
        same, lost = sum(row["identical"] for row in rows), max(row["lost"] for row in rows)
        ended = f"{kind}: {same} of {len(rows)} runs ended bit-identical"
        print(f"{ended}; of what a checkpoint had or was getting, at most {lost} iterations had to be done again")
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
        """End one run by chance, resume it to its end, and compare."""
        processes, workers = SETUPS[number % len(SETUPS)]
        folder, untouched = self._output / kind / f"run_{number}", self._output / f"untouched_{processes}"
        if processes not in self._seconds:
            process, start = self._start(untouched, processes, 0), time.perf_counter()
            _wait_for(lambda: (untouched / "model_final.pth").exists(), process, every=0.02)
            self._seconds[processes] = time.perf_counter() - start
            self._finish(process)
        reached = None
        while reached is None:  # until it was ended in the way that is asked for
            process = self._start(folder, processes, workers)
            reached = _end(kind, process, folder, self._seconds[processes], rng)
        self._finish(self._start(folder, processes, workers, "--resume"))
        resumed = int(([0] + re.findall(r"resuming at iteration (\d+)", _console(folder)))[-1])
        same = _same(folder, untouched)
        if same:
            shutil.rmtree(folder)
        setup = f"{processes} process(es), {workers} workers each"
        return {"run": number, "setup": setup, "resumed at": resumed, "lost": reached - resumed, "identical": same}

    def _start(self, folder: Path, processes: int, workers: int, *resume: str) -> subprocess.Popen:
        """Start a run from the beginning, until it trains, or resume it."""
        if not resume:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        words = f"tools/train_net.py --config-file configs/toy/pretrain.yaml --num-gpus {processes}".split()
        words += [*resume, *RECIPE.split(), "DATALOADER.NUM_WORKERS", str(workers), "OUTPUT_DIR", str(folder.resolve())]
        environment = os.environ | {"DETECTRON2_DATASETS": str(self._datasets), "OMP_NUM_THREADS": "1"}
        with open(folder / "console.txt", "a") as console:
            options = {"cwd": PACKAGES, "env": environment, "stdout": console, "start_new_session": True}
            command = [sys.executable, find_file(words[0]), *words[1:]]
            process = subprocess.Popen(command, stderr=subprocess.STDOUT, **options)
        _wait_for(lambda: "Starting training" in _console(folder), process, every=0.02)
        return process

    def _finish(self, process: subprocess.Popen) -> None:
        code = process.wait(LIMIT)
        expect(code == 0, f"a run in {self._output} ended with exit code {code}: its console.txt says why")


def _end(kind: str, process: subprocess.Popen, folder: Path, seconds: float, rng: random.Random) -> int | None:
    """End a run at a moment of its ``seconds``: iterations that were done for certain, by the checkpoints.

    None if it was over first, or no checkpoint was being written where one should have been.
    """
    if kind == "kill-saving":
        after = PERIOD * rng.randrange(ITERATIONS // PERIOD)
        _wait_for(lambda: _done(folder) >= after and any(folder.glob("model_0*.pth.tmp")), process)
        time.sleep(rng.uniform(0, 0.1))
    elif kind == "kill-evaluating":
        after = rng.randrange(PASSES)
        _wait_for(lambda: _console(folder).count("Start inference on") > after, process)
        time.sleep(rng.uniform(0, 0.05))
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, seconds))
    stop = (os.kill, signal.SIGTERM, StoppedRunError.EXIT_CODE)
    send, number, expected = stop if kind == "stop" else (os.killpg, signal.SIGKILL, -signal.SIGKILL)
    if process.poll() is None:
        send(process.pid, number)
    code = process.wait(LIMIT)
    expect(code in (0, expected), f"the run in {folder} ended with exit code {code}, expected {expected}")
    unfinished = [int(path.name[6:13]) + 1 for path in folder.glob("model_0*.pth.tmp")]
    reached = next(iter(unfinished), None) if kind == "kill-saving" else _done(folder)
    return reached if code else None


def _console(folder: Path) -> str:
    return (folder / "console.txt").read_text()


def _done(folder: Path) -> int:
    """Iterations that the newest checkpoint holds."""
    return max((iteration_of(path) + 1 for path in checkpoints_of_run(folder)), default=0)


def _wait_for(condition: Callable[[], bool], process: subprocess.Popen, every: float = 0.001) -> None:
    """Until the condition, seen ``every`` so many seconds, holds or the process has ended."""
    end = time.monotonic() + LIMIT
    while not condition() and process.poll() is None:
        if time.monotonic() > end:
            os.killpg(process.pid, signal.SIGKILL)
            raise UserError(f"process {process.pid} made no progress in {LIMIT} s")
        time.sleep(every)


def _same(folder: Path, untouched: Path) -> bool:
    """Whether both have the same scores, and checkpoints of the same model and the same state of the trainer."""
    names = ("model_final.pth", "model_best.pth", "evaluation.json", "best.json")
    if not all((folder / name).exists() for name in names):
        return False
    for name in names[:2]:
        contents = [torch.load(path / name, weights_only=True) for path in (folder, untouched)]
        for content in contents:
            del content["trainer"]["config"], content["trainer"]["images"]  # OUTPUT_DIR differs
        if not _equal(*contents):
            return False
    return all((folder / name).read_text() == (untouched / name).read_text() for name in names[2:])


def _equal(left: object, right: object) -> bool:
    """Whether two states are the same to the bit: tensors, numbers and words, in dictionaries and lists."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    return left == right


if __name__ == "__main__":
    run_command(main)
