#!/usr/bin/env python
"""Turn a pretraining checkpoint into backbone weights for every Detectron2 model here.

The checkpoint is one of our runs, or of MoCo v1/v2, DenseCL, SwAV, VirTex, torchvision, timm or the reference
code; --source auto recognises it where the names of its tensors show it. A key that has no place, or a backbone tensor
without a value, is refused by name.

Writes OUTPUT (.pth: tensors only, loads with weights_only; or .pkl, as Detectron2's model zoo) and, beside
it, OUTPUT's name with .yaml: the configuration under which the weights are valid. Finetuning reads it and
refuses another. Then:

    python tools/train_net.py --config-file configs/detection/voc_faster_rcnn_R50_C5.yaml MODEL.WEIGHTS OUTPUT
"""

import argparse
from pathlib import Path

from revisit.engine.command import run_command
from revisit.files import make_folder
from revisit.imports import import_modules

SOURCES = ("revisit", "moco", "densecl", "swav", "virtex", "torchvision", "timm", "reference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    formats = "checkpoint (.pth, .pth.tar, .pkl, .safetensors), e.g. output/model_final.pth"
    parser.add_argument("input", type=Path, help=formats)
    parser.add_argument("output", type=Path, help="weights to write, .pth or .pkl")
    parser.add_argument("--source", choices=["auto", *SOURCES], default="auto", help="layout of the input")
    parser.add_argument("--imports", nargs="*", default=[], help="modules that describe other backbones, as IMPORTS")
    args = parser.parse_args()
    from revisit.checkpoint.convert import convert
    from revisit.checkpoint.export import check_output, write_tensors
    from revisit.checkpoint.flags import flags_path, write_flags
    from revisit.checkpoint.foreign_layouts import SHARED_WITH
    from revisit.checkpoint.reading import read_checkpoint

    import_modules(args.imports)
    check_output(args.output, args.input, (".pth", ".pkl"))
    weights = convert(read_checkpoint(args.input), args.source, args.input.name)
    make_folder(args.output.parent, "the output's folder")
    # With matching_heuristics Detectron2 finds them by name in any model.
    write_tensors(weights.tensors, args.output, __author__=f"Revisit ({weights.source})", matching_heuristics=True)
    write_flags(args.output, weights.flags, source=weights.origin)
    shared = SHARED_WITH.get(weights.source) if args.source == "auto" else None
    layout = f"{weights.source} layout" + (f" ({shared})" if shared else "")
    print(f"{args.input}: {layout}, {weights.title}, {len(weights.tensors)} tensors")
    print(f"wrote {args.output} and {flags_path(args.output)}")


if __name__ == "__main__":
    run_command(main)
