#!/usr/bin/env python
"""Name the regions of images by their nearest labelled region, with frozen features (Pascal VOC).

    python projects/FrozenEvaluations/retrieval.py \\
        --config-file projects/FrozenEvaluations/configs/retrieval/voc_R50.yaml \\
        --weights backbone.pth --output output/segments

K-means splits each image's feature map into regions. A region of DATASETS.TEST takes the label of the nearest
region of DATASETS.TRAIN; DIR/results.json has the mIoU over all classes and over SEGMENT_RETRIEVAL.SUBSET, and
DIR/gallery.png shows regions next to their nearest ones.
"""

if __name__ == "__main__":  # before the imports below, which take seconds
    from revisit.command.evaluation_options import run_project

    run_project("FrozenEvaluations.retrieval", __doc__)

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional as F

from projects.Pictures.label_maps import shrink_labels
from projects.Pictures.tiles import TILE, SheetRow, fit, save_sheet
from revisit.command.evaluation_config import only_dataset, write_results
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import picture_of, require_record
from revisit.data.sources.catalog import get_records, share_classes
from revisit.data.sources.inspection import warn_of_shared
from revisit.data.sources.labels import VOID, check_size, read_labels
from revisit.data.sources.records import sample
from revisit.errors import expect
from revisit.evaluation.features import whole_image
from revisit.evaluation.nearest import nearest
from revisit.evaluation.pixel_evaluators import count_pairs, score
from revisit.keys import COUNT, PIXELS, SWITCH, Facts, declare, integer, one_of, resolve_auto_values
from revisit.network.network import Network
from revisit.progress import progress

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

OUTLINE = (255, 220, 0)
DIMMED = 0.35  # brightness around the region

# The labelled images are DATASETS.TRAIN, the others DATASETS.TEST.
declare("SEGMENT_RETRIEVAL.IMAGE_SIZE", 512, "px, both sides; the aspect ratio is given up.", PIXELS)
declare("SEGMENT_RETRIEVAL.NUM_REGIONS", 15, "K of K-means, per image.", integer(1, VOID - 1))
declare("SEGMENT_RETRIEVAL.NUM_STARTS", 1, "Starts of K-means, of which the tightest clusters count.", COUNT)
declare("SEGMENT_RETRIEVAL.NORMALIZE", True, "Unit features before they are clustered and averaged.", SWITCH)
declare("SEGMENT_RETRIEVAL.REGIONS", "kmeans", "truth: the classes of the mask.", one_of("kmeans", "truth"))
declare(
    "SEGMENT_RETRIEVAL.FEATURES",
    "network",
    "oracle: a cell's true class, with REGIONS truth, which must give 100.",
    one_of("network", "oracle"),
)
declare("SEGMENT_RETRIEVAL.SHUFFLE_LABELS", False, "Labelled regions swap labels: what chance reaches.", SWITCH)
declare(
    "SEGMENT_RETRIEVAL.SUBSET",
    ("aeroplane", "bottle", "bus", "car", "cat", "cow", "person"),
    "After all classes, these alone: the others are void, and the mean leaves the background out.",
)
declare("SEGMENT_RETRIEVAL.GALLERY_QUERIES", 8, "Rows of gallery.png.", COUNT)
declare("SEGMENT_RETRIEVAL.GALLERY_NEIGHBORS", 5, "Nearest labelled regions in each.", COUNT)


def main(cfg: CfgNode) -> None:
    names = check(cfg)
    train = only_dataset(cfg, "TRAIN")
    test = only_dataset(cfg, "TEST")
    records = [*get_records(train), *get_records(test)]
    resolve_auto_values(cfg, Facts(records=records))
    backbone = Network.of_config(cfg)
    check_size_of_cells(cfg.SEGMENT_RETRIEVAL.IMAGE_SIZE, backbone.shape.stride)
    labelled = describe_set(backbone, cfg, train)
    queries = describe_set(backbone, cfg, test)
    results = {}
    lines = []
    for kept, counted in scored_classes(names, cfg.SEGMENT_RETRIEVAL.SUBSET):
        confusion = retrieve(cfg, labelled, queries, len(names), kept)
        mean, per_class = mean_iou(confusion, names, counted)
        count = len(counted)
        results[f"mIoU_{count}"] = round(mean, 2)
        results[f"IoU_{count}"] = {name: round(value, 2) for name, value in per_class.items()}
        lines.append(f"mIoU over {count} classes: {mean:.1f}")
    write_results(cfg, protocol(cfg), results)
    save_gallery(cfg, labelled, queries, names)
    print(*lines, sep="\n")


