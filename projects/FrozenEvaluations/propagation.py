#!/usr/bin/env python
"""Follow the objects of DAVIS-2017 through its videos with frozen features.

    python projects/FrozenEvaluations/propagation.py \\
        --config-file projects/FrozenEvaluations/configs/propagation/davis2017_R50.yaml \\
        --weights backbone.pth --output output/davis

The masks of the first frames are given; every later frame takes its labels from the most similar places of the
earlier ones. DIR/masks/NAME/*.png are the masks, DIR/overlays/NAME.gif shows them, and global_results-SPLIT.csv and
per-sequence_results-SPLIT.csv hold J and F in the form of DAVIS's own tool.
"""

if __name__ == "__main__":  # before the imports below, which take seconds
    from revisit.command.evaluation_options import run_project

    run_project("FrozenEvaluations.propagation", __doc__)

import logging
import math
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from projects.FrozenEvaluations import davis
from projects.Pictures.label_maps import enlarge_labels, palette_image, shrink_labels
from revisit.command.evaluation_config import write_results
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.reader import require_record
from revisit.data.sources.catalog import datasets_root
from revisit.data.sources.labels import VOID, check_size
from revisit.files import written_whole
from revisit.keys import COUNT, POSITIVE, declare, integer, one_of
from revisit.network.network import Network
from revisit.progress import progress

from detectron2.config import CfgNode

TILE = 16  # cells on a side of the part of a frame that is labelled at once, which bounds the memory

logger = logging.getLogger("projects.FrozenEvaluations")

declare("LABEL_PROPAGATION.DATA", "DAVIS", "A tree in DAVIS's layout, seen from $DETECTRON2_DATASETS.")
declare("LABEL_PROPAGATION.RESOLUTION", "480p", "The folder below JPEGImages and Annotations.")
declare("LABEL_PROPAGATION.SPLIT", "val", "ImageSets/2017/SPLIT.txt; names the result files too.")
declare("LABEL_PROPAGATION.SEQUENCES", (), "These alone, and no split file is read.")
declare(
    "LABEL_PROPAGATION.METHOD",
    "propagate",
    "copy: the first mask for every frame, what is to be beaten.",
    one_of("propagate", "copy"),
)
declare(
    "LABEL_PROPAGATION.FIRST_LABELS",
    "area",
    "Labels of a first frame's cell. area: each object's share of its pixels; bilinear: of the 4 at its centre.",
    one_of("area", "bilinear"),
)
declare(
    "LABEL_PROPAGATION.NUM_CONTEXT", 20, "Previous frames that a frame looks at, in addition to the first.", integer()
)
declare("LABEL_PROPAGATION.RADIUS", 12.0, "How far a cell of these may be, exclusive, in cells.", POSITIVE)
declare("LABEL_PROPAGATION.TOP_K", 10, "Cells that vote, of all these frames together.", COUNT)
declare("LABEL_PROPAGATION.TEMPERATURE", 0.05, "Votes weigh exp(cosine / temperature).", POSITIVE)
declare("LABEL_PROPAGATION.FRAMES_PER_SECOND", 10, "Of the overlay pictures.", COUNT)


def main(cfg: CfgNode) -> None:
    options = cfg.LABEL_PROPAGATION
    root = datasets_root() / options.DATA
    sequences = davis.find_sequences(root, options.RESOLUTION, options.SPLIT, tuple(options.SEQUENCES))
    backbone = Network.of_config(cfg)
    scores = []
    seconds = {}
    for sequence in sequences:
        started = time.perf_counter()
        first_frame = require_record({"file_name": sequence.frames[0]}, pixel_format(cfg))
        truth = davis.read_masks(sequence, first_frame.shape[:2])
        masks = follow(backbone, cfg, sequence, truth[0])
        scores += davis.score_sequence(sequence.name, masks, truth)
        taken = round(time.perf_counter() - started, 1)
        seconds[sequence.name] = taken
        logger.info(f"{sequence.name}: {len(masks)} frames in {taken} s")
    davis.write_csvs(Path(cfg.OUTPUT_DIR), scores, options.SPLIT)
    totals = {name: round(100 * value, 2) for name, value in davis.summarize(scores).items()}
    results = totals | {"seconds": seconds, "peak_memory_gb": round(peak_memory(), 2)}
    write_results(cfg, protocol(cfg, backbone.last), results)
    means = [f"{name} {totals[f'{name}-Mean']:.1f}" for name in ("J&F", "J", "F")]
    print(f"{', '.join(means)} over {len(scores)} objects")


