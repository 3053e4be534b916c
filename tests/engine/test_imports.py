"""IMPORTS brings in modules from outside of the tree before anything is built."""

import os
import subprocess
import sys

import pytest
from commands import ROOT, TINY

from revisit import config
from revisit.engine.setup import make_config
from revisit.errors import UserError

MODULE = """
from revisit.config import adds_keys

from detectron2.data import DatasetCatalog


@adds_keys
def add_my_keys(cfg):
    cfg.MOCO.MINE = 0.5


DatasetCatalog.register("{name}_set", lambda: [{"file_name": f"{folder}/photos/{n:03d}.png"} for n in range(16)])
"""


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Write a module into the working directory, a folder where only IMPORTS finds it; returns the value of that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(config, "_ADDED_BY", dict(config._ADDED_BY))

    def write(name: str, text: str = MODULE) -> str:
        (tmp_path / f"{name}.py").write_text(text.replace("{name}", name).replace("{folder}", str(tmp_path)))
        return f"('{name}',)"

    return write


def base_config(*opts: str):
    return make_config(str(ROOT / "configs/Base-Pretrain.yaml"), opts)


def test_a_module_in_the_working_directory_adds_keys_before_the_config_is_merged(write_module):
    names = write_module("my_keys")
    assert base_config("MOCO.MINE", "0.25", "IMPORTS", names).MOCO.MINE == 0.25
    assert base_config("IMPORTS", names).MOCO.MINE == 0.5  # a second config starts from the defaults
    assert base_config().IMPORTS == ()


@pytest.mark.parametrize("value", ["('my_{n}',)", "[my_{n}]", "('json', 'my_{n}')"])
def test_a_config_file_inherits_imports_from_its_base_and_the_command_line_wins(value, write_module, tmp_path):
    name = f"my_{len(value)}"
    write_module(name)
    (tmp_path / "base.yaml").write_text(
        f"_BASE_: {ROOT}/configs/Base-Pretrain.yaml\nIMPORTS: {value.replace('my_{n}', name)}\n"
    )
    (tmp_path / "mine.yaml").write_text("_BASE_: base.yaml\nMOCO:\n  MINE: 2.0\n")
    assert make_config("mine.yaml", ()).MOCO.MINE == 2.0
    assert make_config("mine.yaml", ("IMPORTS", "('math',)", "MOCO.MINE", "3.0")).IMPORTS == ("math",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("('no_such_method',)", r"IMPORTS: cannot import 'no_such_method' \(No module named 'no_such_method'\): "),
        ("('projects.NoSuch.one',)", r"cannot import 'projects.NoSuch.one' \(No module named 'projects.NoSuch'\)"),
        ("('my_method.py',)", "cannot import 'my_method.py' .*expected a module's dotted name"),
        ("('projects/ToyScenes',)", "cannot import 'projects/ToyScenes' .*no module can have this name"),
        ("(3,)", "cannot import 3"),
        ("('',)", "cannot import ''"),
        ("('projects.ToyScenes')", "command line: Type mismatch"),  # no tuple
    ],
)
def test_a_module_that_cannot_be_found_is_named_in_one_line(names, message):
    with pytest.raises(UserError, match=message) as caught:
        base_config("IMPORTS", names)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [("import no_such_package", ModuleNotFoundError), ("1 / 0", ZeroDivisionError), ("def f(:", SyntaxError)],
)
def test_what_a_modules_own_code_raises_stays_its_own(text, error, write_module):
    with pytest.raises(error):
        base_config("IMPORTS", write_module("my_broken", text))


def test_every_process_of_a_run_imports_what_lies_beside_the_user(write_module, write_pictures, tmp_path):
    write_pictures(tmp_path / "photos", 16)
    names = write_module("my_photos")
    command = [sys.executable, f"{ROOT}/tools/train_net.py", "--config-file", f"{ROOT}/configs/Base-Pretrain.yaml"]
    options = f"DATASETS.TRAIN ('my_photos_set',) IMPORTS {names} MOCO.MINE 1.0 MODEL.RESNETS.DEPTH 18 {TINY}".split()
    done = subprocess.run(
        [*command, "--num-gpus", "2", *options, "SOLVER.MAX_ITER", "2", "OUTPUT_DIR", str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "MINE: 1.0" in (tmp_path / "run" / "config.yaml").read_text()
    assert (tmp_path / "run" / "model_final.pth").is_file()
