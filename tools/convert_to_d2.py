#!/usr/bin/env python
"""Turn a pretraining checkpoint into backbone weights for every Detectron2 model here.

The checkpoint is one of our runs, pretrained or finetuned; a backbone or a detector of Detectron2, from its model zoo
or your own; or of MoCo v1 to v3, SimSiam, DenseCL, SwAV, DINO, VICReg, Barlow Twins, VISSL, VirTex, torchvision, timm,
the reference code, or any other with one network under one prefix. --source auto recognises it where the names of its
tensors show it. Of other networks of timm's than ResNets,
--timm NAME says which it is, and with options, as in --timm vit_small_patch16_224,num_heads=12, which no name does. A
key that has no place, or a backbone tensor without a value, is refused by name.

Writes OUTPUT (.pth: tensors only, loads with weights_only; or .pkl, as Detectron2's model zoo) and, beside
it, OUTPUT's name with .yaml: the configuration under which the weights are valid, and their licence where it is
known. Finetuning reads it and refuses another configuration. Then:

    python tools/train_net.py --config-file configs/detection/voc_faster_rcnn_R50_C5.yaml MODEL.WEIGHTS OUTPUT
"""

import argparse
from pathlib import Path

from revisit.engine.command import run_command
from revisit.files import make_folder, output_path
from revisit.imports import import_modules

SOURCES = ("revisit", "detectron2", "reference", "moco", "moco_v3", "simsiam", "dino", "barlow_twins", "vicreg")
SOURCES += ("densecl", "swav", "vissl", "virtex", "torchvision", "timm", "other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("input", help="checkpoint (.pth, .pth.tar, .pkl, .safetensors), e.g. output/model_final.pth; or the URL of one")
    add("output", type=output_path, help="weights to write, .pth or .pkl")
    add("--source", choices=["auto", *SOURCES], default="auto", help="layout of the input")
    config = "config.yaml that the model was trained under; not needed for most of Detectron2's model zoo"
    strip = "take only the tensors whose names begin with PREFIX, such as student., without it"
    add("--strip", metavar="PREFIX", default="", help=strip)
    drop = "leave out the tensors whose names match, such as 'projector.*'; may be given several times"
    add("--drop", metavar="PATTERN", action="append", default=[], help=drop)
    add("--config", metavar="FILE", default="", help=config)
    timm = (
        "network of timm's that the weights are of, such as vit_small_patch16_224.dino: without a tag, timm's default; "
    )
    add("--timm", metavar="NAME", default="", help=f"{timm}options follow as ,NAME=VALUE")
    average = "of a file with both: the moving average of the weights (model_ema, teacher), or the weights themselves"
    add("--weights-of", choices=["ema", "student"], default="", help=average)
    add("--rgb", action="store_true", help="weights for BGR become those for RGB, as pretraining and segmentation read")
    recalibrate = "images, such as folder:/data/photos, over which a folded batch norm gets statistics"
    add("--recalibrate", metavar="IMAGES", default="", help=recalibrate)
    add("--imports", nargs="*", default=[], help="modules that describe other backbones, as IMPORTS")
    args = parser.parse_args()
    from revisit.checkpoint.convert import as_rgb, convert, stated_flags
    from revisit.checkpoint.export import check_output, write_tensors
    from revisit.checkpoint.flags import flags_path, write_flags
    from revisit.checkpoint.foreign_layouts import SHARED_WITH
    from revisit.checkpoint.reading import read_checkpoint
    from revisit.engine.merging import read_keys
    from revisit.urls import local_copy

    import_modules(args.imports)
    source = local_copy(args.input, "checkpoint")
    check_output(args.output, source, (".pth", ".pkl"))
    checkpoint = read_checkpoint(source)
    stated = read_keys(args.config) if args.config else {}
    if args.timm or not args.config:  # what the user typed counts, not a config.json
        stated |= stated_flags(source, checkpoint, args.timm)
    weights = convert(checkpoint, args.source, source.name, stated, args.weights_of, args.strip, args.drop)
    if args.recalibrate:
        from revisit.engine.recalibration import recalibrate

        weights = recalibrate(weights, args.recalibrate)
    if args.rgb:
        weights = as_rgb(weights)
    make_folder(args.output.parent, "the output's folder")
    tensors, author = weights.tensors | weights.parts, f"Revisit ({weights.source})"
    shared = SHARED_WITH.get(weights.source) if args.source == "auto" else None

    def write_beside(file: Path) -> None:
        write_flags(args.output, weights.flags, weights.origin, weights.licence, file)

    # Found by name in any model.
    write_tensors(tensors, args.output, write_beside, __author__=author, matching_heuristics=True)
    layout = f"{weights.source} layout" + (f" ({shared})" if shared else "")
    more = f", and {len(weights.parts)} of pyramid and box head" if weights.parts else ""
    print(f"{args.input}: {layout}, {weights.title}, {len(weights.tensors)} tensors{more}")
    for line in weights.assumed:
        print(line)
    if weights.licence:
        warning = "WARNING: " if "non-commercial" in weights.licence else ""
        whose = "published weights" + (" that the training started from" if weights.source == "revisit" else "")
        print(f"{warning}licence of the {whose}: {weights.licence}")
    if any(key in weights.flags for key in weights.description.FOLDED):
        print("their batch norm has no statistics: finetune with MODEL.RESNETS.NORM FrozenBN, or --recalibrate IMAGES")
    print(f"wrote {args.output} and {flags_path(args.output)}")


if __name__ == "__main__":
    run_command(main)