def peak_memory() -> float:
    """The most memory that this process has had, GB."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_maxrss * unit / 1e9


def protocol(cfg: CfgNode, map_name: str) -> str:
    """What the numbers mean, in words."""
    options = cfg.LABEL_PROPAGATION
    if options.METHOD == "propagate":
        how = f"{map_name}, first frame and previous {options.NUM_CONTEXT} within {options.RADIUS:g} cells, top "
        how += f"{options.TOP_K}, temperature {options.TEMPERATURE:g}, first labels by {options.FIRST_LABELS}"
    else:
        how = "copies of the first mask"
    return f"video segmentation: DAVIS-2017 semi-supervised on {options.DATA}, {how}; percent, means over objects"


def follow(backbone: Network, cfg: CfgNode, sequence: davis.Sequence, first_mask: np.ndarray) -> np.ndarray:
    """(T, H, W) uint8 ids of a video's objects, of which ``first_mask`` (H, W) is given; writes masks and pictures."""
    options = cfg.LABEL_PROPAGATION
    output = Path(cfg.OUTPUT_DIR)
    first_mask = np.where(first_mask == VOID, np.uint8(0), first_mask)
    masks_folder = output / "masks" / sequence.name
    overlays_folder = output / "overlays"
    for folder in (masks_folder, overlays_folder):
        folder.mkdir(parents=True, exist_ok=True)
    masks = []
    pictures = []
    propagation = None
    pixels = pixel_format(cfg)
    for path in progress(sequence.name, "frame", sequence.frames):
        frame = require_record({"file_name": path}, pixels)
        check_size(sequence.masks[0], first_mask, path, frame.shape[:2])
        mask = first_mask
        if options.METHOD == "propagate":
            if propagation is None:
                propagation = MaskPropagation(backbone, options, frame, first_mask)
            else:
                mask = propagation.step(frame)
        write_mask(masks_folder / f"{path.stem}.png", mask)
        masks.append(mask)
        pictures.append(davis.paint_objects(pixels.picture(frame), mask))
    davis.save_animation(overlays_folder / f"{sequence.name}.gif", pictures, options.FRAMES_PER_SECOND)
    return np.stack(masks)


def write_mask(path: Path, ids: np.ndarray) -> None:
    """Write (H, W) uint8 ids as a PNG with DAVIS's palette, whole or not at all."""
    with written_whole(path) as temporary:
        palette_image(ids).save(temporary, format="PNG")


class MaskPropagation:
    """Follows the objects of a mask from frame to frame of a video, by a network's maps and ``LabelPropagation``.

    Args:
        options: LABEL_PROPAGATION.
        frame: (H, W, 3) uint8 that the mask is given of.
        mask: (H, W) uint8 ids of objects, with or without gaps; 0 where there is none.
    """

    labels: Tensor  # (L, h, w) float32 of the last frame that ``step`` was given

    def __init__(self, network: Network, options: CfgNode, frame: np.ndarray, mask: np.ndarray):
        self._network = network
        self._size = mask.shape
        self._ids = np.union1d(0, mask).astype(np.uint8)
        features = self._features_of(frame)
        numbers = torch.from_numpy(np.searchsorted(self._ids, mask)).to(features.device)
        size = tuple(features.shape[1:])
        labels = shrink_labels(numbers, len(self._ids), size, sampled=options.FIRST_LABELS == "bilinear")
        self._propagation = LabelPropagation(features, labels, options)

    def step(self, frame: np.ndarray) -> np.ndarray:
        """(H, W) uint8 ids in the next frame, of the same size as the first."""
        self.labels = self._propagation.step(self._features_of(frame))
        numbers = enlarge_labels(self.labels, self._size)
        return self._ids[numbers.cpu().numpy()]

    def remember(self, number: int, frame: np.ndarray, labels: Tensor) -> None:
        """Take up what ``step`` has made of an earlier frame in another process: ``labels`` of the frame ``number``
        steps after the first. After the last NUM_CONTEXT, in order, ``step`` works as if it had made all of them."""
        features = self._features_of(frame)
        self._propagation.remember(number, features, labels.to(features.device))

    def _features_of(self, frame: np.ndarray) -> Tensor:
        return F.normalize(self._network.map_of(frame), dim=0)


