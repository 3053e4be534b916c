#!/usr/bin/env python
"""Name the regions of images by their nearest labelled region, with frozen features (Pascal VOC).

    python projects/SegmentRetrieval/run.py --config-file projects/SegmentRetrieval/configs/voc_R50.yaml \\
        --weights backbone.pth --output output/segments

K-means splits each image's feature map into regions. A region of DATASETS.TEST takes the label of the nearest
region of DATASETS.TRAIN; DIR/results.json has the mIoU over all classes and over SEGMENT_RETRIEVAL.SUBSET, and
DIR/gallery.png shows regions beside their nearest ones.
"""

from __future__ import annotations

from projects.common.entry import load_study, parse_study_args, write_results
from projects.common.frozen_backbone import FrozenBackbone
from projects.SegmentRetrieval.config import FEATURES, REGIONS, add_segment_retrieval_config
from projects.SegmentRetrieval.described import describe_set
from projects.SegmentRetrieval.gallery import gallery_rows, save_gallery
from projects.SegmentRetrieval.retrieval import evaluate
from revisit.data.catalog import get_records
from revisit.data.labels import VOID
from revisit.engine.command import run_command
from revisit.errors import UserError

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog


def main() -> None:
    args = parse_study_args(__doc__)
    cfg = load_study(args, add_segment_retrieval_config)
    names = check(cfg)
    backbone = FrozenBackbone(cfg)
    labelled, queries = (describe_set(backbone, cfg, dataset[0]) for dataset in (cfg.DATASETS.TRAIN, cfg.DATASETS.TEST))
    everything = range(len(names))
    background = [c for c in everything if names[c] == "background"]
    subset = [names.index(name) for name in cfg.SEGMENT_RETRIEVAL.SUBSET]
    results = {"protocol": protocol(cfg), "weights": args.weights}
    for kept, counted in ((everything, everything), ([*background, *subset], subset)):
        mean, per_class = evaluate(cfg, labelled, queries, names, kept, counted)
        results[f"mIoU_{len(counted)}"] = round(mean, 2)
        results[f"IoU_{len(counted)}"] = {name: round(value, 2) for name, value in per_class.items()}
    write_results(args.output, results)
    save_gallery(args.output / "gallery.png", gallery_rows(cfg, labelled, queries, names))
    for count in (len(everything), len(subset)):
        print(f"mIoU over {count} classes: {results[f'mIoU_{count}']:.1f}")
    print(f"written to {args.output}: results.json and gallery.png")


def check(cfg: CfgNode) -> list[str]:
    """Names of the classes. Raises UserError for options that mean nothing, and for data that is not there."""
    options = cfg.SEGMENT_RETRIEVAL
    for name, choices in (("REGIONS", REGIONS), ("FEATURES", FEATURES)):
        if options[name] not in choices:
            raise UserError(f"SEGMENT_RETRIEVAL.{name} is {options[name]!r}, expected one of {', '.join(choices)}")
    if options.FEATURES == "oracle" and options.REGIONS != "truth":
        raise UserError("SEGMENT_RETRIEVAL.FEATURES oracle describes true regions: set SEGMENT_RETRIEVAL.REGIONS truth")
    for name in ("IMAGE_SIZE", "NUM_REGIONS", "GALLERY_QUERIES", "GALLERY_NEIGHBORS"):
        if options[name] < 1:
            raise UserError(f"SEGMENT_RETRIEVAL.{name} is {options[name]}: expected 1 or more")
    if options.NUM_REGIONS >= VOID:
        raise UserError(f"SEGMENT_RETRIEVAL.NUM_REGIONS is {options.NUM_REGIONS}: expected less than {VOID}")
    classes = []
    for key in ("TRAIN", "TEST"):
        if len(cfg.DATASETS[key]) != 1:
            raise UserError(f"DATASETS.{key} is {tuple(cfg.DATASETS[key])}: expected one data set")
        (dataset,) = cfg.DATASETS[key]
        records = get_records(dataset)
        if "sem_seg_file_name" not in records[0]:
            raise UserError(f"data set {dataset!r} has no masks, which name the regions")
        classes.append(list(MetadataCatalog.get(dataset).stuff_classes))
    if classes[0] != classes[1]:
        raise UserError("DATASETS.TRAIN and DATASETS.TEST count different classes: expected the same")
    unknown = [name for name in options.SUBSET if name not in classes[0]]
    if unknown or not options.SUBSET:
        raise UserError(f"SEGMENT_RETRIEVAL.SUBSET {tuple(options.SUBSET)}: expected some of {', '.join(classes[0])}")
    return classes[0]


def protocol(cfg: CfgNode) -> str:
    options = cfg.SEGMENT_RETRIEVAL
    regions = f"K-means {options.NUM_REGIONS}" if options.REGIONS == "kmeans" else "true regions"
    chance = ", labels shuffled" if options.SHUFFLE_LABELS else ""
    kind = f"{'unit' if options.NORMALIZE else 'raw'} {options.FEATURES}"
    return f"{kind} features at {options.IMAGE_SIZE} px, {regions}, cosine 1-NN{chance}; mIoU in percent"


if __name__ == "__main__":
    run_command(main)
