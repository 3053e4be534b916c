"""What makes the rows of a table: a backbone of whole images or of boxes, or the box head of a finetuned detector.

Each has ``prepare(record, image)``, which a loader's worker gets without the network, and ``rows(batch)``, unit rows of
what a batch of samples has, and says what its rows depend on (``about``).
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from projects.Predict.predictions import finetuned_config, load_finetuned
from projects.Rows.own_features import features_of, head_features
from revisit.checkpoint.flags import flags_of
from revisit.data.finetuning.detection_mapper import DetectionMapper
from revisit.data.images.deep_images import format_keys
from revisit.engine.command import in_shell
from revisit.errors import expect
from revisit.evaluation.features import center_crop
from revisit.modeling.losses.queue_scores import at_least_float32
from revisit.network.frozen_network import pooled_rows
from revisit.network.network import Network, digest_of, load_network
from revisit.network.network_maps import network_maps, resized

from detectron2.config import CfgNode

Images = Sequence[dict] | Mapping[str, Any]  # records, or flags that say what their samples mean: see for_images
MAPS = 3  # of a backbone, from its finest that is asked for


class Sample(NamedTuple):
    """An image that was read and prepared, and the boxes whose rows are wanted."""

    image: Any
    size: tuple[int, int]  # height and width of the file's image, px
    boxes: np.ndarray  # (n, 4) float32, px of the same image


class WholeImages:
    """The mean of a backbone's last map over the middle of an image, as ``revisit.embed``."""

    def __init__(self, weights: str, size: int, device: str, images: Images = ()):
        self._network = load_network(weights, images).to(device)
        self.prepare = partial(_middle, size)
        self.about = _about("image", self._network.title, self._network.digest(), self._network.flags)

    @torch.no_grad()
    def rows(self, batch: list[Sample]) -> Tensor:
        pixels = torch.from_numpy(np.stack([sample.image for sample in batch])).permute(0, 3, 1, 2)
        return pooled_rows([self._network.last_map(pixels)])


class _OfBoxes:
    """Rows of boxes, an image at a time: of each ``_of_image`` gives (n, C), of any length."""

    @torch.no_grad()
    def rows(self, batch: list[Sample]) -> Tensor:
        return torch.cat([normalize(at_least_float32(self._of_image(sample))) for sample in batch])


class BoxesOfMaps(_OfBoxes):
    """Means over a box by RoIAlign of a backbone's maps of ``stride`` and coarser, or of its pyramid's."""

    def __init__(self, weights: str, stride: int, short_side: int, pyramid: bool, device: str, images: Images = ()):
        self._network = network_maps(weights, stride, pyramid, MAPS, images).to(device)
        finest, *_ = self._network.output_shape().values()
        self.prepare = partial(_to_short_side, short_side, finest.stride)
        digest = self._network.digest("_network", pixels=True)
        self.about = _about("box", self._network.title, digest, self._network.flags)

    def _of_image(self, sample: Sample) -> Tensor:
        pixels = torch.from_numpy(sample.image).permute(2, 0, 1)[None]
        boxes = _scaled(sample, pixels.shape[2:]).to(self._network.mean)
        return features_of(self._network, pixels, boxes)


class BoxesOfHead(_OfBoxes):
    """What the classifier of a finetuned two-stage detector gets for a box."""

    def __init__(self, cfg: CfgNode):
        model, _ = load_finetuned(cfg)
        self._network = Network(model.backbone, flags_of(cfg, None)).to(model.device)
        self._features = head_features(model)
        self.prepare = partial(_as_when_tested, DetectionMapper(cfg, is_train=False))
        seen = {key: value for key, value in flags_of(cfg, None).items() if key in format_keys()}
        flags = {**seen, "MODEL.PIXEL_MEAN": list(cfg.MODEL.PIXEL_MEAN)} if seen else {}
        digest = digest_of(model.state_dict())
        self.about = _about("box", f"box head of {cfg.MODEL.META_ARCHITECTURE}", digest, flags)

    def _of_image(self, sample: Sample) -> Tensor:
        padded = self._network.padded(sample.image)
        boxes = _scaled(sample, sample.image.shape[1:]).to(padded)
        return self._features.rows(padded, boxes)


def _middle(size: int, record: dict, image: np.ndarray) -> np.ndarray:
    return center_crop(image, size)


def _to_short_side(side: int, stride: int, record: dict, image: np.ndarray) -> np.ndarray:
    return resized(image, side, stride)


def _as_when_tested(mapper: DetectionMapper, record: dict, image: np.ndarray) -> Tensor:
    return mapper({"file_name": record["file_name"]}, image)["image"]


