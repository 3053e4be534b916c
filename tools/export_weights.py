#!/usr/bin/env python
"""Turn a backbone into weights that torchvision's and timm's ResNets load, or the network of timm's that it is.

BACKBONE is what tools/convert_to_d2.py wrote, with its .yaml next to it, or any checkpoint that it converts, such
as a run's model_final.pth. Writes OUTPUT, a bare state_dict (.pth) or .safetensors by its suffix, and next to
it OUTPUT's name with .md: a model card that says which input the weights expect and how to load them.

    python tools/export_weights.py output/knn_moco/backbone.pth output/knn_moco/resnet50.safetensors --format timm

Both libraries have the same names of a ResNet's tensors; --format says for which of them the card is written first.
"""

from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.files import make_folder, output_path, written_whole
from revisit.plugins import import_modules


def main() -> None:
    parser = parser_of(__doc__, __file__)
    parser.add_argument("backbone", help="weights of tools/convert_to_d2.py, or a checkpoint; a file, a URL or a name")
    parser.add_argument("output", type=output_path, help="weights to write, .pth or .safetensors")
    add(parser, "format", choices=["torchvision", "timm"], required=True, help="library that is to load them")
    add(parser, "imports")
    args = parse(parser)
    from projects.Weights.export import SUFFIXES, forget_card, library_tensors, model_card
    from revisit.checkpoint.backbone_file import check_output, load_backbone, write_tensors
    from revisit.checkpoint.flags import IMAGENET
    from revisit.files import local_copy

    import_modules(args.imports)
    check_output(args.output, local_copy(args.backbone, "checkpoint"), SUFFIXES)
    backbone = load_backbone(args.backbone)
    tensors = library_tensors(backbone, args.format)
    make_folder(args.output.parent, "the output's folder")
    card = forget_card(args.output)
    write_tensors(tensors, args.output)
    with written_whole(card) as temporary:
        temporary.write_text(model_card(backbone, args.output, args.format))
    if not all(backbone.flags[key] == value for key, value in IMAGENET.items()):
        print("its pixel statistics are not ImageNet's: from now on only the card says so")
    origin = backbone.origin or "an unknown source"
    print(f"{args.backbone}: {backbone.title}, {len(tensors)} tensors, from {origin}\nwrote {args.output} and {card}")


if __name__ == "__main__":
    run_command(main)
