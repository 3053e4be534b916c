"""What frozen features of the labelled regions say of a start, in seconds: a probe before anything trains.

A region is a labelled box and, as often, a box of background; of masks and depth maps the surroundings of a pixel. Its
features are means by RoIAlign over each map of the start's backbone, or what a neck or a box head of the start's own
makes of these (``own_features``). So the probe sees neither what an RPN or another head has learned nor how far
training moves the features.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from projects.CompareStarts.flatness import overlap_factor
from projects.CompareStarts.starts import Start, Starts
from projects.CompareStarts.task import Task
from projects.CompareStarts.trial import Trial
from projects.Rows.leave_image_out import (
    Interval,
    balanced_accuracy,
    knn_without_image,
    ridge_classes,
    ridge_without_image,
    root_mean_square,
    with_interval,
)
from projects.Rows.own_features import BACKBONE, Features, own_features
from revisit.boxes.boxes import Boxes, iou
from revisit.boxes.coco_files import size_of
from revisit.checkpoint.flags import flags_of
from revisit.data.finetuning.detection_mapper import DetectionMapper
from revisit.data.finetuning.pixel_mapper import num_classes_and_offset, pixel_mapper_of
from revisit.data.images.image_bytes import PADDED, WINDOW
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import names_of
from revisit.data.sources.labels import VOID, read_depth, read_labels
from revisit.data.sources.records import Records, fingerprint, sample
from revisit.data.sources.subsets import is_labelled, objects_of
from revisit.errors import UserError, expect
from revisit.files import file_digest, write_whole
from revisit.jobs.record import left_by_earlier_call
from revisit.network.network import Network
from revisit.progress import progress

from detectron2.config import CfgNode

IMAGES = 300  # at most, spread evenly over the labelled ones
REGIONS = 32  # labelled ones of an image at most
SURROUNDINGS = 32  # px of the network's input around a pixel
OVERLAP = 0.3  # IoU of a box of background with an object, less than
TRIES = 10  # boxes that are drawn for each one of background


class Regions(NamedTuple):
    """Of an image: places (n, 4) px of the network's input, and what is there."""

    boxes: Tensor
    targets: Tensor  # (n,) int64 classes, of background -1; or float32 metres


class Probe(NamedTuple):
    """What a start's features say: scores by name, and the mean of all, which orders the starts."""

    start: str
    scores: dict[str, Interval]
    score: Interval
    seconds: float
    features: str = BACKBONE  # of which part of the network


def check_regions(task: Task, labels: int) -> None:
    """Look at the labelled regions without any network.

    Raises:
        UserError: a task whose labels are no boxes, masks or depth; one labelled image; a box outside its image; masks
            of one class, or boxes of one class without background around them.
    """
    records = _records(task, labels, seed=1)
    data = task.data
    cfg = task.load(task.options)
    expect(len(records) > 1, f"{data} has {len(records)} labelled images: a probe leaves out one and needs others")
    regions = [
        _regions_in(record, size_of(record), np.random.default_rng((0, n)), cfg) for n, record in enumerate(records)
    ]
    _check_targets(torch.cat([each.targets for each in regions]), data)


def probe_starts(task: Task, starts: Starts, labels: int, seed: int, root: Path) -> list[Probe]:
    """The starts, best first, by ``labels`` labelled images at most; progress goes to stdout. The intervals of their
    mean scores are as wide as it takes to compare so many starts by so few images.

    ``root`` has what continues some of them, and in probe/cache/ what was computed before: the same weights, network,
    images and labels are probed once.

    Raises:
        UserError: see check_regions.
    """
    records = _records(task, labels, seed)
    data = [*fingerprint(records, classes=names_of(task.data)), task.data]
    probes = []
    for number, (title, start) in enumerate(starts.items(), start=1):
        place = f"probe [{number}/{len(starts)}] {title}"
        trial = Trial(task, title, start, labels, seed)
        file = root / "probe/cache" / f"{_digest(trial, data, root)}.json"
        if file.is_file():
            probe = _read(file, title)
            how = "as before"
        else:
            probe = _probe(trial, records, root, place)
            how = f"{probe.seconds:.0f} s"
            _write(file, probe)
        print(f"{place}: {probe.score.value:.4g} ({how})", flush=True)
        probes.append(probe)
    factor = overlap_factor(len(starts), len(records))
    probes = [probe._replace(score=probe.score.widened(factor)) for probe in probes]
    return sorted(probes, key=lambda probe: probe.score.value, reverse="depth" not in probes[0].scores)


