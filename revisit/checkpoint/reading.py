"""Read a checkpoint file: never run code from it, and refuse one that is not whole."""

import io
import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from revisit.errors import UserError, expect, first_line
from revisit.plugins import require_package

# All that numpy arrays in plain containers refer to, under the names of numpy 1 and 2. _frombuffer is of pickle's
# protocol 5, the default of Python 3.14.
_ARRAYS = {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("collections", "OrderedDict")}

_WRAPPERS = re.compile(
    r"^(module\.)+|(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.(module\.)*"
)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NUMBERS = (*FLOATS, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
TOP_LEVEL = ("model", "state_dict", "teacher", "blobs")  # where tensors lie, the first that is there
_IS_FOLDER = 0x10  # in the attributes of a zip file's record

_CLASS = re.compile(
    r"GLOBAL (\S+) was not an allowed global|Trying to instantiate a class (\S+)|Unsupported class (\S+)"
)
_SAVE_TENSORS = "if you trust it, load it where it was made, and save its state_dict() alone"


class UnreadableCheckpointError(UserError):
    """A file that is damaged, or no checkpoint of plain values."""


def read_checkpoint(path: Path) -> dict:
    """What a .pth holds, tensors on the CPU and plain values; or a .pkl of Detectron2's model zoo, numpy arrays; or a
    .safetensors, tensors by name. None runs any code that the file may hold.

    Every record of a .pth (a zip file since torch 1.6) is compared with the checksum that torch wrote next to it: torch
    itself would load flipped bits as other weights. The other formats have none.

    Raises:
        UnreadableCheckpointError: missing, damaged, not a dict, or of other than plain values.
    """
    if not path.exists():
        raise UnreadableCheckpointError(
            f"{path} is not there: expected a checkpoint, such as model_final.pth, or a name such as "
            "imagenet:efficientnet_lite0 (docs/weights.md)"
        )
    if path.is_dir():
        raise UnreadableCheckpointError(f"{path} is a folder: expected a checkpoint, such as model_final.pth in it")
    try:
        expect(path.is_file(), "no file")
        content = _READERS.get(path.suffix, _load_tensors)(path)
    except Exception as error:  # damaged files raise whatever their bytes happen to trip
        reason = _reason(error)
        raise UnreadableCheckpointError(f"{path} is not a whole checkpoint of plain tensors ({reason})") from error
    if not isinstance(content, dict):
        raise UnreadableCheckpointError(f"{path} holds a {type(content).__name__}, expected a dict of tensors")
    return content


def _reason(error: Exception) -> str:
    """One line, without the advice of torch's to run what the file holds."""
    if isinstance(error, UserError):
        return first_line(error)
    if refused := _CLASS.search(str(error)):
        name = next(filter(None, refused.groups()))
        return f"it holds a {name}, which is no tensor and no plain value: {_SAVE_TENSORS}"
    words = str(error).replace("Weights only load failed. ", "")
    if "weights_only" in first_line(words):
        return f"{type(error).__name__}: torch cannot read it"
    return f"{type(error).__name__}: {first_line(words)}"


def require_tensors(values: dict, name: str) -> None:
    """Raises UnreadableCheckpointError unless all ``values`` of a checkpoint's ``name`` are tensors or arrays."""
    if not isinstance(values, dict):
        raise UnreadableCheckpointError(f"the checkpoint's {name} is a {type(values).__name__}: expected a dict")
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, torch.Tensor | np.ndarray):
            raise UnreadableCheckpointError(
                f"the checkpoint's {name} holds a {type(value).__name__} as {key!r}: expected tensors by name"
            )


def unwrapped(tensors: dict) -> dict:
    """The tensors without the ``module.`` that DistributedDataParallel puts before every name, and what torch.compile
    and others put into them."""
    plain = {_WRAPPERS.sub("", key): value for key, value in tensors.items()}
    return plain if len(plain) == len(tensors) else tensors


def tensors_of(checkpoint: dict) -> dict[str, torch.Tensor]:
    """The tensors by name, bare or below one of TOP_LEVEL, without wrappers such as ``module.``; numpy arrays become
    tensors."""
    return unwrapped(tensors_in_file(checkpoint))


def tensors_in_file(checkpoint: dict) -> dict[str, torch.Tensor]:
    """``tensors_of``, with the names that they have in the file."""
    for name in TOP_LEVEL:
        if isinstance(checkpoint.get(name), dict):
            require_tensors(checkpoint[name], name)
            return {key: as_tensor(value) for key, value in checkpoint[name].items()}
    return {
        str(key): as_tensor(value) for key, value in checkpoint.items() if isinstance(value, torch.Tensor | np.ndarray)
    }


