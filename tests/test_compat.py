"""Each fact that revisit.compat answers is real, and is answered; a compiled Detectron2 is left alone."""

import importlib
import importlib.util
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

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


def run(code: str, first_on_path: Path | None = None) -> subprocess.CompletedProcess:
    head = f"import sys; sys.path.insert(0, {str(first_on_path)!r})\n" if first_on_path else ""
    return subprocess.run([sys.executable, "-c", head + PREAMBLE + code], capture_output=True, text=True)


# step of compat: (Detectron2 file, what it says there, code that meets it, what is then on stderr)
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
FACTS = {
    "_stand_in": (
        "layers/deform_conv.py",
        r"from detectron2 import _C",
        "import detectron2.layers",
        "cannot import name '_C'",
    ),
    "_restore_numpy_names": ("data/build.py", r"np\.int\b", HISTOGRAM, "no attribute 'int'"),
    "_restore_pillow_names": (
        "data/transforms/transform.py",
        r"Image\.LINEAR",
        "import detectron2.data.transforms",
        "no attribute 'LINEAR'",
    ),
    "_quiet_model_zoo": (
        "model_zoo/model_zoo.py",
        r"import pkg_resources",
        "import detectron2.model_zoo",
        "pkg_resources is deprecated",
    ),
    "_quiet_gathers": ("utils/comm.py", r"torch\.ByteStorage\.from_buffer", GATHER, "TypedStorage is deprecated"),
}
SKIP_STEP = {
    "_stand_in": "compat.has_compiled_operators = lambda: True",
    "_restore_numpy_names": "compat._restore_numpy_names = lambda: None",
    "_restore_pillow_names": "compat._restore_pillow_names = lambda: None",
    "_quiet_model_zoo": "compat._quiet_model_zoo = lambda: None",
    "_quiet_gathers": "compat._quiet_gathers = lambda: None",
}


@pytest.fixture(scope="module")
def all_facts_with_the_shim() -> subprocess.CompletedProcess:
    return run(APPLY + "\n".join(code for _, _, code, _ in FACTS.values()))


@pytest.mark.parametrize("step", FACTS)
def test_each_step_is_needed_and_enough(step, all_facts_with_the_shim):
    file, source, code, complaint = FACTS[step]
    if not re.search(source, (DETECTRON2 / file).read_text(encoding="utf-8")):
        pytest.skip(f"this Detectron2's {file} no longer has {source!r}")
    if step == "_stand_in" and compat.has_compiled_operators():
        pytest.skip("this Detectron2 has its compiled operators")
    without = run(SKIP_STEP[step] + APPLY + code)
    assert complaint in without.stderr
    assert all_facts_with_the_shim.returncode == 0, all_facts_with_the_shim.stderr
    assert complaint not in all_facts_with_the_shim.stderr


def test_applying_again_changes_nothing():
    compat.apply()
    state = sys.modules.get(compat.OPERATORS), np.bool, np.str, list(warnings.filters)
    compat.apply()
    assert (sys.modules.get(compat.OPERATORS), np.bool, np.str, list(warnings.filters)) == state


def test_names_that_numpy_has_stay_its_own():
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("NumPy 1 has no np.bool of its own")
    assert np.bool is np.bool_
    assert (np.int, np.float, np.object, np.str) == (int, float, object, str)


def fake_detectron2(folder: Path, *files: str) -> Path:
    package = folder / "detectron2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    for name in files:
        (package / name).touch()
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], "True"),
        (["_C.py"], "True"),
        (["_C.so"], "False"),
        (["_C.cpython-311-x86_64-linux-gnu.so"], "False"),
        (["_C.cp312-win_amd64.pyd"], "False"),
    ],
)
def test_only_a_detectron2_without_operators_gets_the_stand_in(tmp_path, files, expected):
    ask = "print(compat.OPERATORS in sys.modules, 'detectron2' in sys.modules)"
    result = run(APPLY + ask, fake_detectron2(tmp_path, *files))
    assert result.stdout.split() == [expected, "False"], result.stderr


def test_stand_in_names_the_operator_that_is_missing():
    module = compat._stand_in()
    assert module.has_cuda() is False
    with pytest.raises(ImportError, match=r"detectron2\._C\.nms_rotated .*build Detectron2"):
        module.nms_rotated  # noqa: B018
    assert not hasattr(module, "__path__")