def equal_to_best(probes: Sequence[Probe]) -> list[str]:
    """The first start, and those whose intervals overlap with its own."""
    best = probes[0].score
    return [each.start for each in probes if each.score.low <= best.high and best.low <= each.score.high]


def _records(task: Task, labels: int, seed: int) -> Records:
    return sample([each for each in get_records(task.train_set(labels, seed)) if is_labelled(each)], IMAGES)


def _digest(trial: Trial, data: list, root: Path) -> str:
    """Of all that a probe depends on."""
    weights = _digest_of_weights(trial.start, trial.seed, root)
    cfg = trial.task.load((*trial.task.options, *trial.start.options, "MODEL.WEIGHTS", "", "MODEL.DEVICE", "cpu"))
    causes = (
        "own features",
        weights,
        cfg.MODEL.dump(),
        cfg.INPUT.dump(),
        data,
        (IMAGES, REGIONS, SURROUNDINGS, OVERLAP, TRIES),
    )
    return hashlib.sha256(repr(causes).encode()).hexdigest()[:16]


def _digest_of_weights(start: Start, seed: int, root: Path) -> str:
    if start.is_given:
        return start.source.digest(seed) or f"random {seed}"
    return file_digest(start.weights(seed, root))


def _read(file: Path, title: str) -> Probe:
    with left_by_earlier_call(file):
        stored = json.loads(file.read_text())
        scores = {name: Interval(*values) for name, values in stored["scores"].items()}
        return Probe(title, scores, Interval(*stored["score"]), stored["seconds"], stored["features"])


def _write(file: Path, probe: Probe) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps({key: value for key, value in probe._asdict().items() if key != "start"}))


def _probe(trial: Trial, records: Records, root: Path, place: str) -> Probe:
    began = time.perf_counter()
    model, cfg = trial.network(trial.start.weights(trial.seed, root))
    features = own_features(model.eval(), trial.network(None)[0])
    rows, targets, images = regions_of(model.backbone, features, cfg, records, place)
    scores = score_regions(rows, targets, images)
    count = int(images.max()) + 1
    named = {name: with_interval(score, count) for name, score in scores.items()}
    mean = with_interval(lambda weights: np.mean([score(weights) for score in scores.values()], axis=0), count)
    return Probe(trial.title, named, mean, time.perf_counter() - began, features.title)


def _check_targets(targets: Tensor, data: str) -> None:
    """Raises UserError for labels that leave nothing to tell apart."""
    classes = targets[targets >= 0].unique()
    has_background = bool((targets < 0).any())
    expect(
        targets.is_floating_point() or len(classes) + has_background > 1,
        f"all labels of {data} are of one class, with no background to tell it from: a probe expects two classes, or "
        "room for boxes around the labelled ones",
    )


def score_regions(rows: Tensor, targets: Tensor, images: Tensor) -> dict:
    """By name, scores as functions of the images' weights: class, where there are several, and object, where there is
    background, by kNN and by ridge; or depth by ridge.

    Args:
        rows: (M, C) of all regions; ``targets`` (M,) as in Regions; ``images`` (M,) their images' numbers, from 0 on.
    """
    if targets.is_floating_point():
        predicted = ridge_without_image(rows, targets[:, None], images, torch.ones(len(rows)))[:, 0]
        return {"depth": root_mean_square(predicted, targets, images)}
    _check_targets(targets, "these images")
    labelled = targets >= 0
    scores = {}
    tasks = {}
    known = targets[labelled].unique(return_inverse=True)[1]
    if known.any():
        tasks["class"] = (rows[labelled], known, images[labelled])
    if not labelled.all():
        tasks["object"] = (rows, labelled.long(), images)
    for name, (its_rows, classes, its_images) in tasks.items():
        for how, classify in (("kNN", knn_without_image), ("ridge", ridge_classes)):
            predicted = classify(its_rows, classes, its_images)
            scores[f"{name}, {how}"] = balanced_accuracy(predicted, classes, its_images)
    return scores


