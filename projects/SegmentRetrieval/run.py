#!/usr/bin/env python
"""Name the regions of images by their nearest labelled region, with frozen features (Pascal VOC).

    python projects/SegmentRetrieval/run.py --config-file projects/SegmentRetrieval/configs/voc_R50.yaml \\
        --weights backbone.pth --output output/segments

K-means splits each image's feature map into regions. A region of DATASETS.TEST takes the label of the nearest
region of DATASETS.TRAIN; DIR/results.json has the mIoU over all classes and over SEGMENT_RETRIEVAL.SUBSET, and
DIR/gallery.png shows regions beside their nearest ones.
"""

from pathlib import Path

from projects.common.entry import expect_positive, load_project, only_dataset, write_results
from projects.common.frozen_backbone import FrozenBackbone
from projects.SegmentRetrieval.retrieval import describe_set, evaluate, gallery_rows
from revisit.config import expect_one_of
from revisit.data.catalog import get_records
from revisit.data.labels import VOID
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.viz.tiles import save_sheet

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog


def add_segment_retrieval_config(cfg: CfgNode) -> None:
    """Add SEGMENT_RETRIEVAL to a config, in place. The labelled images are DATASETS.TRAIN, the others DATASETS.TEST."""
    cfg.SEGMENT_RETRIEVAL = options = CfgNode()
    options.IMAGE_SIZE = 512  # px, both sides; the aspect ratio is given up
    options.NUM_REGIONS = 15  # K of K-means, per image
    options.NORMALIZE = True  # unit features before they are clustered and averaged
    options.REGIONS = "kmeans"  # truth: the classes of the mask
    options.FEATURES = "network"  # oracle: a cell's true class, with REGIONS truth, which must give 100
    options.SHUFFLE_LABELS = False  # give each labelled region another one's label: what chance reaches
    # Beside all classes, these alone: the others are void, and the mean leaves the background out.
    options.SUBSET = ("aeroplane", "bottle", "bus", "car", "cat", "cow", "person")
    options.GALLERY_QUERIES = 8  # rows of gallery.png
    options.GALLERY_NEIGHBORS = 5  # nearest labelled regions in each


def main() -> None:
    cfg = load_project(__doc__, add_segment_retrieval_config)
    names, output = check(cfg), Path(cfg.OUTPUT_DIR)
    backbone = FrozenBackbone(cfg)
    labelled, queries = (describe_set(backbone, cfg, only_dataset(cfg, split)) for split in ("TRAIN", "TEST"))
    everything = range(len(names))
    background = [c for c in everything if names[c] == "background"]
    subset = [names.index(name) for name in cfg.SEGMENT_RETRIEVAL.SUBSET]
    results, lines = {}, []
    for kept, counted in ((everything, everything), ([*background, *subset], subset)):
        mean, per_class = evaluate(cfg, labelled, queries, names, kept, counted)
        results[f"mIoU_{len(counted)}"] = round(mean, 2)
        results[f"IoU_{len(counted)}"] = {name: round(value, 2) for name, value in per_class.items()}
        lines.append(f"mIoU over {len(counted)} classes: {mean:.1f}")
    write_results(cfg, protocol(cfg), results)
    rows = gallery_rows(cfg, labelled, queries, names)
    headers = ["query", *(f"nearest {n}" for n in range(1, len(rows[0].tiles)))]
    save_sheet(output / "gallery.png", rows, headers)
    print(*lines, f"written to {output}: results.json and gallery.png", sep="\n")


def check(cfg: CfgNode) -> list[str]:
    """Names of the classes. Raises UserError for options that mean nothing, and for data that is not there."""
    options = cfg.SEGMENT_RETRIEVAL
    expect_one_of(cfg, "SEGMENT_RETRIEVAL.REGIONS", ("kmeans", "truth"))
    expect_one_of(cfg, "SEGMENT_RETRIEVAL.FEATURES", ("network", "oracle"))
    fits = options.FEATURES != "oracle" or options.REGIONS == "truth"
    expect(fits, "SEGMENT_RETRIEVAL.FEATURES oracle describes true regions: set SEGMENT_RETRIEVAL.REGIONS truth")
    positive = ("IMAGE_SIZE", "NUM_REGIONS", "GALLERY_QUERIES", "GALLERY_NEIGHBORS")
    expect_positive(cfg, *(f"SEGMENT_RETRIEVAL.{name}" for name in positive))
    few = options.NUM_REGIONS < VOID
    expect(few, f"SEGMENT_RETRIEVAL.NUM_REGIONS is {options.NUM_REGIONS}: expected less than {VOID}")
    classes = []
    for dataset in (only_dataset(cfg, split) for split in ("TRAIN", "TEST")):
        masks = "sem_seg_file_name" in get_records(dataset)[0]
        expect(masks, f"data set {dataset!r} has no masks, which name the regions")
        classes.append(list(MetadataCatalog.get(dataset).stuff_classes))
    expect(classes[0] == classes[1], "DATASETS.TRAIN and DATASETS.TEST have different classes: expected the same")
    known = bool(options.SUBSET) and set(options.SUBSET) <= set(classes[0])
    expect(known, f"SEGMENT_RETRIEVAL.SUBSET {tuple(options.SUBSET)}: expected some of {', '.join(classes[0])}")
    return classes[0]


def protocol(cfg: CfgNode) -> str:
    """What the numbers mean, in words."""
    options = cfg.SEGMENT_RETRIEVAL
    regions = f"K-means {options.NUM_REGIONS}" if options.REGIONS == "kmeans" else "true regions"
    chance = ", labels shuffled" if options.SHUFFLE_LABELS else ""
    kind = f"{'unit' if options.NORMALIZE else 'raw'} {options.FEATURES}"
    return f"{kind} features at {options.IMAGE_SIZE} px, {regions}, cosine 1-NN{chance}; mIoU in percent"


if __name__ == "__main__":
    run_command(main)