def as_tensor(value: torch.Tensor | np.ndarray) -> torch.Tensor:
    """The value as a tensor. Raises UserError for an array of numbers that torch does not have."""
    try:
        return value if isinstance(value, torch.Tensor) else torch.tensor(value)
    except TypeError as error:
        raise UserError(f"the checkpoint has an array of {value.dtype}: expected 16 to 64 bits") from error


def below_prefix(tensors: dict, prefix: str) -> dict:
    """The tensors whose names begin with a prefix, by the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def shapes_of(tensors: dict) -> dict[str, tuple[int, ...]]:
    """The shapes of tensors by their names."""
    return {key: tuple(tensor.shape) for key, tensor in tensors.items()}


def clipped(key: object) -> str:
    """A name in a checkpoint, for a message."""
    return str(key).replace("\n", " ")[:100]


def require_numbers(key: str, value: torch.Tensor | np.ndarray) -> torch.Tensor:
    """The value as a tensor. Raises UserError where it, which the checkpoint has as ``key``, is not made of plain
    numbers, has fewer than it claims, or holds NaN or an infinity."""
    value = as_tensor(value)
    expect(
        value.layout == torch.strided and not value.is_meta and value.dtype in _NUMBERS,
        f"{key} is a {value.dtype} tensor of layout {value.layout}: expected plain numbers",
    )
    claimed = value.numel() * value.element_size()
    expect(
        claimed <= value.untyped_storage().nbytes(),
        f"{key} claims {tuple(value.shape)} numbers and has fewer: expected each of them",
    )
    expect(value.isfinite().all(), f"{key} has values that are not finite: the weights of a run that diverged")
    return value


def for_prediction(checkpoint: dict) -> dict:
    """A checkpoint without the tensors that only its training needs, under the prefixes in ``training_only``."""
    prefixes = checkpoint.get("training_only", ())
    if not isinstance(prefixes, list | tuple) or not all(isinstance(prefix, str) for prefix in prefixes):
        raise UnreadableCheckpointError("the checkpoint's training_only has no names: expected how those begin")
    tensors = {key: value for key, value in checkpoint["model"].items() if not key.startswith(tuple(prefixes))}
    return {**checkpoint, "model": tensors}


def _load_tensors(path: Path) -> object:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as records:
            expect(
                not any(name.endswith("/constants.pkl") for name in records.namelist()),
                f"it is a TorchScript archive, which holds code: {_SAVE_TENSORS}",
            )
            for record in records.infolist():  # torch packs nothing, and would leave a folder's bytes unread
                expect(
                    record.compress_type == zipfile.ZIP_STORED and not record.external_attr & _IS_FOLDER,
                    f"its record {record.filename} is compressed or a folder",
                )
            damaged = records.testzip()
            expect(damaged is None, f"its record {damaged} is damaged: the checksum differs")
    with torch.serialization.safe_globals([Namespace]):  # the arguments of a run, plain values by name
        return torch.load(path, map_location="cpu", weights_only=True)


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("_codecs", "encode"):  # how old pickles hold bytes
            return _encode_latin1
        expect((module, name) in _ARRAYS, f"it refers to {module}.{name}, which is no array")
        return super().find_class(module, name)


def _encode_latin1(text: str, encoding: str) -> bytes:
    expect(encoding == "latin1", f"it has text in {encoding}")  # others could make much of little
    return text.encode("latin1")


def _unpickle_arrays(path: Path) -> object:
    packed = path.read_bytes()
    content = _ArrayUnpickler(io.BytesIO(packed), encoding="latin1").load()
    sizes: dict[int, int] = {}
    _require_plain(content, sizes)
    claimed = sum(sizes.values())
    expect(claimed <= len(packed), f"its arrays claim {claimed} bytes, and it has {len(packed)}")
    return content


def _require_plain(value: object, sizes: dict[int, int]) -> None:
    """Enters the bytes of each array in ``sizes``."""
    if isinstance(value, dict):
        for item in value.values():
            _require_plain(item, sizes)
    elif isinstance(value, np.ndarray | np.generic):
        expect(value.dtype.kind in "biuf", f"it has an array of {value.dtype}")
        sizes[id(value)] = value.nbytes
    elif not isinstance(value, str | bytes | int | float | None):
        raise UserError(f"it has a {type(value).__name__} among its arrays")


def safetensors_package() -> ModuleType:
    """The module ``safetensors.torch``, which a ready environment (PYTHON=...) may lack. Its files hold nothing but
    tensors, and reading them runs nothing."""
    return require_package(
        "safetensors.torch", "the package safetensors is not installed: run pip install safetensors, or use a .pth file"
    )


_READERS: dict[str, Callable[[Path], object]] = {
    ".pkl": _unpickle_arrays,
    ".safetensors": lambda path: safetensors_package().load_file(path),
}
