"""What a finetuned detector takes and scores in each runtime: every image by all of them in turn, so that what else the
machine does slows them alike."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tabulate import tabulate

from projects.Predict.runtimes import Runtime
from revisit.data.sources.records import Records
from revisit.engine.finetune_trainer import FinetuneTrainer, build_mapper
from revisit.engine.precision import CPU_FLAGS
from revisit.progress import progress

from detectron2.config import CfgNode
from detectron2.modeling.postprocessing import detector_postprocess
from detectron2.structures import Boxes, Instances

WARM_UP = 3  # calls before the first that is timed
HEADERS = ("runtime", "precision", "MB", "ms, median", "ms, 95 %", "images/s", "CPU ms", "AP", "AP lost")


class Row(NamedTuple):
    """A runtime's figures. Times are of an image of the network's size, in memory, to its boxes."""

    runtime: str
    precision: str
    megabytes: float  # of its file; 0 of the network itself
    median_ms: float
    p95_ms: float
    images_per_second: float
    cpu_ms: float  # median of what all threads computed, which other programs hardly change
    ap: float  # of masks where the network has a mask head, else of boxes
    scores: dict[str, float]  # AP of boxes, and of masks


def measure(cfg: CfgNode, dataset: str, records: Records, runtimes: Sequence[Runtime], folder: Path) -> list[Row]:
    """Run every image of a data set through each runtime; their predictions are below the folder."""
    mapper = build_mapper(cfg, is_train=False)
    trials = [_Trial(cfg, dataset, runtime, folder) for runtime in runtimes]
    for record in progress("measuring", "image", records):
        sample = mapper(record)
        for trial in trials:
            trial.run(sample)
    return [trial.row() for trial in trials]


class _Trial:
    """A runtime's times and predictions."""

    def __init__(self, cfg: CfgNode, dataset: str, runtime: Runtime, folder: Path):
        cfg = cfg.clone()
        cfg.OUTPUT_DIR = str(folder / runtime.name)
        self._runtime = runtime
        self._evaluator = FinetuneTrainer.build_evaluator(cfg, dataset)
        self._evaluator.reset()
        self._wall: list[float] = []
        self._cpu: list[float] = []

    def run(self, sample: dict[str, Any]) -> None:
        image = sample["image"].float()
        if not self._wall:
            for _ in range(WARM_UP):
                self._runtime.run(image)
        wall, cpu = time.perf_counter(), time.process_time()
        outputs = self._runtime.run(image)
        self._cpu.append(time.process_time() - cpu)
        self._wall.append(time.perf_counter() - wall)
        boxes, scores, classes, *masks = outputs
        objects = Instances(tuple(image.shape[1:]), pred_boxes=Boxes(boxes), scores=scores, pred_classes=classes)
        if masks:
            objects.pred_masks = masks[0]
        predicted = detector_postprocess(objects, sample["height"], sample["width"])
        self._evaluator.process([sample], [{"instances": predicted}])

    def row(self) -> Row:
        tasks = self._evaluator.evaluate()
        scores = {task: float(scores["AP"]) for task, scores in tasks.items()}
        wall, path = 1000 * np.array(self._wall), self._runtime.path
        return Row(
            runtime=self._runtime.name,
            precision=self._runtime.precision,
            megabytes=path.stat().st_size / 1e6 if path else 0.0,
            median_ms=float(np.median(wall)),
            p95_ms=float(np.percentile(wall, 95)),
            images_per_second=float(1000 / wall.mean()),
            cpu_ms=float(1000 * np.median(self._cpu)),
            ap=scores.get("segm", scores["bbox"]),
            scores=scores,
        )


def about(dataset: str, count: int, threads: int) -> dict[str, Any]:
    """What the figures hold for."""
    return {"device": cpu_name(), "threads": threads, "torch": torch.__version__, "data_set": dataset, "images": count}


def cpu_name() -> str:
    """As Linux calls it; ``CPU`` on other systems."""
    lines = CPU_FLAGS.read_text().splitlines() if CPU_FLAGS.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "CPU"


def table(rows: Sequence[Row], style: str) -> str:
    """A table in a style of tabulate; AP that is lost counts from the first row, the network's own."""
    cells = [
        (
            row.runtime,
            row.precision,
            f"{row.megabytes:.1f}",
            f"{row.median_ms:.1f}",
            f"{row.p95_ms:.1f}",
            f"{row.images_per_second:.1f}",
            f"{row.cpu_ms:.1f}",
            f"{row.ap:.2f}",
            f"{rows[0].ap - row.ap:+.2f}",
        )
        for row in rows
    ]
    return tabulate(cells, HEADERS, tablefmt=style, disable_numparse=True)