@torch.no_grad()
def regions_of(
    backbone: nn.Module, features: Features, cfg: CfgNode, records: Records, title: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (M, C), targets (M,) and images' numbers (M,) of the regions of all records, as score_regions takes them.

    Images without any, of crowds or void alone, have no number. They are padded as the detector of ``backbone`` pads.
    """
    mapper = (DetectionMapper if "annotations" in records[0] else pixel_mapper_of(cfg))(cfg, is_train=False)
    network = Network(backbone, flags_of(cfg, None))
    rows = []
    targets = []
    images = []
    for number, record in enumerate(progress(title, "image", records)):
        image = mapper(record)["image"]
        regions = _regions_in(record, tuple(image.shape[1:]), np.random.default_rng((0, number)), cfg)
        if not len(regions.boxes):
            continue
        rows.append(features.rows(network.padded(image), regions.boxes))
        targets.append(regions.targets)
        images.append(torch.full((len(regions.boxes),), len(images)))
    return torch.cat(rows), torch.cat(targets), torch.cat(images)


def _regions_in(record: dict, size: tuple[int, int], rng: np.random.Generator, cfg: CfgNode) -> Regions:
    return _boxes(record, size, rng) if "annotations" in record else _pixels(record, size, rng, cfg)


def _boxes(record: dict, size: tuple[int, int], rng: np.random.Generator) -> Regions:
    """Labelled boxes, and as many of the same sizes that overlap with none of them."""
    labelled = Boxes.of_annotations(objects_of(record), np.float32)
    boxes = torch.from_numpy(labelled.xyxy)
    height, width = size_of(record)
    inside = (boxes[:, :2] < torch.tensor([width, height])).all(dim=1) & (boxes[:, 2:] > 0).all(dim=1)
    if not inside.all():
        raise UserError(
            f"{record['file_name']}: the box {boxes[~inside][0].tolist()} lies outside its {width} x {height} px"
        )
    chosen = rng.permutation(len(boxes))[:REGIONS]
    sides = (boxes[:, 2:] - boxes[:, :2])[rng.choice(chosen, TRIES * len(chosen))]
    room = (torch.tensor([width, height]) - sides).clamp_min(0)
    corner = torch.from_numpy(rng.random(room.shape)).float() * room
    drawn = torch.cat([corner, corner + sides], dim=1)
    free = drawn[(iou(drawn.numpy(), labelled.xyxy) < OVERLAP).all(axis=1)][: len(chosen)]
    scale = torch.tensor([size[1] / width, size[0] / height] * 2)
    classes = torch.from_numpy(labelled.classes[chosen])
    targets = torch.cat([classes, classes.new_full((len(free),), -1)])
    return Regions(torch.cat([boxes[chosen], free]).float() * scale, targets)


def _pixels(record: dict, size: tuple[int, int], rng: np.random.Generator, cfg: CfgNode) -> Regions:
    """The surroundings of drawn pixels that have a class or a depth."""
    if "sem_seg_file_name" in record and cfg.MODEL.META_ARCHITECTURE != "DepthEstimator":
        classes = num_classes_and_offset(cfg.DATASETS.TRAIN)
        values = read_labels(record["sem_seg_file_name"], *classes, record.get(WINDOW)).astype(np.int64)
        known = values != VOID
    else:
        values = read_depth(record["depth_file_name"], record.get(WINDOW))
        known = values > 0
    y, x = np.nonzero(known)
    chosen = rng.permutation(len(y))[:REGIONS]
    y = y[chosen]
    x = x[chosen]
    shown = [record[PADDED]] * 2 if PADDED in record else values.shape
    centre = (np.stack([x, y], axis=1) + 0.5) * size[::-1] / shown[::-1]
    boxes = np.concatenate([centre - SURROUNDINGS / 2, centre + SURROUNDINGS / 2], axis=1)
    return Regions(torch.from_numpy(boxes).float(), torch.from_numpy(values[y, x]))