Embedder = WholeImages | BoxesOfMaps | BoxesOfHead
# That rows depend on; the last two are of a box head.
OPTIONS = ("weights", "boxes", "box_head", "size", "stride", "short_side", "pyramid", "config_file", "opts")
SWITCHES = ("box_head", "pyramid")
SIZES = ("size", "stride", "short_side", *SWITCHES)  # those that a table may say
LARGEST = 10_000  # px of a side
MOST_WORDS, MOST_LETTERS = 100, 300  # of what a table states, in a message


def embedder_of(args: Namespace, images: Images) -> Embedder:
    """Of the options of tools/embed.py, for these images. Raises UserError for weights that have no such rows."""
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if args.box_head:
        pairs = ["MODEL.DEVICE", args.device] if args.device else []
        made = BoxesOfHead(finetuned_config(Namespace(**vars(args) | {"opts": [*args.opts, *pairs]})))
    elif args.boxes:
        made = BoxesOfMaps(args.weights, args.stride, args.short_side, args.pyramid, device, images)
    else:
        made = WholeImages(args.weights, args.size, device, images)
    made.about["options"] = {name: getattr(args, name) for name in OPTIONS}
    return made


def embedder_again(about: Mapping[str, Any], device: str = "") -> Embedder:
    """The embedder that says this of itself, by the options that a user has typed, in another process. Raises UserError
    where its weights are not what they were."""
    options = about["options"]
    made = embedder_of(Namespace(**options, device=device), about["flags"])
    expect(
        made.about["digest"] == about["digest"],
        f"{options['weights']} has changed since the command began: give it again",
    )
    return made


class Named(NamedTuple):
    """What a user names to get a table's network, as tools/embed.py takes it: no file says what is loaded or run."""

    weights: str
    config_file: str = ""
    opts: Sequence[str] = ()


def embedder_of_table(about: Mapping[str, Any], named: Named) -> Embedder:
    """What made a table, for other images: of its sizes, and of the weights that the user names.

    Raises UserError where none are named, or others than the table's: their digests, their config and KEY VALUE pairs
    are compared.
    """
    stated = about["options"]
    expect(bool(named.weights), f"the table has no network, only its name: expected {_words_of(stated)}")
    wrong = [name for name in SIZES if not _is_size(name, stated.get(name, False))]
    expect(not wrong, f"the table states no sensible {', '.join(wrong)}: embed the images again")
    theirs = (stated.get("config_file") or "", _pairs_in(stated))
    expect(
        theirs == (named.config_file, list(map(str, named.opts))),
        f"the table was made with another config: expected {_words_of(stated)}",
    )
    sizes = {name: stated.get(name, False) for name in SIZES}
    boxes = "those of the table" if about["of"] == "box" else ""
    made = embedder_of(Namespace(**sizes, **named._asdict(), boxes=boxes, device=""), about["flags"])
    expect(
        made.about["digest"] == about["digest"],
        f"{named.weights} are other weights than those of the table, whose digest is {about['digest'][:12]}: name "
        "these, or embed the images again",
    )
    return made


def _is_size(name: str, value: object) -> bool:
    """Whether a file states what the option of this name takes."""
    if name in SWITCHES:
        return isinstance(value, bool)
    return type(value) is int and 0 < value <= LARGEST


def _words_of(stated: Mapping[str, Any]) -> str:
    """What to type to name what a table was made with, as it says it."""
    config = ["--config-file", stated["config_file"]] if stated.get("config_file") else []
    words = ["--weights", stated.get("weights", "FILE"), *config, *_pairs_in(stated)]
    return " ".join(in_shell(str(word)[:MOST_LETTERS]) for word in words[:MOST_WORDS])


def _pairs_in(stated: Mapping[str, Any]) -> list[str]:
    """The KEY VALUE pairs that a table states, none of which is used."""
    pairs = stated.get("opts")
    return list(map(str, pairs)) if isinstance(pairs, list) else []


def _about(of: str, title: str, digest: str, flags: dict[str, Any]) -> dict[str, Any]:
    return {"of": of, "network": title, "digest": digest, "flags": flags}


def _scaled(sample: Sample, size: tuple[int, int]) -> Tensor:
    """Its boxes (n, 4) in px of an image of another ``size``, height and width."""
    vertical, horizontal = (now / before for now, before in zip(size, sample.size, strict=True))
    factors = torch.tensor([horizontal, vertical, horizontal, vertical], dtype=torch.float32)
    return torch.from_numpy(sample.boxes) * factors
