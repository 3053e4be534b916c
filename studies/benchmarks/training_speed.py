"""Speed and memory of training, the project against the textbook: steps, losses with their backward, all from files."""

import contextlib
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.data import DataLoader

from projects.Planning.step_cost import random_views, step_cost
from revisit.data.loading.loader import ResumableLoader, finish
from revisit.data.loading.workers import START_METHOD
from revisit.data.sources.catalog import get_records
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.solver import build_optimizer
from revisit.engine.train_step import TrainStep
from revisit.errors import expect
from revisit.modeling import momentum
from revisit.modeling.losses.contrastive import contrastive_losses
from revisit.modeling.meta_arch.pretraining import metrics_period
from studies.benchmarks.input_pipeline import files_or_photographs
from studies.benchmarks.measuring import compare, now, peak_memory, timer
from studies.benchmarks.references import ReferenceViews, TextbookStep, textbook_losses

from detectron2.config import CfgNode
from detectron2.utils.events import EventStorage

WARM_UP = 2  # steps from files of each repeat that do not count


def measure_step(cfg: CfgNode, *, steps: int = 10, repeats: int) -> dict[str, object]:
    """Ratio of images per second, and where the project's time goes, in percent, for a recipe of KNNMoCo."""
    require_neighbors(cfg)
    batch = random_views(cfg, cfg.SOLVER.IMS_PER_BATCH)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD))
    normalised = {name: ((views - mean) / std).contiguous() for name, views in batch.items()}
    ours, textbook = OwnStep(cfg), TextbookStep(cfg)
    timers = {
        "ours": timer(lambda: [ours(batch) for _ in range(steps)]),
        "textbook": timer(lambda: [textbook(normalised) for _ in range(steps)]),
    }
    result = compare(timers, repeats, steps * cfg.SOLVER.IMS_PER_BATCH)
    return result | {f"percent: {part}": share for part, share in ours.profile(batch, steps).items()}


def measure_end_to_end(
    cfg: CfgNode, *, files: str | None = None, images: int = 1024, steps: int = 60, repeats: int
) -> dict[str, object]:
    """Ratio of images per second to that of a plain pipeline, for a recipe of KNNMoCo; with a GPU also what it was used
    for. Of the data set ``files``, or without one of as many photographs as ``images``.

    Every repeat has new loaders, so that none works ahead while the other is measured. ``steps`` of one are many more
    than the DATALOADER.NUM_WORKERS, each of which works two batches ahead.
    """
    require_neighbors(cfg)
    cfg = cfg.clone()
    cfg.defrost()
    peaks: dict[str, float] = {}
    with files_or_photographs(files, images) as name:
        cfg.DATASETS.TRAIN = (name,)
        random.seed(0)
        torch.manual_seed(0)
        loaders = {"ours": (OwnStep(cfg), ResumableLoader(cfg)), "plain": (TextbookStep(cfg), plain_loader(cfg))}
        timers = {form: partial(_seconds, *pair, steps, peaks, form) for form, pair in loaders.items()}
        result = compare(timers, repeats, steps * cfg.SOLVER.IMS_PER_BATCH)
    gpu = {} if cfg.MODEL.DEVICE == "cpu" else {**peaks, **_arithmetic(cfg, result["ours_images_per_second"])}
    return {**result, **gpu}


def require_neighbors(cfg: CfgNode) -> None:
    """Raises UserError for a config that is not of KNNMoCo, which the textbook's step is, or has an open precision."""
    method, precision = cfg.MODEL.META_ARCHITECTURE, cfg.SOLVER.PRECISION
    given = f"MODEL.META_ARCHITECTURE {method}, SOLVER.PRECISION {precision!r}"
    expect((method, precision) == ("KNNMoCo", ""), f"{given}: expected KNNMoCo, and SOLVER.AMP.ENABLED True or False")


def plain_loader(cfg: CfgNode) -> DataLoader:
    """Batches of the reference's views of DATASETS.TRAIN."""
    files = [record["file_name"] for name in cfg.DATASETS.TRAIN for record in get_records(name)]
    batch = cfg.SOLVER.IMS_PER_BATCH
    expect(len(files) >= batch, f"{len(files)} images are no batch of {batch}: expected a lower SOLVER.IMS_PER_BATCH")
    workers = cfg.DATALOADER.NUM_WORKERS
    how = {"num_workers": workers, "multiprocessing_context": START_METHOD if workers else None}
    how |= {"pin_memory": torch.cuda.is_available(), "collate_fn": ReferenceViews(cfg).batch}
    return DataLoader(files, batch, shuffle=True, drop_last=True, **how)


class OwnStep:
    """Call it with a batch to run a step on it, hooks for momentum encoder and queue included."""

    def __init__(self, cfg: CfgNode):
        self.model = PretrainTrainer.build_model(cfg).train()
        self.model.neighbor_weight = cfg.NEIGHBORS.WEIGHT
        precision = getattr(torch, cfg.SOLVER.AMP.DTYPE) if cfg.SOLVER.AMP.ENABLED else None
        self._batches: deque[dict] = deque()
        batches = iter(self._batches.popleft, None)
        prepare = partial(finish, device=cfg.MODEL.DEVICE)
        options = {"prepare": prepare, "precision": precision, "metrics_period": metrics_period(cfg)}
        self._step = TrainStep(self.model, batches, build_optimizer(cfg, self.model), **options)
        self._storage = EventStorage(0)

    def __call__(self, batch: dict) -> None:
        self._batches.append(batch)
        with self._storage:
            self._step.run_step()
        momentum.update_momentum_encoder(self.model)
        self.model.enqueue_pending_keys()
        self._storage.step()

    @property
    def last_loss(self) -> float:
        """The total loss of the last step whose metrics were read."""
        return self._storage.history("total_loss").latest()

    def profile(self, batch: dict, steps: int) -> dict[str, float]:
        """Percent of the time of ``steps`` steps by part. Waits for the GPU after each part, as no training does."""
        seconds: dict[str, float] = defaultdict(float)
        parts = {
            "anchors, momentum encoder": (self.model, "start_keys"),
            "positives, forward": (self.model, "encode_positives"),
            "monitors": (self.model, "log_monitors"),
            "losses, forward": (self.model, "losses"),
            "optimizer": (self._step.grad_scaler, "step"),
            "momentum update": (momentum, "update_momentum_encoder"),
            "queue": (self.model, "enqueue_pending_keys"),
        }
        with contextlib.ExitStack() as stack:
            for name, (owner, method) in parts.items():
                stack.enter_context(mock.patch.object(owner, method, _clocked(seconds, name)(getattr(owner, method))))
            whole = timer(lambda: [self(batch) for _ in range(steps)])()
        seconds["backward and the rest"] = whole - sum(seconds.values())
        return {name: 100 * value / whole for name, value in seconds.items()}


