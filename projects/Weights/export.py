"""Backbones on their way out: under the names of torchvision and timm, and with a model card."""

import json
import re
from pathlib import Path

from projects.Weights.card_flags import line_of_flags, text_of_card
from projects.Weights.resnet import in_libraries
from revisit.checkpoint.backbone_file import check_place_next_to
from revisit.checkpoint.convert import BackboneWeights
from revisit.checkpoint.flags import is_folded
from revisit.checkpoint.sources import source_layouts
from revisit.data.images.deep_images import format_of
from revisit.data.images.pixel_format import COLOURS
from revisit.errors import expect
from revisit.files import file_digest
from revisit.modeling.backbone.description import Flags, Tensors

SUFFIXES = (".pth", ".safetensors")

_CARD = """\
# {name}

The backbone of a {title} for {libraries}: {count} tensors, {millions:.1f} million parameters, {output}

| | |
|---|---|
| Trained | {origin}; nothing else is on record |
| Network | {network} |
| Input | {channels} in this order, scaled to 0..1, less the mean, over the standard deviation |
| Mean | {mean} ({mean_255} of 0..255) |
| Standard deviation | {std} ({std_255} of 0..255) |
| SHA-256 | `{digest}` |

{snippets}
Any other order of channels, or other pixel statistics, raises no error and costs accuracy.

Licence: {licence}

{flags}
"""
_OWN_LICENCE = """\
whoever trained the weights says it; the terms of the images may bind them too. Revisit, the code, is Apache-2.0."""
_FOREIGN_LICENCE = """\
that under which the weights were published. Exporting them with Revisit, which is Apache-2.0, adds nothing."""


def library_tensors(weights: BackboneWeights, library: str) -> Tensors:
    """The tensors under the names of a library, ``layer1.0.conv1.weight``; UserError where it has no such network, or
    its network would compute something else."""
    description = in_libraries(weights.description)
    snippets = description.card(weights.flags).snippets
    which = f"a {weights.title} for {' '.join(_channels(weights.flags))}"
    expect(library in snippets, f"{library} is not known to have {which}: expected {' or '.join(snippets)}")
    bgr = f"INPUT.FORMAT is BGR in the backbone and RGB in {library}: convert it with --format rgb first"
    expect(weights.flags["INPUT.FORMAT"] == "RGB", bgr)
    names = description.library_names(weights.flags)
    theirs = {own: name for name, own in names.items()}
    return {theirs[key]: value for key, value in weights.tensors.items()}


def model_card(backbone: BackboneWeights, weights: Path, library: str) -> str:
    """The card, in Markdown, of a backbone that was exported to the file ``weights``; ``library`` comes first."""
    flags = backbone.flags
    card = in_libraries(backbone.description).card(flags)
    libraries = sorted(card.snippets, key=lambda other: other != library)
    statistics = (".running_mean", ".running_var", ".num_batches_tracked")
    parameters = [value for key, value in backbone.tensors.items() if not key.endswith(statistics)]
    facts = {
        "name": weights.name,
        "title": backbone.title,
        "libraries": " and ".join(libraries),
        "count": len(backbone.tensors),
        "millions": sum(value.numel() for value in parameters) / 1e6,
        "origin": backbone.origin or "by an unknown source",
        "channels": ", ".join(_channels(flags)),
        "inputs": len(flags["MODEL.PIXEL_MEAN"]),
        "digest": file_digest(weights),
        "licence": _licence_in_words(backbone),
        "flags": line_of_flags(flags | (backbone.description.FOLDED if is_folded(backbone.tensors) else {})),
        "network": card.network,
        "output": card.output,
        **card.facts,
        **_loading(weights),
        **_statistics("mean", flags["MODEL.PIXEL_MEAN"]),
        **_statistics("std", flags["MODEL.PIXEL_STD"]),
    }
    snippets = "\n".join(card.snippets[name].format(**facts) for name in libraries)
    return _CARD.format(snippets=snippets, **facts)


def _channels(flags: Flags) -> list[str]:
    """Names in the order in which the network sees them, each with the values that become 0 and 1."""
    pixels = format_of(flags, ())
    if not (pixels.channels or pixels.ranges):
        return [str(flags["INPUT.FORMAT"])]
    names = pixels.channels or COLOURS
    stated = pixels.ranges or ((0, 255),)  # for each channel, or one for all
    ranges = stated if len(stated) > 1 else stated * pixels.count
    return [f"{name} ({low:g} to {high:g})" for name, (low, high) in zip(names, ranges, strict=True)]


def _loading(weights: Path) -> dict[str, str]:
    """How code reads the file."""
    file = json.dumps(weights.name)
    if weights.suffix == ".safetensors":
        return {"import_more": "from safetensors.torch import load_file\n", "load": f"load_file({file})"}
    return {"import_more": "", "load": f"torch.load({file}, weights_only=True)"}


def _statistics(name: str, levels: list[float]) -> dict[str, object]:
    """Pixel statistics on the scales of 0..1 and of 0..255."""
    scaled = [round(level / 255, 6) for level in levels]
    return {f"{name}_list": scaled, name: str(scaled)[1:-1], f"{name}_255": str(levels)[1:-1]}


def check_place_of_card(weights: Path) -> None:
    """Raise UserError where the card of the file would replace that of another one, or a file that is no card."""
    check_place_next_to(weights, weights.with_suffix(".md"), SUFFIXES, _is_card)


def _is_card(file: Path) -> bool:
    return re.search(r"^\| SHA-256 \| `", file.read_text(errors="replace"), re.M) is not None


def as_card_says(weights: BackboneWeights, file: Path) -> BackboneWeights:
    """With origin and licence of the model card next to the file, if the card has the checksum of the file."""
    text = text_of_card(file)
    if not text:
        return weights
    origin = re.search(r"^\| Trained \| (.*); nothing else is on record \|$", text, re.M)
    licence = re.search(r"^Licence: (.*?): that (under which|of the weights)", text, re.M)
    is_known = origin is not None and origin[1].partition(":")[0] in source_layouts()
    return weights._replace(origin=origin[1] if is_known else weights.origin, licence=licence[1] if licence else "")


def _licence_in_words(backbone: BackboneWeights) -> str:
    if backbone.source != "revisit":
        terms = f"{backbone.licence}: " if backbone.licence else ""
        return f"{terms}{_FOREIGN_LICENCE}"
    start = f"{backbone.licence}: that of the weights that the training started from. Beyond it, "
    return f"{start if backbone.licence else ''}{_OWN_LICENCE}"
