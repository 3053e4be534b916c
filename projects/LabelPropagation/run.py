#!/usr/bin/env python
"""Follow the objects of DAVIS-2017 through its videos with frozen features.

    python projects/LabelPropagation/run.py --config-file projects/LabelPropagation/configs/davis2017_R50.yaml \\
        --weights backbone.pth --output output/davis

The masks of the first frames are given; every later frame takes its labels from the most similar places of the
earlier ones. DIR/masks/NAME/*.png are the masks, DIR/overlays/NAME.gif shows them, and global_results-SPLIT.csv and
per-sequence_results-SPLIT.csv hold J and F in the form of DAVIS's own tool.
"""

if __name__ == "__main__":  # before the imports below, which take seconds
    from projects.common.command_line import run_project

    run_project("LabelPropagation", __doc__)

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
from tqdm import tqdm

from projects.common.entry import write_results
from projects.common.frozen_backbone import FrozenBackbone
from projects.common.label_maps import enlarge_labels, palette_image, shrink_labels
from projects.LabelPropagation import davis
from revisit.data.images.deep_images import bit_depth
from revisit.data.images.reader import require_record
from revisit.data.sources.catalog import datasets_root
from revisit.data.sources.labels import VOID, check_size
from revisit.files import written_whole
from revisit.keys import COUNT, POSITIVE, declare, integer, one_of

from detectron2.config import CfgNode

TILE = 16  # cells on a side of the part of a frame that is labelled at once, which bounds the memory

logger = logging.getLogger("projects.LabelPropagation")

declare("LABEL_PROPAGATION.DATA", "DAVIS", "A tree in DAVIS's layout, seen from $DETECTRON2_DATASETS.")
declare("LABEL_PROPAGATION.RESOLUTION", "480p", "The folder below JPEGImages and Annotations.")
declare("LABEL_PROPAGATION.SPLIT", "val", "ImageSets/2017/SPLIT.txt; names the result files too.")
declare("LABEL_PROPAGATION.SEQUENCES", (), "These alone, and no split file is read.")
methods = one_of("propagate", "copy")
declare("LABEL_PROPAGATION.METHOD", "propagate", "copy: the first mask for every frame, what is to be beaten.", methods)
labels = "Labels of a first frame's cell. area: each object's share of its pixels; bilinear: of the 4 at its centre."
declare("LABEL_PROPAGATION.FIRST_LABELS", "area", labels, one_of("area", "bilinear"))
declare(
    "LABEL_PROPAGATION.NUM_CONTEXT", 20, "Previous frames that a frame looks at, in addition to the first.", integer()
)
declare("LABEL_PROPAGATION.RADIUS", 12.0, "How far a cell of these may be, exclusive, in cells.", POSITIVE)
declare("LABEL_PROPAGATION.TOP_K", 10, "Cells that vote, of all these frames together.", COUNT)
declare("LABEL_PROPAGATION.TEMPERATURE", 0.05, "Votes weigh exp(cosine / temperature).", POSITIVE)
declare("LABEL_PROPAGATION.FRAMES_PER_SECOND", 10, "Of the overlay pictures.", COUNT)


def main(cfg: CfgNode) -> None:
    options, output = cfg.LABEL_PROPAGATION, Path(cfg.OUTPUT_DIR)
    root = datasets_root() / options.DATA
    sequences = davis.find_sequences(root, options.RESOLUTION, options.SPLIT, tuple(options.SEQUENCES))
    backbone = FrozenBackbone(cfg)
    scores, seconds = [], {}
    for sequence in sequences:
        started = time.perf_counter()
        truth = davis.read_masks(sequence, require_record({"file_name": sequence.frames[0]}, bit_depth(cfg)).shape[:2])
        masks = follow(backbone, cfg, sequence, truth[0])
        scores += davis.score_sequence(sequence.name, masks, truth)
        seconds[sequence.name] = round(time.perf_counter() - started, 1)
        logger.info(f"{sequence.name}: {len(masks)} frames in {seconds[sequence.name]} s")
    davis.write_csvs(output, scores, options.SPLIT)
    totals = {name: round(100 * value, 2) for name, value in davis.summarize(scores).items()}
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    results = totals | {"seconds": seconds, "peak_memory_gb": round(memory, 2)}
    write_results(cfg, protocol(cfg, backbone.map_name), results)
    means = ", ".join(f"{name} {totals[f'{name}-Mean']:.1f}" for name in ("J&F", "J", "F"))
    print(f"{means} over {len(scores)} objects")


def protocol(cfg: CfgNode, map_name: str) -> str:
    """What the numbers mean, in words."""
    options = cfg.LABEL_PROPAGATION
    how = f"{map_name}, first frame and previous {options.NUM_CONTEXT} within {options.RADIUS:g} cells, top "
    how += f"{options.TOP_K}, temperature {options.TEMPERATURE:g}, first labels by {options.FIRST_LABELS}"
    how = how if options.METHOD == "propagate" else "copies of the first mask"
    return f"video segmentation: DAVIS-2017 semi-supervised on {options.DATA}, {how}; percent, means over objects"


