"""Backbones on their way out: to files, under the names of torchvision and timm, and with a model card."""

import hashlib
import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import torch

from revisit.checkpoint.convert import BackboneWeights, check_backbone, convert, flags_to_config, stated_flags
from revisit.checkpoint.detector_parts import PARTS
from revisit.checkpoint.flags import flag_keys, flags_of, flags_path, read_flags
from revisit.checkpoint.foreign_layouts import licence_of, tensors_of
from revisit.checkpoint.reading import read_checkpoint, safetensors_package
from revisit.errors import UserError, expect
from revisit.files import written_whole
from revisit.keys import check_values
from revisit.modeling.backbone.description import Tensors, description_of
from revisit.urls import is_url, local_copy

logger = logging.getLogger(__name__)

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
"""
_OWN_LICENCE = """\
whoever trained the weights says it; the terms of the images may bind them too. Revisit, the code, is Apache-2.0."""
_FOREIGN_LICENCE = """\
that under which the weights were published. Exporting them with Revisit, which is Apache-2.0, adds nothing."""


def check_output(output: Path, source: Path, suffixes: tuple[str, ...]) -> None:
    """Raise UserError unless ``output`` can be written: a file of one of the suffixes, and not the input."""
    expect(output.suffix in suffixes, f"output {output}: expected a name that ends in {' or '.join(suffixes)}")
    expect(output.resolve() != source.resolve(), f"output {output} is the input: expected another name")


def load_backbone(name: str | Path) -> BackboneWeights:
    """Read what tools/convert_to_d2.py wrote, or anything that it could convert, a file or at a URL; else UserError."""
    path = local_copy(str(name), "checkpoint")
    content = read_checkpoint(path)
    tensors = tensors_of(content)
    for part in PARTS:  # which no library has
        tensors = {key: value for key, value in tensors.items() if not key.startswith(part.names)}
    description = description_of(tensors)
    if description and all(key.startswith(description.PREFIXES) for key in tensors):
        flags, origin, licence = read_flags(name if is_url(str(name)) else path)
        if flags is None:
            raise UserError(
                f"{name} has no {flags_path(name).name} beside it, which says under which pixel statistics and strides "
                "it is valid: put it there"
            )
        check_backbone(tensors, flags, description)
        licence = licence or licence_of(origin.partition(":")[0], is_named=False)
        weights = BackboneWeights(tensors, flags, description, origin, licence=licence)
    else:
        weights = convert(content, name=path.name, stated=stated_flags(path, content))
        for line in weights.assumed:
            logger.info(f"{name}: {line}")
    for key in flag_keys(weights.description):
        expect(key in weights.flags, f"the flags of {name} lack {key}: convert the weights again")
    cfg = flags_to_config(weights.flags)
    check_values(cfg)
    return weights._replace(flags=flags_of(cfg, weights.description))


def library_tensors(weights: BackboneWeights, library: str) -> Tensors:
    """The tensors under the names of a library, ``layer1.0.conv1.weight``; UserError where it has no such network, or
    its network would compute something else."""
    snippets = weights.description.card(weights.flags).snippets
    expect(library in snippets, f"{library} is not known to have a {weights.title}: expected {' or '.join(snippets)}")
    bgr = f"INPUT.FORMAT is BGR in the backbone and RGB in {library}: convert it with --rgb first"
    expect(weights.flags["INPUT.FORMAT"] == "RGB", bgr)
    names = weights.description.library_names(weights.flags)
    theirs = {own: name for name, own in names.items()}
    return {theirs[key]: value for key, value in weights.tensors.items()}


def write_tensors(
    tensors: Tensors, path: Path, before: Callable[[Path], None] = lambda file: None, /, **beside: object
) -> None:
    """Write tensors by name, whole or not at all, in the format that the suffix says: .pth, .safetensors or .pkl.

    With ``beside``, plain values by name that .safetensors cannot hold, the tensors lie under ``model``. In a .pkl, as
    in Detectron2's model zoo, they are arrays, float32 or of whole numbers. ``before`` gets the
    complete file before it takes its name.
    """
    own = {key: value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    with written_whole(path) as temporary:
        if path.suffix == ".safetensors":  # Hugging Face's readers demand the format
            safetensors_package().save_file(own, temporary, metadata={"format": "pt"})
        elif path.suffix == ".pkl":
            arrays = {
                key: (value.float() if value.is_floating_point() else value).numpy() for key, value in own.items()
            }
            temporary.write_bytes(pickle.dumps({"model": arrays, **beside}))
        else:
            torch.save({"model": own, **beside} if beside else own, temporary)
        before(temporary)


def model_card(backbone: BackboneWeights, weights: Path, library: str) -> str:
    """The card, in Markdown, of a backbone that was exported to the file ``weights``; ``library`` comes first."""
    flags, file, card = backbone.flags, json.dumps(weights.name), backbone.description.card(backbone.flags)
    order = sorted(card.snippets, key=lambda other: other != library)
    statistics = (".running_mean", ".running_var", ".num_batches_tracked")
    parameters = [value for key, value in backbone.tensors.items() if not key.endswith(statistics)]
    is_safe = weights.suffix == ".safetensors"
    facts = {
        "name": weights.name,
        "title": backbone.title,
        "libraries": " and ".join(order),
        "count": len(backbone.tensors),
        "millions": sum(value.numel() for value in parameters) / 1e6,
        "origin": backbone.origin or "by an unknown source",
        "channels": flags["INPUT.FORMAT"],
        "digest": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "licence": _licence_in_words(backbone),
        "import_more": "from safetensors.torch import load_file\n" if is_safe else "",
        "load": f"load_file({file})" if is_safe else f"torch.load({file}, weights_only=True)",
        "network": card.network,
        "output": card.output,
        **card.facts,
    }
    for name in ("mean", "std"):
        levels = flags[f"MODEL.PIXEL_{name.upper()}"]
        scaled = [round(level / 255, 6) for level in levels]
        facts |= {f"{name}_list": scaled, name: str(scaled)[1:-1], f"{name}_255": str(levels)[1:-1]}
    return _CARD.format(snippets="\n".join(card.snippets[other].format(**facts) for other in order), **facts)


def _licence_in_words(backbone: BackboneWeights) -> str:
    if backbone.source != "revisit":
        return f"{backbone.licence + ': ' if backbone.licence else ''}{_FOREIGN_LICENCE}"
    start = f"{backbone.licence}: that of the weights that the training started from. Beyond it, "
    return f"{start if backbone.licence else ''}{_OWN_LICENCE}"
