"""What a dry run adds to the recipe: the cost of a step and of the run, and a length in time."""

import time

from torch import nn

from projects.Planning.step_cost import step_cost
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.loading.loader import ViewDataset
from revisit.data.loading.workers import one_thread
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import sample
from revisit.data.sources.rows import joined
from revisit.data.views.mapper import training_mapper
from revisit.engine.dry_run import DRY_RUN_LINE_REGISTRY, DRY_RUN_REGISTRY
from revisit.engine.same_experiment import plain_config
from revisit.errors import UserError
from revisit.keys import Facts
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode

GIB = 2**30
# What GPU-hours, and the images that a GPU takes, are stated for: a GPU's peak in dense bfloat16, and the share of it
# that is assumed. It is low because batch norm and small maps wait for memory, not for arithmetic.
GPU = "A100"
PEAK_FLOPS = 312e12
UTILISATION = 0.10
ASSUMED = f"{UTILISATION:.0%} of the {PEAK_FLOPS / 1e12:.0f} TFLOP/s of an {GPU}; no wait for data"
# Sections and keys that change no operation of a step, or hardly any.
_OF_NO_COST = ("SEED", "OUTPUT_DIR", "DATASETS", "TEST", "KNN_EVAL", "SOLVER", "NEIGHBORS.NUM_NEIGHBORS")
_operations_of: dict[str, int] = {}  # operations of the steps that gpu_hours has counted


def gpu_hours(cfg: CfgNode) -> float | None:
    """What a pretraining takes on one GPU as ASSUMED; None of another training, and of a length that is not decided.

    A step's operations are counted once for all configs that have the same.
    """
    if not method_of(cfg) or cfg.SOLVER.MAX_ITER <= 0:
        return None
    facts = {key: value for key, value in plain_config(cfg).items() if not key.startswith(_OF_NO_COST)}
    step = f"{cfg.SOLVER.IMS_PER_BATCH} {facts}"
    if step not in _operations_of:
        cost = step_cost(cfg, 1)
        _operations_of[step] = cost.forward_flops + cost.backward_flops
    return hours_of(_operations_of[step] * cfg.SOLVER.MAX_ITER)


def hours_of(operations: float) -> float:
    """As ASSUMED."""
    return operations / (UTILISATION * PEAK_FLOPS) / 3600


@DRY_RUN_REGISTRY.register()
def cost(cfg: CfgNode, facts: Facts, model: nn.Module) -> dict:
    """Shapes, memory and operations of a step of a pretraining, and what the run takes on GPUs."""
    return _cost(cfg, facts.processes) if method_of(cfg) else {}


@DRY_RUN_REGISTRY.register()
def minutes(cfg: CfgNode, facts: Facts, model: nn.Module) -> dict:
    """A length in time, which is measured when the run begins."""
    return {"minutes": cfg.SOLVER.MINUTES} if cfg.SOLVER.MINUTES else {}


@DRY_RUN_LINE_REGISTRY.register()
def memory_in_words(cfg: CfgNode, recipe: dict) -> tuple[str, str] | None:
    memory = recipe.get("memory_gib_per_process")
    return ("memory", f"{memory['total']:.3g} GiB a process") if memory else None


@DRY_RUN_LINE_REGISTRY.register()
def time_in_words(cfg: CfgNode, recipe: dict) -> tuple[str, str] | None:
    if hours := recipe.get("gpu_hours"):
        return "time", f"{hours['total']:.3g} GPU-hours at {hours['assumed']}"
    return ("time", f"{recipe['minutes']:g} minutes, by SOLVER.MINUTES") if "minutes" in recipe else None


@DRY_RUN_LINE_REGISTRY.register()
def loading_in_words(cfg: CfgNode, recipe: dict) -> tuple[str, str] | None:
    loading = recipe.get("loading")
    return ("loading", f"{loading['cores_per_gpu']:g} cores load what such a GPU takes") if loading else None


def _cost(cfg: CfgNode, num_processes: int) -> dict:
    """Of the run only where its length is decided."""
    cost = step_cost(cfg, num_processes)
    gib = {kind: round(size / GIB, 4) for kind, size in cost.memory.items()}
    step = num_processes * (cost.forward_flops + cost.backward_flops)
    entries = {
        "shapes": cost.shapes,
        "memory_gib_per_process": {**gib, "total": round(sum(cost.memory.values()) / GIB, 4)},
        "tflop_per_step": {
            "forward": num_processes * cost.forward_flops / 1e12,
            "backward": num_processes * cost.backward_flops / 1e12,
            "total": step / 1e12,
        },
        **_feeding(cfg, UTILISATION * PEAK_FLOPS * cfg.SOLVER.IMS_PER_BATCH / step),
    }
    if cfg.SOLVER.MAX_ITER:
        operations = step * cfg.SOLVER.MAX_ITER
        entries["tflop_of_run"] = operations / 1e12
        entries["gpu_hours"] = {"total": float(f"{hours_of(operations):.4g}"), "assumed": ASSUMED}
    return entries


def _feeding(cfg: CfgNode, gpu_rate: float) -> dict:
    """How many cores load what one GPU takes, ``gpu_rate`` images a second; nothing where there are no images."""
    try:
        rate, count = core_rate(cfg)
    except (UserError, UnreadableImageError):  # the section of the data reports it
        return {}
    return {
        "loading": {
            "cores_per_gpu": round(gpu_rate / rate, 1),
            "images_per_second": {"of_a_core": round(rate, 1), "of_a_gpu": round(gpu_rate, 1)},
            "measured": f"a core's rate: this machine's, on {count} of the run's images, without waiting for the disk",
            "assumed": f"a GPU's rate: {ASSUMED}",
        }
    }


def core_rate(cfg: CfgNode) -> tuple[float, int]:
    """Images that a worker makes views of in a second of its core, and of how many images of DATASETS.TRAIN that is.

    Up to 64 of them, spread evenly, for about a second. Waiting for the disk does not count.
    """
    records = sample(joined([get_records(name) for name in cfg.DATASETS.TRAIN]), 64)
    dataset = ViewDataset(records, training_mapper(cfg), pixel_format(cfg))
    with one_thread():
        dataset.__getitems__([(0, 0)])  # the first one takes longer
        start = time.thread_time()
        for index in range(len(records)):
            dataset.__getitems__([(0, index)])
            if (spent := time.thread_time() - start) > 1:
                break
    return (index + 1) / spent, index + 1
