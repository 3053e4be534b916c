#!/usr/bin/env python
"""Turn a pretraining checkpoint into backbone weights for every Detectron2 model here.

The checkpoint is one of our runs, pretrained or finetuned; a backbone or a detector of Detectron2, from its model zoo
or your own; or of MoCo v1 to v3, SimSiam, DenseCL, SwAV, DINO, VICReg, Barlow Twins, VISSL, VirTex, torchvision, timm,
the reference code, or any other with one network under one prefix. --source auto recognises it where the names of its
tensors show it (docs/weights.md has the table). Of other networks of timm's than ResNets, --timm NAME says which it is,
and with options, as in --timm vit_small_patch16_224,num_heads=12, which no name does. A key that has no place, or a
backbone tensor without a value, is refused by name.

Writes OUTPUT (.pth: loads with weights_only; or .pkl, as Detectron2's model zoo) and, next to
it, OUTPUT's name with .yaml: the configuration under which the weights are valid, and their licence where it is
known. Finetuning reads it and refuses another configuration. Then:

    python tools/train_net.py --config-file configs/detection/voc_faster_rcnn_R50_C5.yaml MODEL.WEIGHTS OUTPUT
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_folder, output_path
from revisit.plugins import import_modules

OF_FILES = ("source", "timm", "config_file", "only", "drop", "how")  # options that say what a file holds

SUFFIXES = (".pth", ".pkl")  # that Detectron2 reads

if TYPE_CHECKING:  # Detectron2 takes a second to import: not before the command line is understood
    from revisit.checkpoint.convert import BackboneWeights


def main() -> None:
    args = parse_args()
    from revisit.checkpoint.backbone_file import check_output, check_place_of_flags, load_backbone, write_backbone
    from revisit.checkpoint.convert import as_rgb
    from revisit.checkpoint.named_weights import is_named, weights_file

    import_modules(args.imports)
    if is_named(args.input):
        check_nothing_is_chosen(args)
    source = weights_file(args.input, "checkpoint")
    check_output(args.output, source, SUFFIXES)
    check_place_of_flags(args.output, SUFFIXES)
    if is_named(args.input):
        weights, notes = load_backbone(args.input), []
    else:
        weights, notes = converted(args, source)
    layout = weights.source
    if source.with_suffix(".md").is_file():
        from projects.Weights.export import as_card_says

        weights = as_card_says(weights, source)
    if args.data:
        from projects.Weights.recalibration import recalibrate

        weights = recalibrate(weights, args.data)
    if args.format == "rgb":
        weights = as_rgb(weights)
    make_folder(args.output.parent, "the output's folder")
    write_backbone(weights, args.output)
    report(args, weights, layout, notes)


def check_nothing_is_chosen(args: argparse.Namespace) -> None:
    """Raise UserError for options that say what a file holds: weights by a name are known whole."""
    chosen = {f"--{name.replace('_', '-')}": value for name, value in vars(args).items() if name in OF_FILES}
    given = [option for option, value in chosen.items() if value not in ("", [], "auto")]
    by_name = f"{args.input} is known by its name"
    expect(not given, f"{by_name}: {', '.join(given)} says what a file holds; leave it out, or name a file")


def converted(args: argparse.Namespace, source: Path) -> tuple[BackboneWeights, list[str]]:
    """The backbone of a file, and in words what was taken of it."""
    from revisit.checkpoint.convert import convert, stated_flags
    from revisit.checkpoint.reading import read_checkpoint
    from revisit.engine.merging import read_keys

    checkpoint = read_checkpoint(source)
    stated = read_keys(args.config_file) if args.config_file else {}
    if args.timm or not args.config_file:  # what the user typed counts, not a config.json
        stated |= stated_flags(source, checkpoint, args.timm)
    notes: list[str] = []
    if args.how or args.only or args.drop:
        from projects.Weights.choosing import chosen

        checkpoint, notes = chosen(checkpoint, args.how, args.only, args.drop)
    weights = convert(checkpoint, args.source, source.name, stated)
    return weights, notes


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    given = (
        "checkpoint (.pth, .pth.tar, .pkl, .safetensors), e.g. output/model_final.pth, its URL, or a name: timm:NAME"
    )
    parser.add_argument("input", help=given)
    parser.add_argument("output", type=output_path, help="weights to write, .pth or .pkl")
    source = "layout of the input, such as revisit, detectron2, moco or timm; one that does not exist lists all"
    add(parser, "source", help=source)
    only = "take only the tensors whose names begin with PREFIX, such as student., without it"
    add(parser, "only", nargs=None, default="", metavar="PREFIX", help=only)
    drop = "leave out the tensors whose names match, such as 'projector.*'; may be given several times"
    add(parser, "drop", help=drop)
    config = "config.yaml that the model was trained under; not needed for most of Detectron2's model zoo"
    add(parser, "config-file", help=config)
    timm = "network of timm's that the weights are of, as vit_small_patch16_224.dino; without a tag, timm's default"
    add(parser, "timm", help=f"{timm}; options follow as ,NAME=VALUE")
    average = "of a file with both: the moving average of the weights (model_ema, teacher), or the weights themselves"
    add(parser, "how", choices=("ema", "student"), default="", help=average)
    rgb = "weights for BGR become those for RGB, as pretraining and segmentation read"
    add(parser, "format", choices=("rgb",), help=rgb)
    add(parser, "data", help="images, such as folder:/data/photos, over which a folded batch norm gets statistics")
    add(parser, "imports")
    return parse(parser)


def report(args: argparse.Namespace, weights: object, found: str, notes: list[str]) -> None:
    from revisit.checkpoint.flags import flags_path
    from revisit.checkpoint.sources import source_layouts

    layout = f"{found} layout"
    shared = source_layouts()[found].SHARED_WITH
    if shared and args.source == "auto":
        layout = f"{layout} ({shared})"
    more = f", and {len(weights.parts)} of pyramid and box head" if weights.parts else ""
    print(f"{args.input}: {layout}, {weights.title}, {len(weights.tensors)} tensors{more}")
    for note in (*notes, *weights.notes):
        print(note)
    if weights.licence:
        warning = "WARNING: " if "non-commercial" in weights.licence else ""
        start = " that the training started from" if weights.source == "revisit" else ""
        print(f"{warning}licence of the published weights{start}: {weights.licence}")
    if any(key in weights.flags for key in weights.description.FOLDED):
        print("their batch norm has no statistics: finetune with MODEL.RESNETS.NORM FrozenBN, or --data IMAGES")
    print(f"wrote {args.output} and {flags_path(args.output)}")


if __name__ == "__main__":
    run_command(main)
