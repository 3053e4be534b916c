"""What an evaluation of a finetuning takes, tried on some of its images."""

from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader

from revisit.engine.finetune_trainer import FinetuneTrainer

from detectron2.config import CfgNode
from detectron2.engine import hooks
from detectron2.evaluation import inference_context

TRIED = 5  # batches of a test set, and of those over which batch norm gets its statistics


def seconds_of_evaluation(cfg: CfgNode, model: nn.Module) -> float:
    """Of this process's share of DATASETS.TEST, and of TEST.PRECISE_BN before it, s. Computing the scores is left out.

    Args:
        model: in training mode, in which it is left.
    """
    loaders = [FinetuneTrainer.build_test_loader(cfg, name) for name in cfg.DATASETS.TEST]
    return _of_precise_bn(cfg, model) + sum(_of_images(loader, model) for loader in loaders)


def _of_precise_bn(cfg: CfgNode, model: nn.Module) -> float:
    taken = FinetuneTrainer.statistics_of(cfg, model)
    if not taken:
        return 0.0
    count = min(TRIED, cfg.TEST.PRECISE_BN.NUM_ITER)
    statistics = hooks.PreciseBN(1, *taken, count)
    start = perf_counter()
    statistics.update_stats()
    return since(start) * cfg.TEST.PRECISE_BN.NUM_ITER / count


def _of_images(loader: DataLoader, model: nn.Module) -> float:
    """Of all batches, by some; the first, which waits for the loader's workers to start, does not count among more."""
    batches = iter(loader)
    seconds = []
    with inference_context(model), torch.no_grad():
        for _ in range(min(TRIED, len(loader))):
            start = perf_counter()
            model(next(batches))
            seconds.append(since(start))
    timed = seconds[1:] or seconds
    return len(loader) * sum(timed) / max(1, len(timed))


def since(start: float) -> float:
    """Seconds until the device is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return perf_counter() - start