@pytest.mark.parametrize("folder_exists", [False, True])
def test_missing_detectron2_is_explained(tmp_path, folder_exists):
    if folder_exists:
        (tmp_path / "detectron2").mkdir()
    code = "import os; sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, 'detectron2'))]\n"
    code += "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f)]\n"
    code += f"sys.path.insert(0, {str(tmp_path)!r})"
    result = run(code + APPLY)
    assert "ImportError: Detectron2 is not installed here: run `make env`" in result.stderr


def test_opencv_without_its_system_library_is_explained(tmp_path):
    (tmp_path / "cv2.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')\n")
    result = run(APPLY, fake_detectron2(tmp_path))
    assert "(libGL.so.1: cannot open shared object file)" in result.stderr
    assert "libgl1" in result.stderr and "opencv-python-headless" in result.stderr


CORE = ["engine", "modeling", "evaluation", "data", "checkpoint", "model_zoo"]
MORE = ["projects.deeplab", "projects.point_rend", "utils.visualizer", "utils.collect_env"]


@pytest.mark.parametrize("name", CORE + MORE)
def test_detectron2_imports(name):
    importlib.import_module(f"detectron2.{name}")


def test_faster_rcnn_trains_and_predicts():
    from detectron2 import model_zoo
    from detectron2.modeling import build_model
    from detectron2.structures import Boxes, Instances
    from detectron2.utils.events import EventStorage

    cfg = model_zoo.get_config("PascalVOC-Detection/faster_rcnn_R_50_C4.yaml")
    cfg.MODEL.DEVICE, cfg.MODEL.WEIGHTS = "cpu", ""
    cfg.MODEL.RESNETS.NORM, cfg.MODEL.BACKBONE.FREEZE_AT = "BN", 0  # frozen BN overflows without its weights
    torch.manual_seed(0)
    model = build_model(cfg)
    box = Instances((64, 64), gt_boxes=Boxes([[8.0, 8.0, 40.0, 48.0]]), gt_classes=torch.tensor([3]))
    example = {"image": torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8), "instances": box}
    with EventStorage():
        losses = model([example])
    assert {"loss_cls", "loss_box_reg", "loss_rpn_cls", "loss_rpn_loc"} == set(losses)
    total = sum(losses.values())
    total.backward()
    assert torch.isfinite(total)
    assert model.roi_heads.box_predictor.cls_score.weight.grad.abs().sum() > 0
    model.eval()
    with torch.no_grad():
        assert "instances" in model([{"image": example["image"]}])[0]


ANNOTATION = """<annotation><size><width>64</width><height>48</height></size><object><name>dog</name>
<pose>Left</pose><truncated>0</truncated><difficult>0</difficult><bndbox><xmin>9</xmin><ymin>9</ymin>
<xmax>40</xmax><ymax>40</ymax></bndbox></object></annotation>"""


def test_voc_evaluation_gives_a_perfect_answer_100(tmp_path):
    from detectron2.data import DatasetCatalog, MetadataCatalog
    from detectron2.data.datasets import register_pascal_voc
    from detectron2.evaluation import PascalVOCDetectionEvaluator
    from detectron2.structures import Boxes, Instances

    for folder in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ImageSets/Main/test.txt").write_text("000001\n000002\n")
    for image in ("000001", "000002"):
        (tmp_path / f"Annotations/{image}.xml").write_text(ANNOTATION)
    name = "compat_voc_test"
    register_pascal_voc(name, str(tmp_path), "test", 2007, class_names=["dog"])
    try:
        evaluator = PascalVOCDetectionEvaluator(name)
        evaluator.reset()
        for record in DatasetCatalog.get(name):
            boxes = Boxes([record["annotations"][0]["bbox"]])
            found = Instances((48, 64), pred_boxes=boxes, scores=torch.ones(1), pred_classes=torch.zeros(1).long())
            evaluator.process([record], [{"instances": found}])
        assert evaluator.evaluate()["bbox"] == pytest.approx({"AP": 100, "AP50": 100, "AP75": 100})
    finally:
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)
