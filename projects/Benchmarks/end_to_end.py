"""Images per second from files to updated weights: the project against a plain pipeline with the textbook's step."""

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, repeat

import torch
from torch.utils.data import DataLoader

from projects.Benchmarks.measuring import compare, measure, now, timer
from projects.Benchmarks.network_flops import flops_per_image
from projects.Benchmarks.photographs import files_or_photographs
from projects.Benchmarks.reference_input import ReferenceViews
from projects.Benchmarks.step_speed import OwnStep, require_neighbors
from projects.Benchmarks.textbook_step import TextbookStep
from revisit.data.catalog import get_records
from revisit.data.loader import ResumableLoader
from revisit.engine.memory_estimate import build_meta_model

from detectron2.config import CfgNode

WARM_UP = 2  # steps of each repeat that do not count

Feed = Callable[[], Iterator[None]]  # starts a loader; each item is a step


def measure_end_to_end(
    cfg: CfgNode, *, files: str | None = None, images: int = 1024, steps: int = 60, repeats: int
) -> dict[str, object]:
    """Ratio of images per second; with a GPU also what it was used for.

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
    peaks: dict[str, float] = {}
    with files_or_photographs(files, images) as name:
        cfg.DATASETS.TRAIN = (name,)
        records = get_records(name)
        random.seed(0)
        torch.manual_seed(0)
        runs = {"ours": _ours(cfg), "plain": _plain(cfg, [record["file_name"] for record in records])}
        seconds = measure({form: partial(_seconds, run, steps, peaks, form) for form, run in runs.items()}, repeats)
    result = compare(seconds, "ours", "plain", steps * cfg.SOLVER.IMS_PER_BATCH)
    gpu = {} if cfg.MODEL.DEVICE == "cpu" else {**peaks, **_arithmetic(cfg, result["ours_images_per_second"])}
    return {**result, **gpu}


def _ours(cfg: CfgNode) -> Feed:
    feeds = []
    step = OwnStep(cfg, (next(feeds[-1]) for _ in count()))

    def run() -> Iterator[None]:
        feeds.append(iter(ResumableLoader(cfg)))
        with contextlib.closing(feeds[-1]):
            while True:
                yield step()

    return run


def _plain(cfg: CfgNode, files: list[str]) -> Feed:
    step, gpu = TextbookStep(cfg), torch.cuda.is_available()
    workers = {"num_workers": cfg.DATALOADER.NUM_WORKERS, "pin_memory": gpu, "collate_fn": ReferenceViews(cfg).batch}
    loader = DataLoader(files, cfg.SOLVER.IMS_PER_BATCH, shuffle=True, drop_last=True, **workers)

    def run() -> Iterator[None]:
        for batch in chain.from_iterable(repeat(loader)):
            yield step(batch)

    return run


def _seconds(run: Feed, steps: int, peaks: dict[str, float], form: str) -> float:
    """Seconds of some steps; notes the GPU's peak memory in GB, that of the other form's weights included."""
    feed = run()
    for _ in range(WARM_UP):
        next(feed)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    start = now()
    for _ in range(steps):
        next(feed)
    seconds = now() - start
    feed.close()
    if torch.cuda.is_available():
        peaks[f"{form}_peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return seconds


def _arithmetic(cfg: CfgNode, images_per_second: float) -> dict[str, float]:
    """The networks' rate of operations, as a share of what a large product of bfloat16 matrices reaches."""
    rate = images_per_second * flops_per_image(cfg, build_meta_model(cfg))
    size, products = 8192, 50
    matrix = torch.randn(size, size, device=cfg.MODEL.DEVICE, dtype=torch.bfloat16)
    matrix @ matrix
    seconds = timer(lambda: [matrix @ matrix for _ in range(products)])()
    best = products * 2 * size**3 / seconds
    return {"network_tflops": rate / 1e12, "matmul_tflops": best / 1e12, "share_of_matmul": rate / best}
