#!/usr/bin/env python
"""Pretrain the same network on the same images for the same CPU time with this project, lightly and LightlyTrain.

    python studies/benchmarks/peers.py --train /data/train --test /data/test --output output/peers

Both folders have a folder of images for each class; pretraining does not read the classes. The two libraries come into
build/peers, next to this interpreter's packages. Of each run 8 and 24 iterations are timed; it then has as many as
--seconds of CPU time allow. Logistic regression and kNN on its frozen features judge it. Protocol and results:
docs/results/comparison.md. Repeat an interrupted call: finished runs are kept.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import venv
from itertools import chain
from pathlib import Path

from revisit.engine.command import run_command
from revisit.errors import UserError
from revisit.files import output_path

PACKAGES = ("lightly==1.6.0", "lightly-train==0.18.0")
RUNS = ("random", "revisit", "lightly-simclr", "lightly-moco", "lightly_train-simclr")
RUNS += ("lightly-simclr-ours", "lightly_train-simclr-ours")  # with Revisit's settings
# What each of the three has there; configs/own_images/pretrain.yaml has others by now.
SETTINGS = {
    **{
        "SOLVER.OPTIMIZER": "SGD",
        "SOLVER.BASE_LR": 0.015,
        "SOLVER.WEIGHT_DECAY": 1e-4,
        "SOLVER.WEIGHT_DECAY_NORM": 1e-4,
    },
    **{"SOLVER.IMS_PER_BATCH": 64, "SIMCLR.HIDDEN_DIM": 0, "VIEWS.LARGE_SCALE": (0.4, 1.0), "VIEWS.POLICY": "standard"},
}
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LIGHTLY_TRAIN_EVENTS_DISABLED": "1"}


def run(*command: object) -> float:
    """CPU seconds, user and system, of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [str(word) for word in command]
    if code := subprocess.run(words, cwd=ROOT, env=ENVIRONMENT).returncode:
        raise UserError(f"a part of the comparison ended with exit code {code}: {shlex.join(words)}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peers_python() -> Path:
    """The interpreter of an environment of the peers' own, which sees this one's packages after its own."""
    folder = ROOT / "build" / "peers"
    python = folder / "bin" / "python"
    if not (folder / ".complete").exists():
        venv.create(folder, clear=True)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "beside.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
        run(python, "-P", "-m", "pip", "install", "--quiet", *PACKAGES)
        (folder / ".complete").touch()
    return python


def pretrain(name: str, images: str, folder: Path, iterations: int) -> tuple[Path, float]:
    """The checkpoint of one run, and its CPU seconds."""
    if name != "revisit":
        weights = folder / "weights.pth"
        return weights, run(peers_python(), "studies/benchmarks/peer_runs.py", name, images, folder, iterations)
    keys = ("SEED", 1, "DATALOADER.NUM_WORKERS", 0, "SOLVER.MAX_ITER", iterations, "MODEL.DEVICE", "cpu")
    keys += ("DATASETS.TRAIN", f"('folder:{images}',)", "OUTPUT_DIR", folder, *chain.from_iterable(SETTINGS.items()))
    keys += ("SOLVER.PRECISION", "", "SOLVER.AMP.ENABLED", True, "MODEL.CHANNELS_LAST", True)  # as timed, in every run
    seconds = run(sys.executable, "tools/train_net.py", "--config-file", "configs/own_images/pretrain.yaml", *keys)
    return folder / "model_final.pth", seconds


def measured(name: str, args: argparse.Namespace) -> dict[str, float]:
    """Iterations, CPU seconds and scores in percent of one run."""
    folder, weights, result = args.output.resolve() / name, "random", {}
    if name != "random":
        short, long = (pretrain(name, args.train, folder / f"timed_{n}", n)[1] for n in (8, 24))
        start, result["cpu_seconds"] = short - (long - short) / 2, (long - short) / 16
        result["iterations"] = 1
        while abs(result["cpu_seconds"] / args.seconds - 1) > 0.15:  # on a shared machine seconds differ
            result["iterations"] = round(result["iterations"] * args.seconds / result["cpu_seconds"])
            checkpoint, spent = pretrain(name, args.train, folder / f"run_{result['iterations']}", result["iterations"])
            result["cpu_seconds"] = round(spent - start, 1)
        weights = folder / "backbone.pth"
        run(sys.executable, "tools/convert_to_d2.py", checkpoint, weights)
    for method in ("knn", "logistic"):
        keys = ("LINEAR.METHOD", method, "LINEAR.CACHE", folder / "features", "MODEL.DEVICE", "cpu", "SEED", 1)
        for split, classes in (("TRAIN", args.train), ("TEST", args.test)):
            keys += (f"DATASETS.{split}", f"('class_folders:{classes}',)")
        project = "projects/FrozenEvaluations"
        recipe = f"{project}/configs/linear/own_images.yaml"
        command = (f"{project}/linear.py", "--config-file", recipe, "--weights", weights)
        run(sys.executable, *command, "--output", folder / method, *keys)
        result[method] = json.loads((folder / method / "results.json").read_text())["top1"]
    return result


def main() -> None:
    """Measure what is not measured yet; print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=os.path.abspath, required=True, help="a folder for each class")
    parser.add_argument("--test", type=os.path.abspath, required=True, help="a folder for each class")
    parser.add_argument("--output", type=output_path, required=True, help="folder to write")
    parser.add_argument("--seconds", type=float, default=180, help="CPU time of a run, its start aside (default: 180)")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS, help="default: all")
    args = parser.parse_args()
    for name in args.runs:
        kept = args.output / f"{name}.json"
        if not kept.exists():
            kept.write_text(json.dumps(measured(name, args)))
        print(name, kept.read_text())


if __name__ == "__main__":
    run_command(main)
