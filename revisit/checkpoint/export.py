"""Backbones on their way out: to files, and under the names of torchvision and timm."""

import pickle
from pathlib import Path

import torch

from revisit.checkpoint.convert import BackboneWeights, check_backbone, convert, flags_to_config
from revisit.checkpoint.flags import flag_keys, flags_of, flags_path, read_flags
from revisit.checkpoint.foreign_layouts import tensors_of
from revisit.checkpoint.reading import read_checkpoint, safetensors_package
from revisit.errors import UserError, expect
from revisit.files import written_whole
from revisit.modeling.backbone.description import BackboneDescription, Flags, Tensors, description_of

LIBRARIES = ("torchvision", "timm")
SUFFIXES = (".pth", ".safetensors")


def check_output(output: Path, source: Path, suffixes: tuple[str, ...]) -> None:
    """Raise UserError unless ``output`` can be written: a file of one of the suffixes, and not the input."""
    expect(output.suffix in suffixes, f"output {output}: expected a name that ends in {' or '.join(suffixes)}")
    expect(output.resolve() != source.resolve(), f"output {output} is the input: expected another name")


def load_backbone(path: Path) -> BackboneWeights:
    """Read what tools/convert_to_d2.py wrote, or anything that it could convert.

    Raises:
        UserError: no backbone in the file, or no flags beside it.
    """
    content = read_checkpoint(path)
    tensors = tensors_of(content)
    if description := description_of(tensors):
        flags, origin = read_flags(path)
        flags = _whole(flags, description, path)
        check_backbone(tensors, flags, description)
        weights = BackboneWeights(tensors, flags, description, origin)
    else:
        weights = convert(content, name=path.name)
        flags = _whole(weights.flags, weights.description, path)
    return weights._replace(flags=flags_of(flags_to_config(flags), weights.description))


def _whole(flags: object, description: BackboneDescription, path: Path) -> Flags:
    if flags is None:
        raise UserError(
            f"{path} has no {flags_path(path).name} beside it, which says under which pixel statistics and strides it "
            "is valid: put it there, or export from the checkpoint that it was converted from"
        )
    lacking = [key for key in flag_keys(description) if not isinstance(flags, dict) or key not in flags]
    if lacking:
        raise UserError(f"the flags of {path} lack {lacking[0]}: convert the weights by tools/convert_to_d2.py again")
    for key in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD"):
        value = flags[key]
        if not isinstance(value, list) or [type(n) in (int, float) for n in value] != [True] * 3:
            raise UserError(f"the flags of {path} have {value} as {key}: expected a list of three numbers")
    return flags


def library_tensors(weights: BackboneWeights, library: str) -> Tensors:
    """The tensors under the names of a library, ``layer1.0.conv1.weight``; their values are untouched.

    Raises:
        UserError: the library has no such network, or its network cannot hold them or would compute something else.
    """
    description, flags = weights.description, weights.flags
    libraries = " and ".join(f"{name}'s" for name in description.SNIPPETS)
    expect(
        library in description.SNIPPETS,
        f"{library} is not known to have a {weights.title}, expected {libraries or 'Detectron2'}: use it there",
    )
    for key, value in description.library_flags(flags).items():
        expect(
            flags[key] == value,
            f"{key} is {flags[key]} in the backbone and {value} in {libraries} {weights.title}, which cannot hold it: "
            "use it in Detectron2",
        )
    return {description.library_name(key): value for key, value in weights.tensors.items()}


def write_tensors(tensors: Tensors, path: Path, **beside: object) -> None:
    """Write tensors by name, whole or not at all, in the format that the suffix says: .pth, .safetensors or .pkl.

    With ``beside``, plain values by name that .safetensors cannot hold, the tensors lie under ``model``. In a .pkl, as
    in Detectron2's model zoo, they are float32 arrays.
    """
    own = {key: value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    with written_whole(path) as temporary:
        if path.suffix == ".safetensors":  # Hugging Face's readers demand the format
            safetensors_package().save_file(own, temporary, metadata={"format": "pt"})
        elif path.suffix == ".pkl":
            arrays = {key: value.float().numpy() for key, value in own.items()}
            temporary.write_bytes(pickle.dumps({"model": arrays, **beside}))
        else:
            torch.save({"model": own, **beside} if beside else own, temporary)
