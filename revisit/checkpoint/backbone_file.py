"""A backbone in a file of its own: written whole or not at all, and read with its flags."""

import logging
import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from revisit.checkpoint.convert import BackboneWeights, check_backbone, convert, stated_flags
from revisit.checkpoint.detector_parts import PARTS
from revisit.checkpoint.flags import flag_keys, flags_of, flags_path, flags_to_config, read_flags, write_flags
from revisit.checkpoint.named_weights import weights_file
from revisit.checkpoint.reading import read_checkpoint, safetensors_package, tensors_of
from revisit.checkpoint.sources import licence_of
from revisit.errors import UserError, expect, first_few
from revisit.files import is_url, read_yaml, written_whole
from revisit.keys import check_values
from revisit.modeling.backbone.description import Tensors, description_of

logger = logging.getLogger(__name__)


def check_output(output: Path, source: Path, suffixes: tuple[str, ...]) -> None:
    """Raise UserError unless ``output`` can be written: a file of one of the suffixes, and not the input."""
    expect(output.suffix in suffixes, f"output {output}: expected a name that ends in {' or '.join(suffixes)}")
    expect(output.resolve() != source.resolve(), f"output {output} is the input: expected another name")


def check_place_of_flags(output: Path, suffixes: tuple[str, ...]) -> None:
    """Raise UserError where the flags of ``output`` would take the place of those of weights with another suffix, or of
    another file."""
    check_place_next_to(output, flags_path(output), suffixes, _are_flags)


def check_place_next_to(output: Path, place: Path, suffixes: tuple[str, ...], is_ours: Callable[[Path], bool]) -> None:
    """Raise UserError where what describes ``output`` would replace, at ``place``, a file that ``is_ours`` does not
    know, or what describes the file of the same name with another of the suffixes."""
    if not place.is_file():
        return
    others = [file.name for file in map(output.with_suffix, suffixes) if file != output and file.is_file()]
    expect(not others, f"output {output}: {place.name} says what {first_few(others)} is: expected another name")
    expect(
        is_ours(place), f"output {output}: {place.name} would be replaced, and is no description of weights: rename one"
    )


def _are_flags(file: Path) -> bool:
    with suppress(UserError, TypeError):
        return {"source", "config"} <= set(read_yaml(file))
    return False


def load_backbone(name: str | Path) -> BackboneWeights:
    """Read what tools/convert_to_d2.py wrote, or anything that it could convert, a file, at a URL or by a name such as
    ``imagenet:efficientnet_lite0``; else UserError."""
    path = weights_file(str(name), "checkpoint")
    content = read_checkpoint(path)
    weights = _converted(name, path, tensors_of(content))
    if weights is None:
        weights = convert(content, name=path.name, stated=stated_flags(path, content))
        for note in weights.notes:
            logger.info(f"{name}: {note}")
    for key in flag_keys(weights.description):
        expect(key in weights.flags, f"the flags of {name} lack {key}: convert the weights again")
    cfg = flags_to_config(weights.flags)
    check_values(cfg)
    return weights._replace(flags=flags_of(cfg, weights.description))


def _converted(name: str | Path, path: Path, tensors: Tensors) -> BackboneWeights | None:
    """What tools/convert_to_d2.py wrote, without the parts of a detector; None of a file that something else wrote."""
    for part in PARTS:  # which no library has
        tensors = {key: value for key, value in tensors.items() if not key.startswith(part.names)}
    description = description_of(tensors)
    if description is None or not all(key.startswith(description.PREFIXES) for key in tensors):
        return None
    flags, origin, licence = read_flags(name if is_url(str(name)) else path)
    expect(
        flags is not None,
        f"{name} has no {flags_path(name).name} next to it, which says under which pixel statistics and strides it "
        "is valid: put it there",
    )
    check_backbone(tensors, flags, description)
    return BackboneWeights(tensors, flags, description, origin, licence=licence or licence_of(origin))


def write_backbone(weights: BackboneWeights, path: Path) -> None:
    """Write a backbone, found by name in any model, and with it its flags. Both are whole, or refused when read."""
    write_tensors(
        weights.tensors | weights.parts,
        path,
        partial(write_flags, path, weights.flags, weights.origin, weights.licence),
        __author__=f"Revisit ({weights.source})",
        matching_heuristics=True,
    )


def write_tensors(
    tensors: Tensors, path: Path, before: Callable[[Path], None] = lambda file: None, /, **more: object
) -> None:
    """Write tensors by name, whole or not at all, in the format that the suffix says: .pth, .safetensors or .pkl.

    With ``more``, plain values by name that .safetensors cannot hold, the tensors lie under ``model``. In a .pkl, as
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
            temporary.write_bytes(pickle.dumps({"model": arrays, **more}))
        else:
            with open(temporary, "wb") as file:  # torch writes the name of a path into it
                torch.save({"model": own, **more} if more else own, file)
        before(temporary)
