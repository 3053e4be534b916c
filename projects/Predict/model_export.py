"""A finetuned network as a file that runs without this repository: TorchScript or ONNX."""

import io
import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from projects.Predict.predictions import heads_of, load_finetuned
from revisit.checkpoint.backbone_file import check_place_next_to
from revisit.data.images.deep_images import pixel_format
from revisit.data.sources.records import Records, sample
from revisit.engine.finetune_trainer import build_mapper
from revisit.errors import UserError, without_secrets
from revisit.files import read_json, write_whole, written_whole
from revisit.keys import DETECTORS, PIXELWISE
from revisit.plugins import require_package

from detectron2.config import CfgNode

SUFFIXES = (".onnx", ".ts")
_OPSET = 17  # of ONNX: the first with all operators that these networks need
_SIZES = ((160, 128), (128, 160))  # px, of images of noise
_ERRORS = 3  # of ONNX Runtime's levels of messages: no warnings
_CLOSE = 1e-3  # of scores and logits; boxes of such sizes differ by a tenth of it
_COUNTING = ("fast_rcnn", "mask_head", "keypoint_head")  # modules that take len() of what they found

Session = Callable[[Tensor], list[Tensor]]  # (C, H, W) float32 to what ExportedNetwork returns


class ExportedNetwork(nn.Module):
    """A network as a function of tensors alone.

    Takes one image, (C, H, W) float32 in 0..255, with its channels in the order of INPUT.CHANNELS, else INPUT.FORMAT,
    and of the size that the network sees. Returns, for detectors, ``boxes`` (N, 4) float32 in its pixels, x0 y0 x1 y1,
    ``scores`` (N,) and ``classes`` (N,) int64, the best first, and with a mask head ``masks`` (N, 1, M, M)
    probabilities inside the boxes;
    for segmenters ``logits`` (classes, H, W); for depth ``depth`` (H, W) in metres.
    """

    def __init__(self, model: nn.Module, cfg: CfgNode, classes: list[str]):
        super().__init__()
        self.model, self.classes = model, classes
        self.kind, self.channels = cfg.MODEL.META_ARCHITECTURE, len(cfg.MODEL.PIXEL_MEAN)
        outputs = {"SemanticSegmentor": ["logits"], "DepthEstimator": ["depth"]}
        masks = ["masks"] if self.kind == "GeneralizedRCNN" and cfg.MODEL.MASK_ON else []
        self.outputs = outputs.get(self.kind, ["boxes", "scores", "classes", *masks])
        self.threshold = heads_of(cfg).SCORE_THRESH_TEST  # of detectors
        self.most = cfg.TEST.DETECTIONS_PER_IMAGE
        self.eval()

    @torch.no_grad()
    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        if self.kind in PIXELWISE:
            record = {"image": image, "height": image.shape[1], "width": image.shape[2]}
            (found,) = self.model([record])[0].values()
            return (found,)
        with _traceable_len():
            found = self._detect([{"image": image}])
        masks = (found.pred_masks,) if found.has("pred_masks") else ()
        return found.pred_boxes.tensor, found.scores, found.pred_classes, *masks

    def _detect(self, records: list[dict]) -> object:
        """Instances in the network's own pixels: bringing them to the file's size is the caller's."""
        model = self.model
        if self.kind == "GeneralizedRCNN":
            return model.inference(records, do_postprocess=False)[0]
        images = model.preprocess_image(records)
        maps = model.backbone(images.tensor)
        maps = [maps[name] for name in model.head_in_features]
        return model.forward_inference(images, maps, model.head(maps))[0]


def load_network(cfg: CfgNode) -> ExportedNetwork:
    """The network of MODEL.WEIGHTS, on the CPU."""
    cfg = cfg.clone()
    cfg.MODEL.DEVICE = "cpu"
    model, classes = load_finetuned(cfg)
    return ExportedNetwork(model.requires_grad_(False), cfg, classes)


