"""Make Detectron2 importable: the 0.6 release on today's libraries, without its compiled operators.

After `import revisit`, `apply` is called when something first imports Detectron2. Each step first looks whether it is
needed, so nothing changes under a Detectron2 that is compiled and current.
"""

import importlib.util
import sys
import warnings
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

INSTALL_PAGE = "https://detectron2.readthedocs.io/tutorials/install.html"
OPERATORS = "detectron2._C"


class _BeforeDetectron2(MetaPathFinder):
    """Finds nothing. Python asks it first, and once, where Detectron2 is."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "detectron2" and self in sys.meta_path:
            sys.meta_path.remove(self)
            apply()


def apply_before_detectron2() -> None:
    """Call ``apply`` when something first imports Detectron2; now if it is imported already."""
    if "detectron2" in sys.modules:
        apply()
    else:
        sys.meta_path.insert(0, _BeforeDetectron2())


def apply() -> None:
    """Do what is needed; a second call finds nothing left to do. MissingImportError says what is missing."""
    spec = importlib.util.find_spec("detectron2")
    if spec is None or spec.origin is None:  # no origin: an empty folder of that name, not a package
        remedy = f"run `revisit install-detectron2`, or build it by {INSTALL_PAGE}"
        raise _missing(f"Detectron2 is not installed here: {remedy}")
    try:
        importlib.import_module("cv2")
    except ImportError as error:
        remedy = "install the packages libgl1 and libglib2.0-0, or opencv-python-headless in opencv-python's place"
        raise _missing(f"OpenCV does not import ({error}). If libGL is missing, {remedy}") from error
    if OPERATORS not in sys.modules and not has_compiled_operators():
        sys.modules[OPERATORS] = _stand_in()
    _restore_numpy_names()
    _restore_pillow_names()
    _quiet("pkg_resources is deprecated", r"detectron2\.model_zoo")
    _quiet("TypedStorage is deprecated", r"detectron2\.utils\.comm")
    _quiet("torch.meshgrid: in an upcoming release", r"torch\.functional")
    _quiet("`torch.jit.script` is", r"torch\.jit", FutureWarning)  # deprecated; of torch 2.14; Python hides 2.11's own


def _missing(message: str) -> ImportError:
    from revisit.errors import MissingImportError  # not above: this module comes before the package

    return MissingImportError(message)


def has_compiled_operators() -> bool:
    """Whether the installed Detectron2 came with its C++ extension, found without importing either."""
    spec = importlib.util.find_spec("detectron2")
    folders = (spec and spec.submodule_search_locations) or ()
    return any(any(Path(folder).glob(f"_C*.{suffix}")) for folder in folders for suffix in ("so", "pyd"))


def _stand_in() -> ModuleType:
    """A `detectron2._C` that lets Detectron2 import and report itself, and names any operator asked of it."""

    def missing(name: str) -> None:
        if name.startswith("__"):  # what Python and debuggers ask of every module
            raise AttributeError(name)
        raise ImportError(
            f"{OPERATORS}.{name} is one of Detectron2's compiled operators, and this installation has none; "
            f"for those, build Detectron2 by {INSTALL_PAGE}"
        )

    module = importlib.util.module_from_spec(ModuleSpec(OPERATORS, None))
    module.get_compiler_version = lambda: "none (no compiled operators)"
    module.get_cuda_version = lambda: "none"
    module.has_cuda = lambda: False
    module.__getattr__ = missing
    return module


def _restore_numpy_names() -> None:
    import numpy as np

    for kind in (bool, int, float, object, str):
        # Not hasattr: NumPy answers some of these names with a FutureWarning.
        if kind.__name__ not in vars(np):
            setattr(np, kind.__name__, kind)


def _restore_pillow_names() -> None:
    from PIL import Image

    if not hasattr(Image, "LINEAR"):
        Image.LINEAR = Image.BILINEAR


def _quiet(message: str, module: str, category: type[Warning] = UserWarning) -> None:
    """Hide a warning that 0.6 would show to every user, in every process, and that only Detectron2 can mend."""
    warnings.filterwarnings("ignore", message, category, module)
