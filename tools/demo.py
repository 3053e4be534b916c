#!/usr/bin/env python
"""The main job in small, start to end on a CPU: draw images, pretrain kNN-MoCo, convert, finetune a detector.

Runs the commands of the README on ToyScenes and prints one table: kNN top-1 and detection AP50, random init
against pretrained. Leaves summary.md and its pictures in the output folder. Six to seven minutes on two cores.

    python tools/demo.py --seed 2 --output output/demo_seed2
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from revisit.engine.command import run_command
from revisit.errors import UserError
from revisit.viz.curves import plot_curves

PRETRAIN, DETECT = "configs/toy/pretrain.yaml", "configs/toy/detection.yaml"
NUM_STEPS = 7
# What of Detectron2's long log a person follows; all of it goes to the step's log file.
WORTH_SHOWING = re.compile(
    r"eta: .*|kNN top-1 of .*|L_nn joins .*|\d+ of \d+ backbone tensors .*|drawing ToyScenes: .*|error: .*"
)
QUICK = {
    "draw": ["--num-images", "60", "--size", "64"],
    "pretrain": ["SOLVER.MAX_ITER", "4", "SOLVER.IMS_PER_BATCH", "16", "TEST.EVAL_EPOCHS", "0"],
    "detect": ["SOLVER.MAX_ITER", "4", "SOLVER.STEPS", "(3,)", "TEST.PRECISE_BN.NUM_ITER", "2"],
}


class Demo:
    """The steps of the demo, each a command that a user could type."""

    def __init__(self, output: Path, seed: int, quick: bool):
        self.output = output
        self.extra = QUICK if quick else {name: [] for name in QUICK}
        self.quick = quick
        # Measured on two cores: an iteration of the detector takes 0.37 s by two processes, 0.27 s by one.
        self.processes = {PRETRAIN: str(min(2, os.cpu_count() or 1)), DETECT: "1"}
        self.seed = str(seed)
        self.environment = os.environ | {
            "DETECTRON2_DATASETS": str(output / "datasets"),
            "PYTHONUNBUFFERED": "1",
            "TQDM_MININTERVAL": "2",
        }
        self.timings: list[tuple[str, float]] = []
        (output / "logs").mkdir(parents=True, exist_ok=True)

    def run(self, title: str, *command: str) -> None:
        """Run ``python COMMAND``, showing what matters of its output and keeping all of it in a log."""
        number = len(self.timings) + 1
        print(f"\n[{number}/{NUM_STEPS}] {title}\n    python {' '.join(command)}", flush=True)
        log, start = self.output / "logs" / f"{number}.log", time.perf_counter()
        with open(log, "w") as file:
            process = subprocess.Popen(
                [sys.executable, *command],
                env=self.environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for line in process.stdout:
                file.write(line)
                if shown := WORTH_SHOWING.search(line):
                    print(f"    {shown[0].strip()[:150]}", flush=True)
        if process.wait():
            raise UserError(
                f"step {number} ({title}) failed with exit code {process.returncode}; its output is in {log}"
            )
        self.timings.append((title, time.perf_counter() - start))

    def train(self, title: str, config: str, output: Path, *options: str) -> None:
        """One call of tools/train_net.py; ``options`` may start with flags."""
        flags = [option for option in options if option.startswith("--")]
        values = [option for option in options if not option.startswith("--")]
        kind = "pretrain" if config == PRETRAIN else "detect"
        command = ["tools/train_net.py", "--config-file", config, "--num-gpus", self.processes[config], *flags]
        self.run(title, *command, "OUTPUT_DIR", str(output), "SEED", self.seed, *self.extra[kind], *values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=Path("output/demo"), help="folder for everything (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of pretraining and finetuning (default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="a minute's check that everything runs; its numbers mean nothing"
    )
    args = parser.parse_args()
    start, output = time.perf_counter(), args.output.resolve()
    if (output / "summary.md").exists():
        raise UserError(f"{args.output} holds a finished demo: give another --output, or remove it")
    demo = Demo(output, args.seed, args.quick)
    pretrain, weights = output / "pretrain", output / "backbone.pth"
    toy = str(output / "datasets" / "toy_scenes")
    demo.run("draw ToyScenes", "projects/ToyScenes/make_toy_scenes.py", "--output", toy, *demo.extra["draw"])
    demo.train("kNN of random init", PRETRAIN, output / "random_init", "--eval-only")
    demo.train("pretrain kNN-MoCo", PRETRAIN, pretrain)
    demo.train("the views, as a picture", PRETRAIN, pretrain, "--dry-run")
    demo.run("convert", "tools/convert_to_d2.py", str(pretrain / "model_final.pth"), str(weights))
    demo.train("detector from random init", DETECT, output / "detect_random")
    demo.train(
        "detector from the pretrained backbone", DETECT, output / "detect_pretrained", "MODEL.WEIGHTS", str(weights)
    )
    draw_pictures(output)
    write_summary(output, demo, time.perf_counter() - start)


def draw_pictures(output: Path) -> None:
    """Loss curves, views and the last neighbour gallery, beside summary.md."""
    pretrain = output / "pretrain"
    plot_curves(pretrain / "metrics.json", output / "curves.png")
    shutil.copy(max(pretrain.glob("neighbours_*.png")), output / "neighbours.png")
    (pretrain / "views.png").replace(output / "views.png")


def last_value(metrics: Path, name: str) -> float:
    """The last value of a metric that a run has written."""
    values = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line[name] for line in values if name in line][-1]


def write_summary(output: Path, demo: Demo, seconds: float) -> None:
    """Print the table and write summary.md around it."""
    random_knn = json.loads((output / "random_init" / "evaluation.json").read_text())["knn_top1"]
    knn = last_value(output / "pretrain" / "metrics.json", "knn_top1")
    ap50 = [last_value(output / f"detect_{name}" / "metrics.json", "bbox/AP50") for name in ("random", "pretrained")]
    table = "\n".join([
        "| | random init | kNN-MoCo |",
        "|---|---|---|",
        f"| kNN top-1, held-out appearance (%) | {random_knn:.1f} | {knn:.1f} |",
        f"| detection AP50, held-out appearance (%) | {ap50[0]:.1f} | {ap50[1]:.1f} |",
    ])  # fmt: skip
    steps = "\n".join(f"| {title} | {duration:.0f} s |" for title, duration in demo.timings)
    warning = "\n**A quick check: these numbers mean nothing.**\n" if demo.quick else ""
    (output / "summary.md").write_text(f"""# kNN-MoCo on ToyScenes
{warning}
{table}

ToyScenes, one seed ({demo.seed}), on {os.cpu_count()} CPU cores, {seconds / 60:.1f} minutes in all. The recipes:
{PRETRAIN} and {DETECT}.

## What the network saw
Red: anchor. Green: large positive. Blue: small positives, each at least 20 % inside the anchor.

![views](views.png)

## How it learned
![curves](curves.png)

## What it takes for similar
Left: held-out images. Right: their nearest training images; green frames share the class.

![neighbours](neighbours.png)

## Time
| step | |
|---|---|
{steps}
""")
    print(f"\n{table}\n\n{seconds / 60:.1f} minutes. Pictures and this table: {output / 'summary.md'}")


if __name__ == "__main__":
    run_command(main)