def follow(backbone: FrozenBackbone, cfg: CfgNode, sequence: davis.Sequence, first_mask: np.ndarray) -> np.ndarray:
    """(T, H, W) uint8 ids of a video's objects, of which ``first_mask`` (H, W) is given; writes masks and pictures."""
    options, first_mask = cfg.LABEL_PROPAGATION, np.where(first_mask == VOID, np.uint8(0), first_mask)
    masks_folder, overlays_folder = (Path(cfg.OUTPUT_DIR) / name for name in (f"masks/{sequence.name}", "overlays"))
    for folder in (masks_folder, overlays_folder):
        folder.mkdir(parents=True, exist_ok=True)
    masks, pictures, propagation = [], [], None
    for path in tqdm(sequence.frames, unit="frame", desc=sequence.name):
        frame, mask = require_record({"file_name": path}, bit_depth(cfg)), first_mask
        check_size(sequence.masks[0], first_mask, path, frame.shape[:2])
        if options.METHOD == "propagate":
            features = F.normalize(backbone.map_of(frame), dim=0)
            if propagation is None:
                ids = torch.from_numpy(first_mask).to(features.device)
                size, sampled = tuple(features.shape[1:]), options.FIRST_LABELS == "bilinear"
                labels = shrink_labels(ids, int(first_mask.max()) + 1, size, sampled=sampled)
                propagation = LabelPropagation(features, labels, options)
            else:
                mask = enlarge_labels(propagation.step(features), first_mask.shape).cpu().numpy()
        with written_whole(masks_folder / f"{path.stem}.png") as temporary:
            palette_image(mask).save(temporary, format="PNG")
        masks.append(mask)
        pictures.append(davis.paint_objects(frame, mask))
    davis.save_animation(overlays_folder / f"{sequence.name}.gif", pictures, options.FRAMES_PER_SECOND)
    return np.stack(masks)


class LabelPropagation:
    """Follows soft labels from the first frame on (projects/LabelPropagation/README.md).

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
        self._first, self._first_labels = (map_.permute(1, 2, 0).contiguous() for map_ in (features, labels))
        copies = (options.NUM_CONTEXT, 1, 1, 1)
        self._context = self._first.repeat(copies)  # (N, h, w, C), a ring: its order means nothing
        self._context_labels = self._first_labels.repeat(copies)
        self._oldest = 0

    def step(self, features: Tensor) -> Tensor:
        """The next frame's labels, (L, h, w) float32, from its (C, h, w) features."""
        cells = features.permute(1, 2, 0).contiguous()
        labels = torch.empty_like(self._first_labels)
        height, width = labels.shape[:2]
        for top in range(0, height, TILE):
            for left in range(0, width, TILE):
                rows, columns = slice(top, min(top + TILE, height)), slice(left, min(left + TILE, width))
                labels[rows, columns] = self._vote(cells, rows, columns)
        if len(self._context):
            self._context[self._oldest], self._context_labels[self._oldest] = cells, labels
            self._oldest = (self._oldest + 1) % len(self._context)
        return labels.permute(2, 0, 1)

    def _vote(self, cells: Tensor, rows: slice, columns: slice) -> Tensor:
        """(th, tw, L): the labels of a tile."""
        options, (height, width, channels) = self._options, cells.shape
        queries = cells[rows, columns].reshape(-1, channels)
        reach = math.ceil(options.RADIUS) - 1  # how many rows or columns apart two cells may be
        near_rows, near_columns = (
            slice(max(part.start - reach, 0), min(part.stop + reach, size))
            for part, size in ((rows, height), (columns, width))
        )
        near = self._context[:, near_rows, near_columns].reshape(-1, channels)
        similarity = queries @ near.T
        distance = _squared_gaps(rows, near_rows)[:, None, :, None] + _squared_gaps(columns, near_columns)[:, None]
        far = (distance >= options.RADIUS**2).view(len(queries), -1).to(similarity.device)
        similarity.masked_fill_(far.repeat(1, len(self._context)), -math.inf)
        similarity = torch.cat([queries @ self._first.flatten(0, 1).T, similarity], dim=1)
        similarity, voters = similarity.topk(min(options.TOP_K, similarity.shape[1]), dim=1)
        weights = F.softmax(similarity / options.TEMPERATURE, dim=1)
        num_labels = self._first_labels.shape[2]
        near_labels = self._context_labels[:, near_rows, near_columns].reshape(-1, num_labels)
        candidates = torch.cat([self._first_labels.flatten(0, 1), near_labels])
        labels = torch.einsum("qk,qkl->ql", weights, candidates[voters])
        return labels.view(rows.stop - rows.start, columns.stop - columns.start, num_labels)


def _squared_gaps(cells: slice, others: slice) -> Tensor:
    """(n, m) int64: the squares of how far each row or column is from each other one."""
    return (torch.arange(cells.start, cells.stop)[:, None] - torch.arange(others.start, others.stop)).square()
