"""Ways to run an exported network, each a function of one image, on the CPU with a number of threads."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from projects.Predict.int8 import quantize
from projects.Predict.model_export import ExportedNetwork, Session, export, load_torchscript, open_session

# By name: the suffix of its file, and what it computes in.
RUNTIMES = {
    "torch": ("", "float32"),
    "torchscript": (".ts", "float32"),
    "onnx": (".onnx", "float32"),
    "int8": ("_int8.onnx", "int8"),
    "int8_pyramid": ("_int8_pyramid.onnx", "int8, heads float32"),
}


class Runtime(NamedTuple):
    """A network in a runtime."""

    name: str
    precision: str
    path: Path | None  # of its file
    run: Session


def open_runtimes(
    network: ExportedNetwork, names: list[str], folder: Path, images: list[Tensor], threads: int
) -> list[Runtime]:
    """Write the files of these runtimes, detector.ts and so on, into the folder, and load them.

    ``images``: (C, H, W), which int8 is calibrated by; it is made from the file of onnx, which comes before it.
    """
    torch.set_num_threads(threads)
    return [_open(name, network, folder, images, threads) for name in names]


def _open(name: str, network: ExportedNetwork, folder: Path, images: list[Tensor], threads: int) -> Runtime:
    suffix, precision = RUNTIMES[name]
    if name == "torch":
        return Runtime(name, precision, None, lambda image: list(network(image)))
    path = folder / f"detector{suffix}"
    if name in ("torchscript", "onnx"):
        export(network, path)
    else:
        quantize(folder / "detector.onnx", path, images, pyramid_only=name == "int8_pyramid")
    run = load_torchscript(path) if name == "torchscript" else open_session(path, threads)
    return Runtime(name, precision, path, run)