def check(cfg: CfgNode) -> list[str]:
    """Names of the classes. Raises UserError for options that mean nothing, and for data that is not there."""
    options = cfg.SEGMENT_RETRIEVAL
    expect(
        options.FEATURES != "oracle" or options.REGIONS == "truth",
        "SEGMENT_RETRIEVAL.FEATURES oracle describes true regions: set SEGMENT_RETRIEVAL.REGIONS truth",
    )
    train = only_dataset(cfg, "TRAIN")
    test = only_dataset(cfg, "TEST")
    share_classes(train, [test])
    without = [name for name in (train, test) if "sem_seg_file_name" not in get_records(name)[0]]
    expect(not without, f"{' and '.join(without)}: expected data sets with masks, which name the regions")
    classes = list(MetadataCatalog.get(train).stuff_classes)
    subset = set(options.SUBSET)
    expect(
        subset and subset <= set(classes),
        f"SEGMENT_RETRIEVAL.SUBSET {tuple(options.SUBSET)}: expected some of {', '.join(classes)}",
    )
    warn_of_shared(
        get_records(train), train, get_records(test), test, "each region finds itself there; expected others"
    )
    return classes


def scored_classes(names: list[str], subset: Sequence[str]) -> list[tuple[Sequence[int], Sequence[int]]]:
    """For both scores the classes that are not void, and those of them that the mean counts: all, and a subset, beside
    which the background stays, so that it can be confused with them."""
    everything = range(len(names))
    counted = [names.index(name) for name in subset]
    background = [c for c in everything if names[c] == "background"]
    return [(everything, everything), ([*background, *counted], counted)]


