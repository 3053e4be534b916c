"""Tensors in a .safetensors file, which holds nothing else and is read without running anything."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from torch import Tensor

from revisit.errors import UserError


def load_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, by name, on the CPU."""
    return _package().load_file(path)


def save_safetensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors, each contiguous and with memory of its own."""
    _package().save_file(tensors, path, metadata={"format": "pt"})  # Hugging Face's readers demand the format


def _package() -> ModuleType:
    try:
        import safetensors.torch  # here, because a ready environment (PYTHON=...) may do without
    except ImportError as error:
        raise UserError(
            "the package safetensors is not installed: run pip install safetensors, or use a .pth file"
        ) from error
    return safetensors.torch
