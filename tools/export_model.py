#!/usr/bin/env python
"""Turn a finetuned detector, segmenter or depth network into a file that runs without this repository.

    python tools/export_model.py --weights output/toy/detection/model_final.pth --output output/toy/detection.onnx

The suffix says the format: .onnx, or .ts for TorchScript. Images may have any size. Beside it lies OUTPUT's name with
.json: how an image has to be prepared, what the outputs are, and the names of the classes. The file is then run, and
compared with the network on images of --data, or else on noise of two sizes; one that differs is removed. Thresholds
are those of the checkpoint's config, or of KEY VALUE, such as MODEL.ROI_HEADS.SCORE_THRESH_TEST 0.5. How fast the file
is, what it scores, and the same in 8-bit integers: tools/benchmark.py.
"""

from projects.Predict.command_line import add_network_options
from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_place

COMPARED = 8  # images, spread over those of --data


def main() -> None:
    parser = parser_of(__doc__, __file__)
    add_network_options(parser)
    add(parser, "output", required=True, metavar="FILE", help="file to write, .onnx or .ts")
    add(parser, "data", nargs="+", default=[], type=str, help="images with objects: files, folders, data sets")
    add(parser, "opts")
    args = parse(parser)
    from projects.Pixels.channel_files import files_of_others
    from projects.Predict import model_export
    from projects.Predict.file_predictions import find_sources
    from projects.Predict.predictions import finetuned_config
    from revisit.data.images.deep_images import pixel_format
    from revisit.keys import Facts, resolve_auto_values

    make_place(args.output, "--output", *model_export.SUFFIXES)
    model_export.check_place_of_card(args.output)
    cfg = finetuned_config(args)
    sources = find_sources(args.data, args.output)
    files = [str(source.path) for source in sources if not source.is_video]
    others = files_of_others(files, pixel_format(cfg).files)
    records = [{"file_name": file} for file in files if file not in others]
    expect(bool(records) or not sources, "--data names videos alone: expected images to compare on")
    if records:
        resolve_auto_values(cfg, Facts(records=records))
    network = model_export.load_network(cfg)
    images = model_export.network_images(cfg, records, COMPARED) or model_export.noise_images(network.channels)
    model_export.card_of(args.output).unlink(missing_ok=True)  # of an earlier network
    model_export.export(network, args.output)
    comparison = model_export.compare(network, args.output, images)
    if not comparison.is_close:
        args.output.unlink()
    over = "images of --data" if records else "two images of noise"
    what = f"{comparison.boxes} boxes in {over}" if "boxes" in network.outputs else over
    found = f"over {what} its outputs and the network's differ by {comparison.largest:.1e} at most"
    expect(comparison.is_close, f"{args.output} does not compute what the network does and was removed: {found}")
    card = model_export.write_card(network, cfg, args.output)
    print(f"wrote {args.output} and {card}: image -> {', '.join(network.outputs)}\n{found}")
    if "boxes" in network.outputs and not comparison.boxes:
        print("warning: no box was there to compare: name images with objects by --data, or a lower SCORE_THRESH_TEST")


if __name__ == "__main__":
    run_command(main)
