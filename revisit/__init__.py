"""Revisit: contrastive pretraining of Detectron2 backbones. Importing it registers everything it adds."""

from revisit import compat

compat.apply()

from revisit import modeling  # noqa: E402, F401
from revisit.config import add_revisit_config  # noqa: E402
from revisit.data import catalog  # noqa: E402

catalog.register_all()

__all__ = ["add_revisit_config"]
__version__ = "0.1.0"
