#!/usr/bin/env python
"""The main job on a small scale, start to end on a CPU: draw images, pretrain SimCLR, convert, finetune a detector.

Prints every command that it runs, then one table, random init against pretrained: kNN top-1, J&F of masks that are
followed through videos, and detection AP50. Leaves summary.md and its pictures in the output folder. Takes 9 minutes
on two cores with bfloat16 instructions.

    python tools/demo.py --seed 2 --output output/demo_seed2
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from projects.Pictures.curves import plot_curves
from revisit.checkpoint.metrics_file import read_metrics
from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_folder
from revisit.jobs.with_parent import start_child
from revisit.markdown import markdown_table
from revisit.plugins import find_file, name_from_here

PRETRAIN, DETECT = "configs/toy/demo.yaml", "configs/toy/detection.yaml"
VIDEO = "projects/FrozenEvaluations/configs/propagation/toy.yaml"
STARTS, VIDEO_SIZE = ("random", "pretrained"), (160, 160)
# Measured on two cores: an iteration of pretraining takes 0.06 s by one thread and its loader, 0.08 s by two.
THREADS = {PRETRAIN: {"OMP_NUM_THREADS": "1"}}
NUM_STEPS = 8
# What of Detectron2's long log a person follows; all of it goes to the step's log file.
WORTH_SHOWING = re.compile(
    r"eta: .*|kNN top-1 of .*|J&F-Mean .*|\d+ of \d+ backbone tensors .*|drawing ToyScenes: .*|error: .*"
)
IMAGES = ("--count", "8000")
QUICK_IMAGES = ("--count", "60", "--size", "64")
NO_WARMUP = ("SOLVER.WARMUP_ITERS", "0")
QUICK = {
    PRETRAIN: ("SOLVER.MAX_ITER", "4", "SOLVER.IMS_PER_BATCH", "16", "TEST.EVAL_EPOCHS", "0", *NO_WARMUP),
    DETECT: ("SOLVER.MAX_ITER", "4", "SOLVER.STEPS", "(3,)", "TEST.PRECISE_BN.NUM_ITER", "2", *NO_WARMUP),
}
SUMMARY = Path(__file__).with_name("demo_summary.md")


class Demo:
    """The steps of the demo, each a command that a user could type."""

    def __init__(self, output: Path, seed: int, quick: bool):
        self.output, self.seed, self.quick = output, seed, quick
        self.timings: list[tuple[str, float]] = []
        make_folder(output / "logs", "--output")

    def run(self, title: str, *command: str, **variables: str) -> None:
        """Run ``python COMMAND``, showing what matters of its output and keeping all of it in a log."""
        number = len(self.timings) + 1
        words = [
            *(f"{name}={value}" for name, value in variables.items()),
            "python",
            name_from_here(command[0]),
            *command[1:],
        ]
        print(f"\n[{number}/{NUM_STEPS}] {title}\n    {' '.join(words)}", flush=True)
        log, start = self.output / f"logs/{number}.log", time.perf_counter()
        own = {"DETECTRON2_DATASETS": f"{self.output}/datasets", "PYTHONUNBUFFERED": "1", "TQDM_MININTERVAL": "2"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with open(log, "w") as file:
            words, environment = [sys.executable, find_file(command[0]), *command[1:]], os.environ | own | variables
            process = start_child(words, env=environment, **pipes)
            for line in process.stdout:
                file.write(line)
                if shown := WORTH_SHOWING.search(line):
                    print(f"    {shown[0].strip()[:150]}", flush=True)
        code = process.wait()
        expect(code == 0, f"step {number} ({title}) failed with exit code {code}; its output is in {log}")
        self.timings.append((title, time.perf_counter() - start))

    def train(self, title: str, config: str, folder: str, *flags: str, weights: str = "") -> None:
        """One call of tools/train_net.py."""
        command = ["tools/train_net.py", "--config-file", config, *flags]
        command += ["OUTPUT_DIR", f"{self.output}/{folder}", "SEED", str(self.seed), *(QUICK[config] * self.quick)]
        command += ["MODEL.WEIGHTS", weights] if weights else []
        self.run(title, *command, **THREADS.get(config, {}))

    def follow(self, title: str, folder: str, weights: str) -> None:
        """One call of projects/FrozenEvaluations/propagation.py."""
        options = ["--weights", weights, "--output", f"{self.output}/{folder}", "SEED", str(self.seed)]
        options += ["LABEL_PROPAGATION.SEQUENCES", "('toy-01',)"] if self.quick else []
        self.run(title, "projects/FrozenEvaluations/propagation.py", "--config-file", VIDEO, *options)


def main() -> None:
    """Every step, then the pictures and the summary."""
    parser = parser_of(__doc__, __file__)
    add(parser, "output", default="output/demo", help=f"folder for everything {DEFAULT}")
    add(parser, "seed", default=1, help=f"seed of pretraining and finetuning {DEFAULT}")
    quick = "only check in a minute that everything runs; its numbers mean nothing"
    add(parser, "how", choices=("quick",), help=f"quick: {quick}")
    args = parse(parser)
    start, output = time.perf_counter(), args.output.resolve()
    finished = (output / "summary.md").exists()
    expect(not finished, f"{args.output} holds a finished demo: give another --output, or remove it")
    quick = args.how == "quick"
    demo, weights = Demo(output, args.seed, quick), f"{output}/backbone.pth"
    draw = ["projects/ToyScenes/make_toy_scenes.py", "--output", f"{output}/datasets/toy_scenes"]
    demo.run("draw ToyScenes", *draw, *(QUICK_IMAGES if quick else IMAGES))
    demo.train("pretrain SimCLR", PRETRAIN, "pretrain")
    demo.train("the views, as a picture", PRETRAIN, "pretrain", "--dry-run")
    demo.run("convert", "tools/convert_to_d2.py", f"{output}/pretrain/model_final.pth", weights)
    demo.follow("masks through videos, random init", "video_random", "random")
    demo.follow("masks through videos, pretrained", "video_pretrained", weights)
    demo.train("detector from random init", DETECT, "detect_random")
    demo.train("detector from the pretrained backbone", DETECT, "detect_pretrained", weights=weights)
    plot_curves(output / "pretrain/metrics.json", output / "curves.png")
    shutil.copy(max(output.glob("pretrain/neighbours_*.png")), output / "neighbours.png")
    (output / "pretrain/views.png").replace(output / "views.png")
    save_videos(output)
    write_summary(demo, (time.perf_counter() - start) / 60)


def save_videos(output: Path) -> None:
    """Write video.gif: in a row the videos of one start, above each other the starts."""
    import numpy as np
    from PIL import ImageSequence

    from projects.FrozenEvaluations.davis import save_animation
    from revisit.data.images.opening import open_image

    def read(gif: Path) -> list[np.ndarray]:
        frames = ImageSequence.Iterator(open_image(gif))
        return [np.asarray(frame.convert("RGB").resize(VIDEO_SIZE)) for frame in frames]

    rows = [[read(gif) for gif in sorted(output.glob(f"video_{start}/overlays/*.gif"))] for start in STARTS]
    pictures = np.concatenate([np.concatenate(films, axis=2) for films in rows], axis=1)  # (frames, H, W, 3)
    save_animation(output / "video.gif", list(pictures), frames_per_second=5)


def write_summary(demo: Demo, minutes: float) -> None:
    """Print the table and write summary.md around it."""
    metrics = {"pretrain": "knn_top1", "detect_random": "bbox/AP50", "detect_pretrained": "bbox/AP50"}
    curves = {run: read_metrics(demo.output / run / "metrics.json")[name] for run, name in metrics.items()}
    videos = [json.loads((demo.output / f"video_{start}/results.json").read_text()) for start in STARTS]
    rows = {
        "kNN top-1, held-out appearance (%)": [curves["pretrain"][n][1] for n in (0, -1)],
        "masks followed through videos, J&F (%)": [scores["J&F-Mean"] for scores in videos],
        "detection AP50, held-out appearance (%)": [curves[f"detect_{start}"][-1][1] for start in STARTS],
    }
    cells = [[name, *(f"{value:.1f}" for value in values)] for name, values in rows.items()]
    table = markdown_table(["", "random init", "SimCLR"], cells)
    steps = markdown_table(["step", ""], [(title, f"{seconds:.0f} s") for title, seconds in demo.timings])
    facts = {
        "warning": "\n**A quick check: these numbers mean nothing.**\n" if demo.quick else "",
        "table": table, "seed": demo.seed, "cores": os.cpu_count(), "minutes": minutes, "pretrain": PRETRAIN,
        "detect": DETECT, "steps": steps,
    }  # fmt: skip
    (demo.output / "summary.md").write_text(SUMMARY.read_text().format(**facts))
    print(f"\n{table}\n\n{minutes:.1f} minutes. Pictures and this table: {demo.output / 'summary.md'}")


if __name__ == "__main__":
    run_command(main)
