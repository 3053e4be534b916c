#!/usr/bin/env python
"""Everything that a GPU should show before a long run is paid for: an ordered list, each with its expected result.

    python studies/benchmarks/check_gpu.py --output output/check_gpu     # make check-gpu; at most 30 minutes

Writes OUTPUT/page.md, to be put into docs/results/performance.md, and a log of every item. Exit code 1 where one is not
as expected. --only WORD runs the items whose title has the word.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_folder, output_path
from revisit.markdown import markdown_table

LIMIT = 600  # seconds of one item
TRAIN = ["tools/train_net.py", "--config-file"]
UNJUDGED = ["DATASETS.TEST", "()", "TEST.EVAL_PERIOD", "0", "SOLVER.MAX_ITER", "20"]
METHODS = ("pretrain", "densecl", "simclr", "byol", "swav", "objects", "distillation")
TASKS = ("detection", "segmentation_voc", "segmentation_cityscapes", "segmentation_nyud", "depth")
BENCHMARK = ["studies/benchmarks/benchmark.py", "--repeats", "3"]
VERSIONS = r"^(?:PyTorch version|CUDA used|GPU \d|Nvidia driver).*"
ARCHITECTURE = """
import torch
print("sm_%d%d, torch has" % torch.cuda.get_device_capability(), *torch.cuda.get_arch_list())
assert torch.ones(2, device="cuda").sum() == 2  # a kernel is there
"""
VERDICTS = {True: "as expected", False: "NOT AS EXPECTED", None: "not run"}
FIGURES = r"^(?:ratio|memory_ratio|share_of_matmul|ours_(?:images_per_second|peak_memory_gb|peak_mb)): .*"


class Item(NamedTuple):
    """A command, and what its output has to say where it ends well."""

    title: str
    words: list[str]
    expected: str  # in words
    shown: str  # what of the output is the result: a pattern
    holds: Callable[[list], bool] = bool  # of all that the pattern found
    gpus: int = 1
    killed: bool = False  # one of its processes, once it trains; it should then end by itself, with a failure


def items(output: Path) -> list[Item]:
    """The list, in its order; later items read what earlier ones wrote."""
    drawing = ["projects/ToyScenes/make_toy_scenes.py", "--output", f"{output}/datasets/toy_scenes"]
    return [
        Item("versions", ["-m", "torch.utils.collect_env"], "torch, driver, GPU", VERSIONS),
        Item("architectures", ["-c", ARCHITECTURE], "a kernel runs", r"^sm_.*"),
        Item("tests", ["-m", "pytest", "-m", "cuda", "tests/engine/test_on_gpu.py"], "all pass", r"^\.+ .*100%.*"),
        Item("ToyScenes", [*drawing, "--count", "8000"], "8,000 images", r".*toy_scenes.*"),
        *trainings(output),
        *benchmarks(),
    ]


def trainings(output: Path) -> list[Item]:
    """The toy recipe to its end, resumed runs, every objective and every finetuning, and two processes."""

    def train(title: str, recipe: str, *words: str, expected: str = "losses are finite", **more: object) -> Item:
        folder = f"{output}/{more.pop('folder', title)}".replace(" ", "_")
        return Item(title, [*TRAIN, f"configs/toy/{recipe}.yaml", *words, "OUTPUT_DIR", folder], expected, **more)

    def gained(found: list[tuple[str, str]]) -> bool:
        return bool(found) and float(found[0][1]) > float(found[0][0])

    losses = {"shown": r"iter: \d+ .*total_loss: [\d.]+"}
    short, two = ["KNN_EVAL.BANK", "", *UNJUDGED], ["--num-gpus", "2"]
    teacher = ["DISTILLATION.TEACHER", f"{output}/toy_recipe/model_final.pth"]
    auto = {"expected": "a rate of each, the fastest chosen", "shown": r"images per second: (.*)"}
    how = {"shown": r"knn_top1 from ([\d.]+) to ([\d.]+)", "holds": gained}
    resumed = {"expected": "goes on where it stopped", "shown": r"resuming at iteration 20", "folder": "pretrain"}
    killed = {"expected": "ends by itself, and says why", "shown": r"error: .*", "gpus": 2, "killed": True}
    return [
        train("toy recipe", "pretrain", "DATALOADER.NUM_WORKERS", "8", expected="kNN above the random start", **how),
        train("precisions", "pretrain", "SOLVER.MEASURE_PRECISION", "True", *short, **auto),
        *(train(each, each, *short, *(teacher if each == "distillation" else []), **losses) for each in METHODS),
        train("resumed", "pretrain", "--resume", *short, "SOLVER.MAX_ITER", "40", **resumed),
        *(train(each, each, *UNJUDGED, **losses) for each in TASKS),
        train("two GPUs, a group on each", "pretrain", *two, *short, gpus=2, **losses),
        train("two GPUs, a pooled group", "pretrain", *two, *short, "MOCO.BN_GROUP", "60", gpus=2, **losses),
        train("a killed process", "pretrain", *two, "--timeout", "1", **killed),
    ]


def benchmarks() -> list[Item]:
    """Of the paper's recipe, in both precisions."""
    recipe = ["--config-file", "configs/pretrain/knn_moco.yaml"]
    precisions = {
        "float32": ["SOLVER.AMP.ENABLED", "False", "MODEL.CHANNELS_LAST", "False"],
        "bfloat16": ["SOLVER.AMP.ENABLED", "True", "MODEL.CHANNELS_LAST", "True"],
    }

    def figure(found: list[str], name: str) -> float:
        return float(dict(line.split(": ") for line in found)[name])

    faster = {"expected": "ratio above 1", "shown": FIGURES, "holds": lambda found: figure(found, "ratio") > 1}
    less = {"expected": "memory_ratio below 1", "shown": FIGURES}
    less["holds"] = lambda found: figure(found, "memory_ratio") < 1
    measured = [
        Item(f"{part} in {name}", [*BENCHMARK, part, "--steps", steps, *recipe, *values], **faster)
        for part, steps in (("step", "5"), ("end2end", "20"))
        for name, values in precisions.items()
    ]
    return [*measured, Item("head", [*BENCHMARK, "head", "--batch", "256", *recipe], **less)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=output_path, default="output/check_gpu", metavar="DIR")
    parser.add_argument("--only", default="", metavar="WORD", help="run the items whose title has it")
    args = parser.parse_args()
    expect(torch.cuda.is_available(), "torch finds no GPU here: expected one to check")
    output = args.output.resolve()
    make_folder(output, "--output")
    rows, failed = [], 0
    for item in items(output):
        if args.only not in item.title:
            continue
        seconds, result, fits = run(item, output / f"{item.title.replace(' ', '_')}.log")
        failed += fits is False
        rows.append([item.title, item.expected, VERDICTS[fits], result, f"{seconds:.0f} s"])
        print(" | ".join(rows[-1]), flush=True)
        name = torch.cuda.get_device_name()
        table = markdown_table(["item", "expected", "", "result", "time"], rows)
        (output / "page.md").write_text(f"{torch.cuda.device_count()} x {name}, torch {torch.__version__}\n\n{table}\n")
    print(f"{output / 'page.md'}: {failed} of {len(rows)} are not as expected")
    sys.exit(failed > 0)