class LabelPropagation:
    """Follows soft labels from the first frame on (projects/FrozenEvaluations/propagation.md).

    A frame's cells look at the first frame, wherever, and at the previous NUM_CONTEXT ones within RADIUS; as long as
    there are fewer, the first one stands in for them, and its copies compete. The TOP_K most similar cells of all vote
    with their soft labels.

    Args:
        features: (C, h, w) of the first frame; unit vectors, here and in ``step``.
        labels: (L, h, w) float32, what is where in it; they sum to 1 over L.
        options: LABEL_PROPAGATION.
    """

    def __init__(self, features: Tensor, labels: Tensor, options: CfgNode):
        self._options = options
        # Cells in rows, so that a window of cells is a matrix.
        self._first = features.permute(1, 2, 0).contiguous()
        self._first_labels = labels.permute(1, 2, 0).contiguous()
        copies = (options.NUM_CONTEXT, 1, 1, 1)
        self._context = self._first.repeat(copies)  # (N, h, w, C), a ring: its order means nothing
        self._context_labels = self._first_labels.repeat(copies)
        self._steps = 0

    def step(self, features: Tensor) -> Tensor:
        """The next frame's labels, (L, h, w) float32, from its (C, h, w) features."""
        cells = features.permute(1, 2, 0).contiguous()
        labels = torch.empty_like(self._first_labels)
        height, width = labels.shape[:2]
        for rows in _parts(height):
            for columns in _parts(width):
                labels[rows, columns] = self._vote(cells, rows, columns)
        self._keep(self._steps + 1, cells, labels)
        return labels.permute(2, 0, 1)

    def remember(self, number: int, features: Tensor, labels: Tensor) -> None:
        """Take up the (C, h, w) features and (L, h, w) labels of an earlier step, of which the first is number 1."""
        self._keep(number, features.permute(1, 2, 0), labels.permute(1, 2, 0))

    def _keep(self, number: int, cells: Tensor, labels: Tensor) -> None:
        """In the place of the oldest."""
        self._steps = number
        if len(self._context):
            place = (number - 1) % len(self._context)
            self._context[place] = cells
            self._context_labels[place] = labels

    def _vote(self, cells: Tensor, rows: slice, columns: slice) -> Tensor:
        """(th, tw, L): the labels of a tile."""
        options, (height, width, channels) = self._options, cells.shape
        queries = cells[rows, columns].reshape(-1, channels)
        near_rows = self._within_reach(rows, height)
        near_columns = self._within_reach(columns, width)
        near = self._context[:, near_rows, near_columns].reshape(-1, channels)
        to_near = queries @ near.T
        vertical = _squared_gaps(rows, near_rows)
        horizontal = _squared_gaps(columns, near_columns)
        distance = vertical[:, None, :, None] + horizontal[:, None]  # (th, tw, near rows, near columns), squared
        is_far = distance >= options.RADIUS**2
        far = is_far.view(len(queries), -1).to(to_near.device)
        to_near.masked_fill_(far.repeat(1, len(self._context)), -math.inf)
        to_first = queries @ self._first.flatten(0, 1).T
        similarity = torch.cat([to_first, to_near], dim=1)
        num_voters = min(options.TOP_K, similarity.shape[1])
        similarity, voters = similarity.topk(num_voters, dim=1)
        weights = F.softmax(similarity / options.TEMPERATURE, dim=1)
        num_labels = self._first_labels.shape[2]
        near_labels = self._context_labels[:, near_rows, near_columns].reshape(-1, num_labels)
        candidates = torch.cat([self._first_labels.flatten(0, 1), near_labels])
        labels = torch.einsum("qk,qkl->ql", weights, candidates[voters])
        num_rows = rows.stop - rows.start
        num_columns = columns.stop - columns.start
        return labels.view(num_rows, num_columns, num_labels)

    def _within_reach(self, part: slice, size: int) -> slice:
        """The rows, or columns, of a map that a part of them may look at."""
        reach = math.ceil(self._options.RADIUS) - 1  # how many rows or columns apart two cells may be
        first = max(part.start - reach, 0)
        end = min(part.stop + reach, size)
        return slice(first, end)


def _parts(size: int) -> list[slice]:
    """The rows, or columns, of a map in parts of TILE."""
    return [slice(start, min(start + TILE, size)) for start in range(0, size, TILE)]


def _squared_gaps(cells: slice, others: slice) -> Tensor:
    """(n, m) int64: the squares of how far each row or column is from each other one."""
    places = torch.arange(cells.start, cells.stop)
    other_places = torch.arange(others.start, others.stop)
    gaps = places[:, None] - other_places
    return gaps.square()