def export(network: ExportedNetwork, path: Path) -> None:
    """Write .onnx or .ts, for images of any size, whole or not at all."""
    image, _ = noise_images(network.channels)
    with written_whole(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of each branch that depends on a value; the comparison is what shows
        if path.suffix.lower() == ".ts":
            content = io.BytesIO()  # on a full disk torch would abort the process
            torch.jit.save(torch.jit.trace(network, (image,), check_trace=False), content)
            temporary.write_bytes(content.getbuffer())
            return
        require_runtime("onnx")
        names = {"input_names": ["image"], "output_names": network.outputs}
        sizes = {"image": {1: "height", 2: "width"}}
        # The newer exporter refuses these networks, whose number of boxes depends on the values.
        torch.onnx.export(network, (image,), temporary, dynamo=False, opset_version=_OPSET, dynamic_axes=sizes, **names)


def run_exported(path: Path, image: Tensor) -> list[Tensor]:
    """The outputs of an exported file for (C, H, W) float32."""
    if path.suffix.lower() == ".ts":
        return load_torchscript(path)(image)
    return open_session(path)(image)


def load_torchscript(path: Path) -> Session:
    """A .ts file as a function of (C, H, W) float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's newest say that TorchScript is deprecated
        module = torch.jit.load(str(path))
    return lambda image: list(module(image))


def open_session(path: Path, threads: int = 0) -> Session:
    """An .onnx file as a function of (C, H, W) float32, on the CPU with so many threads; 0: as many as there are cores.

    Threads sleep between images, or they would slow down what else is timed.
    """
    runtime = require_runtime("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = _ERRORS
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(image: Tensor) -> list[Tensor]:
        outputs = session.run(None, {"image": image.numpy()})
        return [torch.from_numpy(np.asarray(output)) for output in outputs]

    return run


class Comparison(NamedTuple):
    """Of a file's outputs with the network's, over images."""

    boxes: int  # that both have found; 0 of other networks
    largest: float  # difference, of px, scores or whatever the outputs are; infinite where one has found more

    @property
    def is_close(self) -> bool:
        return self.largest <= _CLOSE


def compare(network: ExportedNetwork, path: Path, images: Sequence[Tensor]) -> Comparison:
    """Run the file and the network. Boxes at the threshold, or last of the most that there may be, do not count: the
    last bit of a score decides which they are. It also decides the order of scores that tie."""
    boxes, largest = 0, 0.0
    for image in images:
        expected = network(image)
        try:
            found = run_exported(path, image)
        except Exception:  # the runtime's: a trace of a ViT, say, has a position embedding of one size
            return Comparison(boxes, float("inf"))
        if network.kind in DETECTORS:
            is_cut = len(expected[1]) == network.most
            least = max(network.threshold, float(expected[1].min()) if is_cut else 0.0) + _CLOSE
            found, expected = ([output[one[1] > least] for output in one] for one in (found, expected))
            boxes += len(expected[0])
            found = _in_order_of(expected, found)
        for one, other in zip(found, expected, strict=True):
            if one.shape != other.shape:
                largest = float("inf")
            elif other.numel():
                difference = float((one.double() - other.double()).abs().max())
                largest = float("inf") if math.isnan(difference) else max(largest, difference)
    return Comparison(boxes, largest)


def _in_order_of(expected: Sequence[Tensor], found: Sequence[Tensor]) -> Sequence[Tensor]:
    """What was found, each object in the place of the one that it is most like; as it is where their numbers differ."""
    if len(found[0]) != len(expected[0]):
        return found
    rows = [torch.column_stack(one[:3]).double() for one in (expected, found)]
    _, order = linear_sum_assignment(torch.cdist(*rows, p=torch.inf))
    return [output[order] for output in found]


def card_of(path: Path) -> Path:
    """Where the description of an exported file lies."""
    return path.with_suffix(".json")


def check_place_of_card(path: Path) -> None:
    """Raise UserError where the card would replace another file."""
    check_place_next_to(path, card_of(path), (), _is_card)  # formats of one network have the same card


def _is_card(file: Path) -> bool:
    with suppress(UserError, TypeError):
        return {"network", "image", "outputs"} <= set(read_json(file))
    return False


def write_card(network: ExportedNetwork, cfg: CfgNode, path: Path) -> Path:
    """Write NAME.json next to the file: how an image has to be prepared, and what the outputs are."""
    is_detector = network.kind in DETECTORS
    size = {"short_side": cfg.INPUT.MIN_SIZE_TEST, "long_side_at_most": cfg.INPUT.MAX_SIZE_TEST} if is_detector else {}
    squash = cfg.INPUT.get("SQUASH")  # of Objectives' published code
    facts = {
        "network": network.kind,
        "weights": cfg.MODEL.WEIGHTS,
        "image": f"({network.channels}, H, W) float32, 0..255",
        **_samples(cfg),
        **size,
        **({"height_and_width": list(squash)} if squash and not is_detector else {}),
        "outputs": network.outputs,
        **({"box": "x0, y0, x1, y1 in px of the image as it was given to the file"} if is_detector else {}),
        "classes": network.classes,
    }
    card = card_of(path)
    write_whole(card, without_secrets(json.dumps(facts, indent=2, ensure_ascii=False)))
    return card


def _samples(cfg: CfgNode) -> dict[str, object]:
    """What the values of an image's channels mean."""
    pixels = pixel_format(cfg)
    if pixels.is_of_photographs:
        return {"channels": cfg.INPUT.FORMAT, "bits_that_become_0_to_255": pixels.bits or 8}
    marks = {"nodata": pixels.nodata, "files": list(pixels.files)}
    return {
        "channels": list(pixels.channels) or cfg.INPUT.FORMAT,
        "ranges_that_become_0_to_255": [list(pair) for pair in pixels.ranges],
        "nodata_becomes": list(pixels.fill),
        **{name: value for name, value in marks.items() if value not in (None, [])},
    }


@contextmanager
def _traceable_len() -> Iterator[None]:
    """Let Detectron2's count of what it found stay a tensor, so that a traced network counts again."""
    with ExitStack() as stack:
        for name in _COUNTING:
            module = import_module(f"detectron2.modeling.roi_heads.{name}")
            stack.enter_context(mock.patch.object(module, "len", lambda found: found.__len__(), create=True))
        yield


def noise_images(channels: int = 3) -> list[Tensor]:
    """Two images of nothing, of different sizes."""
    images = []
    for size in _SIZES:
        generator = torch.Generator().manual_seed(0)
        images.append(torch.randint(0, 256, (channels, *size), generator=generator).float())
    return images


def network_images(cfg: CfgNode, records: Records, count: int) -> list[Tensor]:
    """``count`` images, spread over the records, (C, H, W) float32 as the network sees them."""
    mapper = build_mapper(cfg, is_train=False)
    chosen = sample(records, count)
    return [mapper({"file_name": record["file_name"]})["image"].float() for record in chosen]


def require_runtime(module: str) -> ModuleType:
    """A module of onnx or onnxruntime. Raises UserError where the package is missing."""
    package = module.partition(".")[0]
    return require_package(module, f"the package {package} is not installed: run pip install {package}, or write .ts")