def check_size_of_cells(size: int, stride: int) -> None:
    """Raises UserError for images whose last cells would lie beyond them, so that all would name other pixels."""
    next_multiple = -(-size // stride) * stride
    expect(
        size % stride == 0,
        f"SEGMENT_RETRIEVAL.IMAGE_SIZE {size}: the map has cells of {stride} px, expected a multiple of it, such as "
        f"{next_multiple}",
    )


def protocol(cfg: CfgNode) -> str:
    """What the numbers mean, in words."""
    options = cfg.SEGMENT_RETRIEVAL
    starts = f" from {options.NUM_STARTS} start{'s' * (options.NUM_STARTS > 1)}"
    regions = f"K-means {options.NUM_REGIONS}{starts}" if options.REGIONS == "kmeans" else "true regions"
    chance = ", labels shuffled" if options.SHUFFLE_LABELS else ""
    length = "unit" if options.NORMALIZE else "raw"
    return (
        f"segment retrieval: {length} {options.FEATURES} features at {options.IMAGE_SIZE} px, {regions}, "
        f"cosine 1-NN{chance}; mIoU in percent"
    )


class Regions(NamedTuple):
    """The regions of one image."""

    ids: np.ndarray  # (h, w) uint8: which region a cell or, for true regions, a pixel belongs to; VOID is none
    descriptors: Tensor  # (R, C) float32 unit rows, one for each id


def cluster(features: Tensor, num_regions: int, seed: int, num_starts: int = 1) -> Regions:
    """K-means over the cells of a (C, h, w) map, best of ``num_starts``; descriptors are the clusters' means."""
    cells = features.flatten(1).T.cpu().numpy()
    count = min(num_regions, len(cells))
    means = KMeans(count, n_init=num_starts, random_state=seed).fit(cells)
    _, ids = np.unique(means.labels_, return_inverse=True)  # without a gap, should a cluster have died out
    ids = ids.reshape(features.shape[1:]).astype(np.uint8)
    num_clusters = int(ids.max()) + 1
    return Regions(ids, describe(features, torch.from_numpy(ids), num_clusters))


def true_regions(features: Tensor, truth: np.ndarray) -> Regions:
    """A region for each class of an (H, W) mask, described by the cells of the (C, h, w) map, each by its share."""
    is_void = truth == VOID
    classes = np.unique(truth[~is_void])
    ids = np.where(is_void, VOID, np.searchsorted(classes, truth)).astype(np.uint8)
    return Regions(ids, describe(features, torch.from_numpy(ids), len(classes)))


def oracle_features(truth: np.ndarray, num_classes: int) -> Tensor:
    """(num_classes, H, W) float32: 1 where an (H, W) mask has the class."""
    labels = np.where(truth == VOID, num_classes, truth)
    one_hot = F.one_hot(torch.from_numpy(labels).long(), num_classes + 1)
    maps = one_hot.permute(2, 0, 1)
    return maps[:num_classes].float()


def enlarge(ids: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(h, w) uint8 ids -> (H, W), each pixel that of the cell it lies in."""
    batch = torch.from_numpy(ids)[None, None]
    enlarged = F.interpolate(batch, size=size, mode="nearest-exact")
    return enlarged[0, 0].numpy()


def describe(features: Tensor, ids: Tensor, num_regions: int) -> Tensor:
    """(num_regions, C) unit rows: the mean of a (C, h, w) map over each region of (H, W) ids."""
    filled = torch.where(ids == VOID, num_regions, ids.long())
    map_size = tuple(features.shape[1:])
    shares = shrink_labels(filled, num_regions + 1, map_size)[:num_regions]
    weights = shares.flatten(1).to(features)
    sums = weights @ features.flatten(1).T  # a mean but for its length
    return F.normalize(sums, dim=1).cpu()


class Described(NamedTuple):
    """A data set in regions."""

    records: list[dict]
    regions: list[Regions]
    places: np.ndarray  # (R, 2) int64: which image each region of all images is in, and its id there
    descriptors: Tensor  # (R, C) unit rows
    pixels: np.ndarray  # (R, N + 1) int64: those of each class in a region, the void ones last


def describe_set(backbone: Network, cfg: CfgNode, dataset: str) -> Described:
    """The regions of all images of a data set."""
    records = get_records(dataset)
    metadata = MetadataCatalog.get(dataset)
    num_classes = len(metadata.stuff_classes)
    offset = metadata.get("label_offset", 0)
    regions = []
    pixels = []
    for record in progress(dataset, "image", records):
        truth = read_labels(record["sem_seg_file_name"], num_classes, offset)
        of_image = find_regions(backbone, cfg, record, truth, num_classes)
        regions.append(of_image)
        pixels.append(count_pixels(of_image, truth, num_classes))
    places = []
    for image, of_image in enumerate(regions):
        places += [(image, number) for number in range(len(of_image.descriptors))]
    places = np.array(places, np.int64).reshape(-1, 2)
    descriptors = torch.cat([of_image.descriptors for of_image in regions])
    return Described(records, regions, places, descriptors, np.concatenate(pixels))


def find_regions(backbone: Network, cfg: CfgNode, record: dict, truth: np.ndarray, num_classes: int) -> Regions:
    """The regions of one image, whose (H, W) mask has to have its size."""
    options = cfg.SEGMENT_RETRIEVAL
    if options.FEATURES == "oracle":
        return true_regions(oracle_features(truth, num_classes), truth)
    image = require_record(record, pixel_format(cfg))
    check_size(record["sem_seg_file_name"], truth, record["file_name"], image.shape[:2])
    features = backbone.map_of(whole_image(image, options.IMAGE_SIZE))
    if options.NORMALIZE:
        features = F.normalize(features, dim=0)
    if options.REGIONS == "truth":
        return true_regions(features, truth)
    return cluster(features, options.NUM_REGIONS, cfg.SEED, options.NUM_STARTS)


def count_pixels(regions: Regions, truth: np.ndarray, num_classes: int) -> np.ndarray:
    """(R, num_classes + 1) int64: the pixels of an (H, W) mask by region and by class, the void ones last."""
    ids = enlarge(regions.ids, truth.shape)
    inside = ids != VOID
    classes = np.minimum(truth[inside], num_classes)
    return count_pairs(ids[inside], classes, (len(regions.descriptors), num_classes + 1))


def keep_classes(pixels: np.ndarray, kept: Sequence[int]) -> np.ndarray:
    """(R, N) int64: the counts of (R, N + 1) pixels by class as if every class but ``kept`` were void."""
    of_classes = pixels[:, :-1]
    num_classes = of_classes.shape[1]
    is_kept = np.isin(np.arange(num_classes), kept)
    return of_classes * is_kept


def majority_labels(counts: np.ndarray) -> np.ndarray:
    """(R,) int64: the class of the most pixels, by (R, N) counts, the first of equals; VOID where there is none."""
    has_pixels = counts.any(axis=1)
    return np.where(has_pixels, counts.argmax(axis=1), VOID)


def mean_iou(confusion: np.ndarray, names: list[str], counted: Sequence[int]) -> tuple[float, dict[str, float]]:
    """Percent: the mean over the classes ``counted`` that occur, and the IoU of each by name."""
    values = score(confusion, names)
    of_counted = [names[c] for c in counted]
    per_class = {name: values[f"IoU-{name}"] for name in of_counted if f"IoU-{name}" in values}
    expect(per_class, f"none of {of_counted} is in the truth or was predicted: expected some")
    mean = np.mean(list(per_class.values()))
    return float(mean), per_class


def retrieve(
    cfg: CfgNode, labelled: Described, queries: Described, num_classes: int, kept: Sequence[int]
) -> np.ndarray:
    """(N, N) int64 pixels by true class and that of the nearest labelled region, as if all but ``kept`` were void."""
    labels = majority_labels(keep_classes(labelled.pixels, kept))
    named = np.flatnonzero(labels != VOID)
    expect(len(named), f"no region of {cfg.DATASETS.TRAIN[0]} shows a class of {tuple(kept)}")
    labels = labels[named]
    if cfg.SEGMENT_RETRIEVAL.SHUFFLE_LABELS:
        labels = np.random.default_rng(cfg.SEED).permutation(labels)
    neighbors = nearest(queries.descriptors, labelled.descriptors[named], 1).places[:, 0].numpy()
    confusion = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(confusion.T, labels[neighbors], keep_classes(queries.pixels, kept))
    return confusion


def save_gallery(cfg: CfgNode, labelled: Described, queries: Described, names: list[str]) -> None:
    """Write gallery.png."""
    rows = gallery_rows(cfg, labelled, queries, names)
    num_neighbors = len(rows[0].tiles) - 1
    headers = ["query", *(f"nearest {n}" for n in range(1, num_neighbors + 1))]
    save_sheet(Path(cfg.OUTPUT_DIR) / "gallery.png", rows, headers)


def gallery_rows(cfg: CfgNode, labelled: Described, queries: Described, names: list[str]) -> list[SheetRow]:
    """The largest region of an object in test images spread over the data set, each with its nearest labelled ones."""
    options = cfg.SEGMENT_RETRIEVAL
    pixels = pixel_format(cfg)
    chosen = sample(_largest_things(queries, names), options.GALLERY_QUERIES) or [0]
    neighbors = nearest(queries.descriptors[chosen], labelled.descriptors, options.GALLERY_NEIGHBORS).places
    rows = []
    for query, of_query in zip(chosen, neighbors.tolist(), strict=True):
        shown = [_show(queries, query, names, pixels)]
        shown += [_show(labelled, n, names, pixels) for n in of_query]
        tiles, captions = zip(*shown, strict=True)
        rows.append(SheetRow(list(tiles), list(captions)))
    return rows


def _largest_things(data: Described, names: list[str]) -> list[int]:
    """Of each image with an object, the region of an object that has the most pixels."""
    labels = majority_labels(data.pixels[:, :-1])
    is_thing = np.array([label != VOID and names[label] != "background" for label in labels])
    owners = data.places[:, 0]
    sizes = data.pixels.sum(axis=1)
    largest = []
    for image in np.unique(owners[is_thing]):
        things = np.flatnonzero(is_thing & (owners == image))
        of_most = sizes[things].argmax()
        largest.append(int(things[of_most]))
    return largest


def _show(data: Described, index: int, names: list[str], pixels: PixelFormat) -> tuple[np.ndarray, str]:
    """The tile of a region, and its name."""
    owner, number = data.places[index]
    (label,) = majority_labels(data.pixels[[index], :-1])
    picture = picture_of(data.records[owner], pixels)
    ids = enlarge(data.regions[owner].ids, picture.shape[:2])
    tile = draw_region(picture, ids == number)
    return tile, "void" if label == VOID else names[label]


def draw_region(image: np.ndarray, region: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 image as a tile: its (H, W) bool region as it is, with an outline, the rest dimmed."""
    tile = fit(image, TILE)
    height, width = tile.shape[:2]
    inside = cv2.resize(region.astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST)
    outlines, _ = cv2.findContours(inside, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    dimmed = (DIMMED * tile).astype(np.uint8)
    picture = np.where(inside[..., None] > 0, tile, dimmed)
    return cv2.drawContours(picture, outlines, -1, OUTLINE, 1)
