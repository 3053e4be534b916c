"""Images a second from files to updated weights: the project against a plain pipeline with the textbook's step."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from projects.Benchmarks.measuring import compare, now
from projects.Benchmarks.own_step import OwnStep
from projects.Benchmarks.photographs import write_photographs
from projects.Benchmarks.reference_input import ReferenceViews
from projects.Benchmarks.step_speed import require_neighbors
from projects.Benchmarks.textbook_step import TextbookStep
from revisit.data.catalog import get_records, register
from revisit.data.loader import ResumableLoader
from revisit.engine.memory_estimate import build_meta_model, flops_per_image

from detectron2.config import CfgNode

WARM_UP = 2  # steps of each repeat that do not count


class ReferenceDataset(Dataset):
    """Views of image files as torchvision's user makes them."""

    def __init__(self, cfg: CfgNode, files: list[str]):
        self._views = ReferenceViews(cfg)
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._views(self._files[index])


def measure_end_to_end(cfg: CfgNode, *, files: str | None, images: int, steps: int, repeats: int) -> dict[str, object]:
    """Ratio of images a second; with a GPU also what it was used for.

    Loaders start anew for every repeat, so that none works ahead while the other is measured.

    Args:
        cfg: of a recipe of KNNMoCo.
        files: a data set's name, or None for made-up photographs of 640 x 480.
        images: how many photographs are made up.
        steps: of one repeat, many more than the DATALOADER.NUM_WORKERS, each of which works two batches ahead.
    """
    require_neighbors(cfg)
    cfg = cfg.clone()
    cfg.defrost()
    with tempfile.TemporaryDirectory() as folder:
        if not files:
            write_photographs(Path(folder), images)
            files = f"folder:{folder}"
        cfg.DATASETS.TRAIN = (files,)
        register(files)
        random.seed(0)
        torch.manual_seed(0)
        runs = {"ours": _ours(cfg), "plain": _plain(cfg, [record["file_name"] for record in get_records(files)])}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        peaks: dict[str, float] = {}
        for turn in tqdm(range(repeats + 1), desc="repeats", leave=False):
            for name, start in runs.items():
                taken, peaks[f"{name}_peak_memory_gb"] = _measured(start(), steps)
                seconds[name] += [taken] if turn else []
    result = compare(seconds, "ours", "plain", steps * cfg.SOLVER.IMS_PER_BATCH)
    gpu = {} if cfg.MODEL.DEVICE == "cpu" else {**peaks, **_arithmetic(cfg, result["ours_images_per_second"])}
    return {**result, **gpu}


def _ours(cfg: CfgNode) -> Callable[[], Iterator[None]]:
    feed = iter(())
    step = OwnStep(cfg, chain.from_iterable(iter(lambda: feed, None)))

    def start() -> Iterator[None]:
        nonlocal feed
        feed = iter(ResumableLoader(cfg))
        try:
            for _ in repeat(None):
                yield step()
        finally:
            feed.close()

    return start


def _plain(cfg: CfgNode, files: list[str]) -> Callable[[], Iterator[None]]:
    step = TextbookStep(cfg)

    def start() -> Iterator[None]:
        loader = DataLoader(
            ReferenceDataset(cfg, files),
            cfg.SOLVER.IMS_PER_BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=cfg.DATALOADER.NUM_WORKERS,
            pin_memory=torch.cuda.is_available(),
        )
        for epoch in repeat(loader):
            for batch in epoch:
                yield step(batch)

    return start


def _measured(run: Iterator[None], steps: int) -> tuple[float, float]:
    """Seconds of some steps, and the GPU's peak memory in GB, that of the other form's weights included."""
    for _ in range(WARM_UP):
        next(run)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    start = now()
    for _ in range(steps):
        next(run)
    seconds = now() - start
    run.close()
    return seconds, torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0


def _arithmetic(cfg: CfgNode, images_per_second: float) -> dict[str, float]:
    """The networks' rate of operations, as a share of what a large product of bfloat16 matrices reaches."""
    rate = images_per_second * flops_per_image(cfg, build_meta_model(cfg))
    size, count = 8192, 50
    matrix = torch.randn(size, size, device=cfg.MODEL.DEVICE, dtype=torch.bfloat16)
    matrix @ matrix
    start = now()
    for _ in range(count):
        matrix @ matrix
    best = count * 2 * size**3 / (now() - start)
    return {
        "network_tflops": rate / 1e12,
        "matmul_tflops": best / 1e12,
        "share_of_matmul": rate / best,
    }
