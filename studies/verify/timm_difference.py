#!/usr/bin/env python
"""The largest difference between a converted backbone's last map and that of timm's network with the same tensors.

    python studies/verify/timm_difference.py --weights backbone.pth --original efficientnet-lite0-57934424.pth \\
        --output output/difference

The original file has timm's tensors under timm's names, or in timm's order under its own.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn

from revisit.engine.command import run_command
from revisit.files import make_folder, output_path, write_whole

SIDE = 224  # px


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True, help="the converted backbone")
    parser.add_argument("--original", required=True, help="the file that it was converted from")
    parser.add_argument("--output", type=output_path, required=True, metavar="DIR", help="folder of results.json")
    args = parser.parse_args()
    make_folder(args.output, "--output")
    write_whole(args.output / "results.json", json.dumps({"difference": difference(args.weights, args.original)}))


def difference(weights: str, original: str) -> float:
    """On four images of noise, as float32."""
    import revisit

    backbone = revisit.load_backbone(weights)
    network = timms_network(backbone.flags["MODEL.TIMM.NAME"], original)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    with torch.no_grad():
        maps = list(backbone(images).values())
        expected = network.forward_intermediates(backbone.normalized(images), intermediates_only=True)
    return float((maps[-1] - expected[-1]).abs().max())


def timms_network(name: str, original: str) -> nn.Module:
    """Timm's network of that name with the tensors of the original file, in evaluation mode."""
    import timm

    from revisit.checkpoint.reading import read_checkpoint

    network = timm.create_model(name).eval()
    tensors = read_checkpoint(Path(original))
    network.load_state_dict(dict(zip(network.state_dict(), tensors.values(), strict=True)))
    return network


if __name__ == "__main__":
    run_command(main)
