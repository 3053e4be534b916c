#!/usr/bin/env python
"""Follow the objects of DAVIS-2017 through its videos with frozen features.

    python projects/LabelPropagation/run.py --config-file projects/LabelPropagation/configs/davis2017_R50.yaml \\
        --weights backbone.pth --output output/davis

The masks of the first frames are given; every later frame takes its labels from the most similar places of the
earlier ones. DIR/masks/NAME/*.png are the masks, DIR/overlays/NAME.gif shows them, and global_results-SPLIT.csv and
per-sequence_results-SPLIT.csv hold J and F in the form of DAVIS's own tool.
"""

import logging
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from projects.common.entry import expect_positive, load_project, peak_memory_gb, write_results
from projects.common.frozen_backbone import FrozenBackbone
from projects.common.label_maps import enlarge_labels, shrink_labels
from projects.LabelPropagation.config import METHODS, add_label_propagation_config
from projects.LabelPropagation.davis import (
    Sequence,
    find_sequences,
    paint_objects,
    read_frame,
    read_masks,
    save_animation,
    write_mask,
)
from projects.LabelPropagation.propagate import LabelPropagation, Protocol
from projects.LabelPropagation.video_objects import score_sequence, summarize, write_csvs
from revisit.config import expect_one_of
from revisit.data.catalog import datasets_root
from revisit.data.labels import VOID
from revisit.data.reader import require_image
from revisit.engine.command import run_command
from revisit.errors import expect

from detectron2.config import CfgNode

logger = logging.getLogger("projects.LabelPropagation")


def main() -> None:
    cfg = load_project(__doc__, add_label_propagation_config)
    options, output = cfg.LABEL_PROPAGATION, Path(cfg.OUTPUT_DIR)
    expect_one_of(cfg, "LABEL_PROPAGATION.METHOD", METHODS)
    expect(options.NUM_CONTEXT >= 0, f"LABEL_PROPAGATION.NUM_CONTEXT is {options.NUM_CONTEXT}: expected 0 or more")
    positive = ("RADIUS", "TOP_K", "TEMPERATURE", "FRAMES_PER_SECOND")
    expect_positive(cfg, *(f"LABEL_PROPAGATION.{name}" for name in positive))
    root = datasets_root() / options.DATA
    sequences = find_sequences(root, options.RESOLUTION, options.SPLIT, tuple(options.SEQUENCES))
    backbone = FrozenBackbone(cfg)
    scores, seconds = [], {}
    for sequence in sequences:
        started = time.perf_counter()
        size = require_image(sequence.frames[0]).shape[:2]
        truth = read_masks(sequence, size)
        found = follow(backbone, cfg, sequence, truth[0])
        scores += score_sequence(sequence.name, found, truth)
        seconds[sequence.name] = round(time.perf_counter() - started, 1)
        logger.info(f"{sequence.name}: {len(found)} frames in {seconds[sequence.name]} s")
    write_csvs(output, scores, options.SPLIT)
    totals = {name: round(100 * value, 2) for name, value in summarize(scores).items()}
    cost = {"seconds": seconds, "peak_memory_gb": round(peak_memory_gb(), 2)}
    write_results(cfg, protocol(cfg), totals | cost)
    means = ", ".join(f"{name} {totals[f'{name}-Mean']:.1f}" for name in ("J&F", "J", "F"))
    print(f"{means} over {len(scores)} objects")
    print(f"written to {output}: results.json, CSVs, masks/ and overlays/")


def protocol(cfg: CfgNode) -> str:
    """What the numbers mean, in words."""
    options = cfg.LABEL_PROPAGATION
    how = "copies of the first mask"
    if options.METHOD == "propagate":
        how = (
            f"{', '.join(cfg.MODEL.RESNETS.OUT_FEATURES)}, first frame and previous {options.NUM_CONTEXT} within "
            f"{options.RADIUS:g} cells, top {options.TOP_K}, temperature {options.TEMPERATURE:g}"
        )
    return f"DAVIS-2017 semi-supervised on {options.DATA}, {how}; percent, means over objects"


def follow(backbone: FrozenBackbone, cfg: CfgNode, sequence: Sequence, first_mask: np.ndarray) -> np.ndarray:
    """(T, H, W) uint8 ids of a video's objects, of which ``first_mask`` (H, W) is given; writes masks and pictures."""
    first_mask = np.where(first_mask == VOID, np.uint8(0), first_mask)
    masks_folder, overlays_folder = (Path(cfg.OUTPUT_DIR) / name for name in ("masks", "overlays"))
    (masks_folder / sequence.name).mkdir(parents=True, exist_ok=True)
    overlays_folder.mkdir(exist_ok=True)
    masks, pictures, propagation = [], [], None
    for path in tqdm(sequence.frames, unit="frame", desc=sequence.name):
        frame = read_frame(path, first_mask.shape)
        if cfg.LABEL_PROPAGATION.METHOD == "copy":
            mask = first_mask
        elif propagation is None:
            mask, propagation = first_mask, start(cfg, encode(backbone, frame), first_mask)
        else:
            mask = enlarge_labels(propagation.step(encode(backbone, frame)), first_mask.shape).cpu().numpy()
        write_mask(masks_folder / sequence.name / f"{path.stem}.png", mask)
        masks.append(mask)
        pictures.append(paint_objects(frame, mask))
    save_animation(overlays_folder / f"{sequence.name}.gif", pictures, cfg.LABEL_PROPAGATION.FRAMES_PER_SECOND)
    return np.stack(masks)


def encode(backbone: FrozenBackbone, frame: np.ndarray) -> torch.Tensor:
    """(C, h, w) unit features of an (H, W, 3) uint8 RGB frame."""
    features = backbone(torch.from_numpy(frame).permute(2, 0, 1)[None])
    return F.normalize(features[0], dim=0)


def start(cfg: CfgNode, features: torch.Tensor, mask: np.ndarray) -> LabelPropagation:
    """A propagation from the first frame's (C, h, w) features and (H, W) mask."""
    options = cfg.LABEL_PROPAGATION
    ids = torch.from_numpy(mask).to(features.device)
    labels = shrink_labels(ids, int(mask.max()) + 1, tuple(features.shape[1:]))
    protocol = Protocol(options.NUM_CONTEXT, options.RADIUS, options.TOP_K, options.TEMPERATURE)
    return LabelPropagation(features, labels, protocol)


if __name__ == "__main__":
    run_command(main)