@contextlib.contextmanager
def _clocked(seconds: dict[str, float], part: str) -> Iterator[None]:
    start = now()
    yield
    seconds[part] += now() - start


def _seconds(step: Callable, loader: Iterable[dict], steps: int, peaks: dict[str, float], form: str) -> float:
    """Seconds of some steps; notes the GPU's peak memory in GB, that of the other form's weights included."""
    with contextlib.closing(_endless(loader)) as batches:
        for batch in islice(batches, WARM_UP):
            step(batch)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        start = now()
        for batch in islice(batches, steps):
            step(batch)
        seconds = now() - start
    if torch.cuda.is_available():
        peaks[f"{form}_peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return seconds


def _endless(loader: Iterable[dict]) -> Iterator[dict]:
    while True:
        yield from loader


def _arithmetic(cfg: CfgNode, images_per_second: float) -> dict[str, float]:
    """A step's rate of operations, as a share of what a large product of bfloat16 matrices reaches."""
    cost = step_cost(cfg, 1)
    rate = images_per_second * (cost.forward_flops + cost.backward_flops) / cfg.SOLVER.IMS_PER_BATCH
    size, products = 8192, 50
    matrix = torch.randn(size, size, device=cfg.MODEL.DEVICE, dtype=torch.bfloat16)
    matrix @ matrix
    seconds = timer(lambda: [matrix @ matrix for _ in range(products)])()
    best = products * 2 * size**3 / seconds
    return {"step_tflops": rate / 1e12, "matmul_tflops": best / 1e12, "share_of_matmul": rate / best}


FORMS = ("ours", "half_queue", "textbook")  # the second: ours, on queues in bfloat16
WEIGHT = 0.4  # lambda, of the gradient


def measure_head(cfg: CfgNode, *, batch: int = 64, feature_dim: int = 2048, repeats: int) -> dict[str, object]:
    """Ratios of speed and peak memory, and how far losses and gradients are apart, for random unit rows of a ``batch``
    of images, ``feature_dim`` wide before the head, and else as the recipe has them."""
    extra = {form: peak_memory(prepare, form, cfg, batch, feature_dim) for form in FORMS}
    calls = {form: prepare(form, cfg, batch, feature_dim) for form in FORMS}
    (loss, grad), (half, _), (exact, exact_grad) = (call() for call in calls.values())
    return {
        **compare({form: timer(call) for form, call in calls.items()}, repeats, batch),
        "memory_ratio": extra["ours"] / extra["textbook"],
        **{f"{form}_peak_mb": size / 1e6 for form, size in extra.items()},
        "loss_difference": max(abs(loss[name] - exact[name]) for name in exact),
        "gradient_difference": float((grad - exact_grad).norm() / exact_grad.norm()),
        "half_queue_loss_difference": max(abs(half[name] / exact[name] - 1) for name in exact),
    }


def prepare(form: str, cfg: CfgNode, batch: int, width_g: int) -> Callable[[], tuple[dict[str, float], Tensor]]:
    """The losses of one of FORMS and their gradient as a call, which returns both; inputs are the same for all."""
    device, moco = "cuda" if torch.cuda.is_available() else "cpu", cfg.MOCO
    positives, length, width = (batch, 1 + cfg.VIEWS.NUM_SMALL), moco.QUEUE_SIZE, moco.EMBEDDING_DIM
    shapes = {"positives": (*positives, width), "anchors": (batch, width), "queue": (length, width)}
    shapes |= {"positives_g": (*positives, width_g), "queue_g": (length, width_g)}
    generator = torch.Generator(device).manual_seed(0)
    x = {name: torch.randn(shape, generator=generator, device=device) for name, shape in shapes.items()}
    for rows in x.values():
        normalize(rows, dim=-1, out=rows)
    if form == "half_queue":
        x["queue"], x["queue_g"] = x["queue"].bfloat16(), x["queue_g"].bfloat16()
    losses_of = textbook_losses if form == "textbook" else partial(contrastive_losses, max_scores=moco.MAX_SCORES)
    losses_of = partial(losses_of, temperature=moco.TEMPERATURE)

    def call() -> tuple[dict[str, float], Tensor]:
        inputs = x | {"positives": x["positives"].detach().requires_grad_()}
        losses = losses_of(**inputs, num_neighbors=cfg.NEIGHBORS.NUM_NEIGHBORS)
        (losses["loss_inst"] + WEIGHT * losses["loss_nn"]).backward()
        return {name: loss.item() for name, loss in losses.items()}, inputs["positives"].grad

    losses_of(**{name: rows[:64] for name, rows in x.items()}, num_neighbors=1)  # libraries take what they keep
    return call