def run(item: Item, log: Path) -> tuple[float, str, bool | None]:
    """Seconds of an item, what it says, and whether that is what is expected; None where it needs more GPUs."""
    if item.gpus > torch.cuda.device_count():
        return 0.0, f"needs {item.gpus} GPUs", None
    own = {"DETECTRON2_DATASETS": str(log.parent / "datasets"), "PYTHONPATH": os.pathsep.join(sys.path[1:])}
    start = time.perf_counter()
    with open(log, "w") as file:
        options = {"stdout": file, "stderr": subprocess.STDOUT, "env": os.environ | own, "start_new_session": True}
        process = subprocess.Popen([sys.executable, *item.words], **options)
        try:
            if item.killed:
                kill_a_child(process, log)
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            return time.perf_counter() - start, f"no end after {LIMIT} s: {log}", False
    text = log.read_text(errors="replace")
    found = re.findall(item.shown, text, re.MULTILINE)
    shown = "; ".join(" to ".join(one) if isinstance(one, tuple) else one.strip() for one in found[:8])
    fits = (code != 0) == item.killed and bool(found) and item.holds(found)
    return time.perf_counter() - start, shown.replace("|", "/") or f"exit code {code}: {log}", fits


def kill_a_child(process: subprocess.Popen, log: Path) -> None:
    """Kill the last process of a training that has taken steps."""
    end = time.perf_counter() + LIMIT
    while "iter: " not in log.read_text(errors="replace"):
        if process.poll() is not None or time.perf_counter() > end:
            return
        time.sleep(1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)


if __name__ == "__main__":
    run_command(main)
