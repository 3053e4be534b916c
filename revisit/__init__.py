"""Revisit: contrastive pretraining of Detectron2 backbones.

Importing it is cheap. What it adds to Detectron2 is registered by importing ``revisit.modeling`` and ``revisit.data``.
The functions of ``__all__`` are public (revisit/api.py); the rest may change between versions.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from revisit import compat, plugins  # noqa: F401  (plugins: names of projects)

if TYPE_CHECKING:
    from revisit.api import Backbone, Prediction, Run, UserError, embed, finetune, load_backbone, predict, pretrain

compat.apply_before_detectron2()

__version__ = "0.1.0"
__all__ = ["Backbone", "Prediction", "Run", "UserError", "embed", "finetune", "load_backbone", "predict", "pretrain"]


def __getattr__(name: str) -> object:
    if name in __all__:  # torch and Detectron2 take seconds to import: not before they are asked for
        return getattr(import_module("revisit.api"), name)
    raise AttributeError(f"module 'revisit' has no attribute {name!r}")
