"""How long MoCo's queue is, and what follows from its length."""

import logging
import math
from functools import partial

from revisit.errors import expect
from revisit.keys import SWITCH, declare, integer, network_of

from detectron2.config import CfgNode

PAPERS_QUEUE = 65536  # rows

logger = logging.getLogger(__name__)


def default_queue_size(cfg: CfgNode, images: int) -> int:
    """Rows of the queue that half the training images fill, in whole batches, and at most the paper's number."""
    batch = cfg.SOLVER.IMS_PER_BATCH
    keys = network_of(cfg).keys_of_image(cfg)
    half = images // 2 // batch * batch
    return min(PAPERS_QUEUE // keys, max(batch, half)) * keys


moco = partial(declare, read_by="MoCo")
moco(
    "MOCO.QUEUE_SIZE",
    PAPERS_QUEUE,
    "K, rows of the queue. 0: those of half the training images, in whole batches, at most the paper's.",
    integer(0, 2**24, "rows"),
    paper=PAPERS_QUEUE,
    by_images=default_queue_size,
)
moco(
    "MOCO.FILL_QUEUE_FIRST",
    False,
    "Keep the learning rate at 0 until keys have replaced the queue's random rows, which would spoil good weights.",
    SWITCH,
)


def check_queue_size(cfg: CfgNode) -> None:
    """Raise UserError for a queue that does not hold a batch."""
    keys = cfg.SOLVER.IMS_PER_BATCH * network_of(cfg).keys_of_image(cfg)
    size = cfg.MOCO.QUEUE_SIZE
    expect(keys <= size, f"MOCO.QUEUE_SIZE {size} is smaller than the global batch of {keys} keys")


def iterations_to_fill(cfg: CfgNode) -> int:
    """Iterations with a learning rate of 0: those that fill the queue, with MOCO.FILL_QUEUE_FIRST."""
    if not cfg.MOCO.FILL_QUEUE_FIRST:
        return 0
    return math.ceil(cfg.MOCO.QUEUE_SIZE / (cfg.SOLVER.IMS_PER_BATCH * network_of(cfg).keys_of_image(cfg)))


def warn_of_queue_size(cfg: CfgNode, num_images: int) -> None:
    """Warn of a queue that holds a whole epoch or more; the paper's holds 0.55.

    Raises:
        UserError: MOCO.FILL_QUEUE_FIRST, and the run does not fill the queue.
    """
    wait = iterations_to_fill(cfg)
    length = cfg.SOLVER.MAX_ITER
    expect(
        wait < length,
        f"MOCO.FILL_QUEUE_FIRST True keeps the rate at 0 for {wait} iterations, and the run has {length}: expected "
        "a longer run, or a smaller MOCO.QUEUE_SIZE",
    )
    size = cfg.MOCO.QUEUE_SIZE
    keys = num_images * network_of(cfg).keys_of_image(cfg)
    if size >= keys:
        logger.warning(
            f"MOCO.QUEUE_SIZE {size} is {size / keys:.1f} times the {num_images} images, so an image's own older "
            f"keys are among its negatives: take about {default_queue_size(cfg, num_images)}"
        )
