#!/usr/bin/env python
"""COCO's AP of a NanoDet-g as a whole, by this project's network and evaluation: are its weights read correctly?

    python studies/coco_start/score.py --weights package/models/nanodet.json --output output/nanodet \\
        --data coco:/data/coco/val2017:/data/coco/annotations/instances_val2017.json

The weights are a graph model of TensorFlow.js, or a checkpoint of NanoDet's own code. The head, which no start takes,
is this script's: it predicts, and does not learn. Writes OUTPUT/results.json.
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from revisit.checkpoint.reading import read_checkpoint
from revisit.command.options import add, parse, parser_of
from revisit.data.sources.catalog import get_records
from revisit.engine.command import run_command
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.setup import make_config
from revisit.errors import translated
from revisit.files import make_folder, write_whole
from revisit.modeling.backbone.description import Tensors
from studies.coco_start.convert import published_names
from studies.coco_start.graph_model import read_graph_model
from studies.coco_start.nanodet import MAPS, Conv, NanoDetBackbone, published_tensors

from detectron2.layers import batched_nms
from detectron2.modeling.postprocessing import detector_postprocess
from detectron2.structures import Boxes, Instances

RECIPE = Path(__file__).with_name("detection_fpn.yaml")
SIDE = 416  # px, of the square that an image lies in
MEAN, STD = (103.53, 116.28, 123.675), (57.375, 57.12, 58.395)  # BGR
PLACES = 11  # distances from a point to a side of its box that a network weighs: 0 to 10 strides
LEAST, OVERLAP, MOST = 0.05, 0.6, 100  # score, IoU of two boxes of a class, boxes of an image


class Head(nn.Module):
    """Maps (N, C, h, w) of all strides -> of each (N, classes + 4 * PLACES, h, w)."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.cls_convs = nn.ModuleList(nn.ModuleList([Conv(channels, channels)]) for _ in MAPS)
        self.gfl_cls = nn.ModuleList(nn.Conv2d(channels, classes + 4 * PLACES, 1) for _ in MAPS)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        both = zip(self.cls_convs, self.gfl_cls, maps, strict=True)
        return [last(first(each)) for (first,), last, each in both]


class NanoDet(nn.Module):
    """The whole detector as Detectron2 calls one, for one image: a list of one dict, ``image`` (3, H, W) BGR of at most
    SIDE px -> a list of one dict, ``instances`` in the image of ``height`` and ``width``."""

    def __init__(self, tensors: Tensors):
        super().__init__()
        width, last = (len(tensors[f"{name}.weight"]) for name in ("backbone.stages.0.conv", "head.gfl_cls.0"))
        self.backbone, self.head = NanoDetBackbone(width), Head(4 * width, last - 4 * PLACES)
        ours = {name.replace("backbone.fpn.", "fpn."): name for name in self.state_dict()}
        self.load_state_dict({name: tensors[theirs] for theirs, name in ours.items()})
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)

    @torch.no_grad()
    def forward(self, batch: list[dict]) -> list[dict]:
        (item,) = batch
        image = (item["image"].to(self.mean) - self.mean) / self.std
        size = tuple(image.shape[1:])
        square = F.pad(image, (0, SIDE - size[1], 0, SIDE - size[0]))
        outputs = self.head(list(self.backbone(square[None]).values()))
        boxes, scores = (torch.cat(each) for each in zip(*map(_decoded, outputs, MAPS.values()), strict=True))
        place, kind = (scores > LEAST).nonzero(as_tuple=True)
        found = Instances(size, pred_boxes=Boxes(boxes[place]), scores=scores[place, kind], pred_classes=kind)
        kept = batched_nms(found.pred_boxes.tensor, found.scores, kind, OVERLAP)[:MOST]
        return [{"instances": detector_postprocess(found[kept], item["height"], item["width"])}]


def _decoded(output: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """(1, classes + 4 * PLACES, h, w) -> boxes (hw, 4) xyxy in px around the points, scores (hw, classes) in 0..1."""
    height, width = output.shape[-2:]
    values = output[0].flatten(1).T
    scores, weights = values.split([len(values.T) - 4 * PLACES, 4 * PLACES], dim=1)
    distances = weights.view(-1, 4, PLACES).softmax(-1) @ torch.arange(PLACES, dtype=weights.dtype) * stride
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    points = (torch.stack([columns, rows], -1).view(-1, 2) + 0.5) * stride
    boxes = torch.cat([points - distances[:, :2], points + distances[:, 2:]], dim=1)
    return boxes, scores.sigmoid()


def main() -> None:
    parser = parser_of(__doc__, __file__)
    add(parser, "weights", required=True, help="FILE.json of a graph model, or a checkpoint")
    add(parser, "data", required=True, help="COCO's images and boxes: coco:IMAGES:FILE.json")
    add(parser, "output", required=True, help="folder of results.json")
    args = parse(parser)
    make_folder(args.output, "--output")
    get_records(args.data)
    options = ["DATASETS.TEST", str((args.data,)), "INPUT.MIN_SIZE_TEST", str(SIDE), "INPUT.MAX_SIZE_TEST", str(SIDE)]
    cfg = make_config(str(RECIPE), [*options, "INPUT.FORMAT", "BGR", "OUTPUT_DIR", str(args.output)])
    with translated(f"reading {args.weights}", content=True):
        network = NanoDet(tensors_in(Path(args.weights))).eval()
    results = FinetuneTrainer.test(cfg, network)
    write_whole(args.output / "results.json", json.dumps(results))
    print(f"AP {results['bbox']['AP']:.1f}, AP50 {results['bbox']['AP50']:.1f}")


def tensors_in(path: Path) -> Tensors:
    """Of either kind of file. Raises UserError where it is neither."""
    if path.suffix == ".json":
        return published_names(read_graph_model(path))
    return published_tensors(read_checkpoint(path))


if __name__ == "__main__":
    run_command(main)
