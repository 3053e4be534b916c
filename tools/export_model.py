#!/usr/bin/env python
"""Turn a finetuned detector, segmenter or depth network into a file that runs without this repository.

    python tools/export_model.py --weights output/toy/detection/model_final.pth --output output/toy/detection.onnx

The suffix says the format: .onnx, or .ts for TorchScript. Images may have any size. Beside it lies OUTPUT's name with
.json: how an image has to be prepared, what the outputs are, and the names of the classes. The file is then run, and
compared with the network on images of noise of two sizes; one that differs is removed. Thresholds are those of the
checkpoint's config, or of KEY VALUE, such as MODEL.ROI_HEADS.SCORE_THRESH_TEST 0.5.
"""

import argparse

from projects.Predict.command_line import add_network_options
from revisit.engine.command import parse_with_pairs, run_command
from revisit.errors import expect
from revisit.files import make_folder, output_path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add_network_options(parser)
    add("--output", required=True, type=output_path, metavar="FILE", help="file to write, .onnx or .ts")
    add("opts", nargs=argparse.REMAINDER, metavar="KEY VALUE", help="override the config: pairs, after --opts or not")
    args = parse_with_pairs(parser)
    from projects.Predict import model_export
    from projects.Predict.predictions import finetuned_config

    suffixes = " or ".join(model_export.SUFFIXES)
    expect(args.output.suffix in model_export.SUFFIXES, f"--output {args.output}: expected a name in {suffixes}")
    cfg = finetuned_config(args)
    network = model_export.load_network(cfg)
    make_folder(args.output.parent, "the folder of --output")
    args.output.with_suffix(".json").unlink(missing_ok=True)  # of an earlier network
    model_export.export(network, args.output)
    comparison = model_export.compare(network, args.output)
    if not comparison.is_close:
        args.output.unlink()
    what = f"{comparison.boxes} boxes in two images of noise" if "boxes" in network.outputs else "two images of noise"
    found = f"over {what} its outputs and the network's differ by {comparison.largest:.1e} at most"
    expect(comparison.is_close, f"{args.output} does not compute what the network does and was removed: {found}")
    card = model_export.write_card(network, cfg, args.output)
    print(f"wrote {args.output} and {card}: image -> {', '.join(network.outputs)}\n{found}")


if __name__ == "__main__":
    run_command(main)
