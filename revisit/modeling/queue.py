"""The queue of keys: one ring of rows, or several whose row n is always of the same image."""

import torch
from torch import Tensor, nn

from revisit.modeling.distributed import gather_rows, in_global_order, unwrap

from detectron2.config import CfgNode
from detectron2.engine import HookBase


class AlignedQueue(nn.Module):
    """First-in-first-out rings of K unit rows that share one pointer (docs/method.md: Queues).

    ``AlignedQueue(K, keys=C, features=Cg)`` has the rings ``queue.keys`` (K, C) and ``queue.features``
    (K, Cg), buffers of ``dtype`` that start as random unit rows; row n of every ring comes from the same image.
    K needs not be a multiple of the batch.

    ``queue.labels`` (K,), int64, holds the class of each row's image where the data set has classes, else -1.
    Only the neighbour-purity monitor reads it.
    """

    def __init__(self, length: int, dtype: torch.dtype = torch.float32, **widths: int):
        super().__init__()
        self.length = length
        self.names = tuple(widths)
        for name, width in widths.items():
            self.register_buffer(name, nn.functional.normalize(torch.randn(length, width), dim=1).to(dtype))
        self.register_buffer("labels", torch.full((length,), -1))
        self.register_buffer("num_enqueued", torch.zeros((), dtype=torch.int64))

    @property
    def pointer(self) -> Tensor:
        """Where the next row goes, a scalar int64: the oldest row."""
        return self.num_enqueued % self.length

    @property
    def fill_level(self) -> float:
        """Share of the rows that hold keys rather than the random start, in [0, 1]."""
        return min(1.0, self.num_enqueued.item() / self.length)

    @torch.no_grad()
    def enqueue(self, *, labels: Tensor | None = None, **rows: Tensor) -> None:
        """Overwrite the oldest rows of every ring with n <= K new ones, given as (n, width) by ring name."""
        if set(rows) != set(self.names):
            raise ValueError(f"rows for {sorted(rows)}, but the rings are {sorted(self.names)}")
        counts = {len(new) for new in rows.values()}
        if len(counts) != 1 or max(counts) > self.length:
            raise ValueError(f"rows per ring {sorted(counts)}: expected one count, at most {self.length}")
        (n,) = counts
        if labels is None:
            labels = self.labels.new_full((n,), -1)
        index = self.next_rows(n)
        for name, new in rows.items():
            ring = getattr(self, name)
            ring.index_copy_(0, index, new.to(ring.dtype))
        self.labels.index_copy_(0, index, labels)
        self.num_enqueued += n

    @torch.no_grad()
    def after_enqueue(self, name: str, rows: Tensor) -> Tensor:
        """A copy of the ring ``name``, (K, width), as ``enqueue`` of (n, width) rows will leave it."""
        ring = getattr(self, name).clone()  # index_copy would be another operation under autocast
        return ring.index_copy_(0, self.next_rows(len(rows)), rows.to(ring.dtype))

    def next_rows(self, count: int) -> Tensor:
        """Indices of the oldest rows, (count,) int64, which ``enqueue`` overwrites next."""
        return (self.num_enqueued + torch.arange(count, device=self.num_enqueued.device)) % self.length


class KeepsKeys:
    """A method with a ``queue``: a step's keys wait in ``pending_keys`` until the step is over."""

    queue: AlignedQueue | None

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self.pending_keys: list[dict[str, Tensor]] = []  # for each part of a step rows of all processes, by ring

    def keep_keys(self, batch: dict, rows: dict[str, Tensor]) -> None:
        """Keep gathered rows, (B, width) by ring, with the classes of the batch where it has some."""
        if "label" in batch:
            labels = gather_rows(batch["label"])
            num_keys = len(next(iter(rows.values())))
            keys_of_image = num_keys // len(labels)
            rows["labels"] = labels.repeat_interleave(keys_of_image)
        self.pending_keys.append(rows)

    def enqueue_pending_keys(self) -> None:
        """Move ``pending_keys`` into the queue, in the order of the global batch."""
        parts = self.pending_keys
        self.pending_keys = []
        if parts:
            self.enqueue({name: in_global_order([part[name] for part in parts]) for name in parts[0]})

    def enqueue(self, rows: dict[str, Tensor]) -> None:
        """Put a step's rows of all processes, by ring, into the queue."""
        self.queue.enqueue(**rows)


class QueueUpdate(HookBase):
    """Enqueue the step's keys of all processes (docs/method.md: Queues), before any checkpointer, whose checkpoint of
    step i holds step i's keys."""

    def after_step(self) -> None:
        unwrap(self.trainer.model).enqueue_pending_keys()
