"""Each fact that revisit.compat answers is real, and is answered; a compiled Detectron2 is left alone."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest
from commands import ROOT, run_in
from packaging.version import Version

from revisit import compat

DETECTRON2 = Path(importlib.util.find_spec("detectron2").origin).parent

# Loaded from its file: importing the package would apply it.
PREAMBLE = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("compat", {compat.__file__!r})
compat = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compat)
"""
APPLY = "\ncompat.apply()\n"
# Forks are of a process that has applied it.
UNDO = """
import sys, warnings
import numpy as np
from PIL import Image

warnings.resetwarnings()
sys.modules.pop("pkg_resources", None)
vars(Image).pop("LINEAR", None)
for kind in (bool, int, float, object, str):
    if vars(np).get(kind.__name__) is kind:
        delattr(np, kind.__name__)
"""


def run(code: str, first_on_path: Path | None = None) -> subprocess.CompletedProcess:
    head = f"import sys; sys.path.insert(0, {str(first_on_path)!r})\n" if first_on_path else ""
    return subprocess.run([sys.executable, "-c", head + PREAMBLE + code], capture_output=True, text=True)


HISTOGRAM = """
from detectron2.data.build import print_instances_class_histogram
print_instances_class_histogram([{"annotations": [{"category_id": 0}]}], ["thing"])
"""
GATHER = """
import tempfile
import torch.distributed as dist
from detectron2.utils import comm
dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", world_size=1, rank=0)
comm._serialize_to_tensor([1], dist.group.WORLD)
dist.destroy_process_group()
"""
TRANSFORMS = "data/transforms/transform.py"
# compat's answer, Detectron2's file, what it says there, code that meets it, what is then on stderr
FACTS = [
    ("_stand_in", "layers/deform_conv.py", "from detectron2 import _C", "import detectron2.layers", "import name '_C'"),
    ("_restore_numpy_names", "data/build.py", r"np\.int\b", HISTOGRAM, "no attribute 'int'"),
    ("_restore_pillow_names", TRANSFORMS, r"Image\.LINEAR", "import detectron2.data.transforms", "attribute 'LINEAR'"),
    ("_quiet", "model_zoo/model_zoo.py", "import pkg_resources", "import detectron2.model_zoo", "resources is depr"),
    ("_quiet", "utils/comm.py", r"torch\.ByteStorage\.from_buffer", GATHER, "TypedStorage is deprecated"),
]


def said(folder: Path, code: str, expect: int) -> str:
    """What a fork says to which torch is nothing new, and Detectron2 is."""
    (folder / "code.py").write_text(UNDO + PREAMBLE + code)
    environment = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}
    return run_in(folder, environment, f"python {folder}/code.py", expect)


@pytest.fixture(scope="module")
def all_facts_with_the_shim(tmp_path_factory) -> str:
    if compat.has_compiled_operators():
        pytest.skip("this Detectron2 was built for the versions that are here")
    return said(tmp_path_factory.mktemp("shim"), APPLY + "\n".join(code for _, _, _, code, _ in FACTS), expect=0)


@pytest.mark.parametrize(("step", "file", "source", "code", "complaint"), FACTS)
def test_each_step_is_needed_and_enough(step, file, source, code, complaint, all_facts_with_the_shim, tmp_path):
    if not re.search(source, (DETECTRON2 / file).read_text(encoding="utf-8")):
        pytest.skip(f"this Detectron2's {file} no longer has {source!r}")
    if "pkg_resources" in source and Version(version("setuptools")) < Version("80.9"):
        pytest.skip("this setuptools says it by a DeprecationWarning, which Python shows nobody")
    left_out = {"_stand_in": "compat.has_compiled_operators = lambda: True"}
    without = left_out.get(step, f"compat.{step} = lambda *arguments: None") + APPLY + code
    assert complaint in said(tmp_path, without, expect=0 if step == "_quiet" else 1)
    assert complaint not in all_facts_with_the_shim


def fake_detectron2(folder: Path, file: str = "") -> Path:
    (folder / "detectron2").mkdir()
    (folder / "detectron2/__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "detectron2" / file).touch()
    return folder


@pytest.mark.parametrize("how", ["deprecated", "not supported in Python 3.14+ and may break"])
def test_a_deprecation_that_only_detectron2_can_mend_is_not_shown(how):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compat.apply()
        for module in ("torch.jit._script", "mine"):
            warnings.warn_explicit(f"`torch.jit.script` is {how}. Please", FutureWarning, f"{module}.py", 1, module)
    assert [str(warning.filename) for warning in caught] == ["mine.py"]


@pytest.mark.parametrize("file", ["", "_C.py", "_C.so", "_C.cpython-311-x86_64-linux-gnu.so", "_C.cp312-win_amd64.pyd"])
def test_only_a_detectron2_without_operators_gets_the_stand_in(tmp_path, file):
    ask = "print(compat.OPERATORS in sys.modules, 'detectron2' in sys.modules)"
    result = run(APPLY + ask, fake_detectron2(tmp_path, file))
    assert result.stdout.split() == [str(not file.endswith((".so", ".pyd"))), "False"], result.stderr


def test_stand_in_names_the_operator_that_is_missing():
    module = compat._stand_in()
    assert module.has_cuda() is False
    with pytest.raises(ImportError, match=r"detectron2\._C\.nms_rotated .*build Detectron2"):
        module.nms_rotated  # noqa: B018
    assert not hasattr(module, "__path__") and compat.apply() is None  # as often as one likes


@pytest.mark.parametrize("folder_exists", [False, True])
def test_missing_detectron2_is_explained(tmp_path, folder_exists):
    if folder_exists:
        (tmp_path / "detectron2").mkdir()
    code = f"""
import os
sys.path[:] = [{str(tmp_path)!r}, *(p for p in sys.path if not os.path.isdir(os.path.join(p, 'detectron2')))]
sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f)]
"""
    assert "ImportError: Detectron2 is not installed here: run `revisit install-detectron2`" in run(code + APPLY).stderr
