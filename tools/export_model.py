#!/usr/bin/env python
"""Turn a finetuned detector, segmenter or depth network into a file that runs without this repository.

    python tools/export_model.py --config-file configs/toy/detection.yaml --output output/toy/detection.onnx \\
        MODEL.WEIGHTS output/toy/detection/model_final.pth

The suffix says the format: .onnx, or .ts for TorchScript. Images may have any size. Beside it lies OUTPUT's name with
.json: how an image has to be prepared, what the outputs are, and the names of the classes. The file is then run, and
compared with the network on images of noise of two sizes; one that differs is removed. Thresholds are those of the
config, such as MODEL.ROI_HEADS.SCORE_THRESH_TEST.
"""

import argparse
from pathlib import Path

from revisit.engine.command import run_command
from revisit.errors import expect


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--config-file", required=True, metavar="FILE", help="of the finetuned model, as for tools/train_net.py")
    add("--output", required=True, type=Path, metavar="FILE", help="file to write, .onnx or .ts")
    add("opts", nargs=argparse.REMAINDER, metavar="KEY VALUE", help="config overrides: MODEL.WEIGHTS FILE and others")
    parser.set_defaults(num_gpus=1, num_machines=1, resume=False)
    args = parser.parse_args()
    from projects.Predict import model_export
    from revisit.engine.setup import make_config
    from revisit.files import make_folder

    suffixes = " or ".join(model_export.SUFFIXES)
    expect(args.output.suffix in model_export.SUFFIXES, f"--output {args.output}: expected a name in {suffixes}")
    cfg = make_config(args.config_file, args.opts)
    network = model_export.load_network(cfg)
    make_folder(args.output.parent, "the folder of --output")
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
