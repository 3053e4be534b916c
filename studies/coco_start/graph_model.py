"""Read a TensorFlow.js graph model, a JSON file and the weights next to it, into numpy arrays by name.

What the files say is data: nothing of them is run, and the names of files that they state are not followed.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from revisit.errors import UserError, expect, translated

DTYPES = {"float32": "<f4", "float16": "<f2", "int32": "<i4"}  # as the weights' file has them
MOST_PLACES = 8  # dimensions of an array


class Node(NamedTuple):
    """An operation of the graph."""

    op: str
    inputs: tuple[str, ...]  # names of nodes


class GraphModel(NamedTuple):
    nodes: dict[str, Node]
    weights: dict[str, np.ndarray]  # float32 or int32, in TensorFlow's order: (height, width, in, out)


def read_graph_model(path: Path) -> GraphModel:
    """Of ``path``, FILE.json, and of FILE.bin next to it.

    Raises:
        UserError: a file that is missing or is none of these, weights of other sizes than their file, or in another
            form than numbers, whole or halved (float16).
    """
    weights = path.with_suffix(".bin")
    for file in (path, weights):
        expect(file.is_file(), f"{file} is not there: expected a graph model of TensorFlow.js, FILE.json and FILE.bin")
    with translated(f"reading {path}", content=True):
        content = json.loads(path.read_text(encoding="utf-8"))
        nodes = {str(each["name"]): _node(each) for each in content["modelTopology"]["node"]}
        listed = [each for group in content["weightsManifest"] for each in group["weights"]]
        entries = [(str(each["name"]), _shape(each["shape"]), _dtype(each)) for each in listed]
    return GraphModel(nodes, _arrays(weights, entries))


def _node(stated: dict[str, Any]) -> Node:
    return Node(str(stated["op"]), tuple(map(str, stated.get("input", ()))))


def _shape(stated: list) -> tuple[int, ...]:
    is_one = len(stated) <= MOST_PLACES and all(type(side) is int and side >= 0 for side in stated)
    if not is_one:
        raise ValueError(f"the shape {str(stated)[:60]}: expected whole numbers")
    return tuple(stated)


def _dtype(stated: dict[str, Any]) -> np.dtype:
    """Of a weight in its file, where it may be shorter than in the graph."""
    name = stated.get("quantization", stated)["dtype"]
    if name not in DTYPES:
        raise ValueError(f"{str(stated['name'])[:60]} is {str(name)[:60]}: expected {', '.join(DTYPES)}")
    return np.dtype(DTYPES[name])


def _arrays(path: Path, entries: list[tuple[str, tuple[int, ...], np.dtype]]) -> dict[str, np.ndarray]:
    """The arrays lie one after the other, and fill the file."""
    sizes = [math.prod(shape) * dtype.itemsize for _, shape, dtype in entries]
    there, stated = path.stat().st_size, sum(sizes)
    if there != stated:
        raise UserError(f"{path} has {there:,} bytes, and its JSON file states {stated:,}: expected a whole pair")
    content, start, arrays = path.read_bytes(), 0, {}
    for (name, shape, dtype), size in zip(entries, sizes, strict=True):
        values = np.frombuffer(content, dtype, math.prod(shape), start).reshape(shape)
        arrays[name] = values.astype(np.float32) if dtype.kind == "f" else values
        start += size
    return arrays
