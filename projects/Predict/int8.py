"""An exported detector whose convolutions compute in 8-bit integers, by static calibration on images.

Weights are int8 with a scale for each output channel, activations uint8 with one scale each, from the smallest and the
largest value that the images give (Jacob et al., Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference, arXiv 1712.05877). ONNX Runtime reads the scales from pairs of QuantizeLinear and
DequantizeLinear nodes, and other runtimes do, too.
"""

import contextlib
import logging
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from projects.Predict.model_export import require_runtime
from revisit.files import written_whole

LAYERS, ACTIVATIONS = frozenset({"Conv", "Gemm"}), frozenset({"Relu", "Clip"})
# Parts of a layer's name. The first ones give scores and boxes, whose last bits decide; the others see only what was
# found, in some images nothing, which no calibration can measure.
FLOAT = ("objectness_logits", "anchor_deltas", "cls_score", "bbox_pred", "mask_head", "keypoint_head")
PYRAMID = "/backbone/"


def quantize(path: Path, target: Path, images: Iterable[Tensor], *, pyramid_only: bool = False) -> int:
    """Write the .onnx file ``target`` from the float32 one ``path``, whole or not at all.

    Args:
        images: (C, H, W), 0..255, as the network sees them; a few dozen, like those that it will see.
        pyramid_only: the backbone with its feature pyramid alone; else also the layers of the heads but FLOAT.

    Returns: how many layers compute in integers.
    """
    quantization = require_runtime("onnxruntime.quantization")
    shape_inference = require_runtime("onnxruntime.quantization.shape_inference")
    with tempfile.TemporaryDirectory() as folder, _quiet(), written_whole(target) as temporary:
        prepared = Path(folder) / "prepared.onnx"
        shape_inference.quant_pre_process(path, prepared, skip_symbolic_shape=True)
        graph = require_runtime("onnx").load(prepared).graph
        layers, activations = _nodes_of(graph, pyramid_only)
        quantization.quantize_static(
            prepared,
            temporary,
            _reader(quantization.CalibrationDataReader, images),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=[*LAYERS, *ACTIVATIONS],
            per_channel=True,
            nodes_to_quantize=[*layers, *activations],
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
    return len(layers)


def _nodes_of(graph: Any, pyramid_only: bool) -> tuple[list[str], list[str]]:
    """The names of layers, and of the activations after them.

    With its activation a layer's range is that of what leaves both; without, the values that a Clip cuts off would
    stretch it, which costs points of AP. Other Clips, such as that of boxes, stay as they are.
    """
    layers = [node for node in graph.node if node.op_type in LAYERS and _is_integer(node.name, pyramid_only)]
    outputs = {node.output[0] for node in layers}
    activations = [node for node in graph.node if node.op_type in ACTIVATIONS and node.input[0] in outputs]
    return [node.name for node in layers], [node.name for node in activations]


def _is_integer(name: str, pyramid_only: bool) -> bool:
    if pyramid_only:
        return name.startswith(PYRAMID)
    return not any(part in name for part in FLOAT)


def _reader(base: type, images: Iterable[Tensor]) -> Any:
    """The images as ONNX Runtime asks for them: a dict each, then None."""

    class Reader(base):
        def __init__(self) -> None:
            self._images = iter(images)

        def get_next(self) -> dict | None:
            image = next(self._images, None)
            return None if image is None else {"image": image.float().numpy()}

    return Reader()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without ONNX Runtime's warnings through the root logger, which advise what is done."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
