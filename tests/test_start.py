"""What happens before a program's work begins: what its command line waits for, and how its log looks."""

import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, run_in

from revisit import UserError, api
from revisit.engine.run_log import Shown

HELP = """
import contextlib, io, runpy, sys
kind, *scripts = sys.argv[1:]
for script in scripts:
    sys.argv = [script, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            assert not end.code
    assert "\\n    python " in text.getvalue() or script == "tools/install_detectron2.py", script
    heavy = {"torch", "detectron2", "cv2", "numpy"} & sys.modules.keys()
    assert kind != "light" or not heavy, (script, heavy)
"""


def test_help_of_every_script_teaches_and_that_of_tools_and_projects_waits_for_no_large_import(tmp_path):
    rings = ("tools", "projects/*", "studies/*", "datasets")
    paths = sorted(path for ring in rings for path in ROOT.glob(f"{ring}/*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    light = [
        name for name, text in texts.items() if name.startswith("tools/") or "/make_" in name or "run_project(" in text
    ]
    others = [name for name, text in texts.items() if name not in light and "run_command(main)" in text]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT}/datasets"}
    words = [sys.executable, "-c", HELP, "light", *light]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (tmp_path / "help.py").write_text(HELP)
    run_in(ROOT, os.environ | environment, shlex.join(["python", f"{tmp_path}/help.py", "others", *others]))
    assert len(light) > 20 and others


def test_a_run_waits_for_no_library_that_only_some_commands_use():
    """Each takes half a second and more, of every process that a run starts."""
    code = "import sys; from revisit.plugins import load_plugins; load_plugins(); import revisit.engine.trainer; "
    code += "print(sorted({'matplotlib', 'sklearn', 'onnxruntime', 'tensorboard', 'timm'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.parametrize("path", [None, str(ROOT)])
def test_a_python_without_the_environment_is_told_so_in_one_line_by_every_tool_that_needs_it(path):
    """``-S``: without the packages that are installed."""
    environment = {"PYTHONPATH": path} if path else {}
    for script in sorted(ROOT.glob("tools/*.py")):
        words = [sys.executable, "-S", str(script), "--help"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if script.stem in ("doctor", "install_detectron2"):
            assert done.returncode == 0 and "usage: " in done.stdout
        else:
            lacks = f"error: {sys.executable} lacks .*torch, cv2, detectron2: activate the environment, .*make env.*\n"
            assert done.returncode == 2 and re.fullmatch(lacks, done.stderr), (script, done.stderr)


WITHOUT_DETECTRON2 = """
import sys
from importlib.machinery import PathFinder
class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "detectron2" else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
from revisit.__main__ import main
main()
"""


def of_wheel(words: str, folder: Path, path: object = ROOT, code: str = WITHOUT_DETECTRON2) -> tuple[int, str, str]:
    """Exit code and output of a command in a process of its own."""
    command = [sys.executable, *(["-c", code] if code else ["-m", "revisit"]), *words.split()]
    done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(path)}, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words", ["embed --weights random --data folder:. --output out", "train --config-file own_images/pretrain.yaml"]
)
def test_a_verb_of_a_wheel_without_detectron2_says_in_one_line_how_to_get_it(words, tmp_path):
    code, _, errors = of_wheel(words, tmp_path)
    assert code == 2 and errors.startswith("error: Detectron2 is not installed here: run `revisit install-detectron2`")
    assert errors.count("\n") == 1, errors


def test_doctor_says_all_that_it_finds_where_detectron2_is_missing(tmp_path):
    code, text, errors = of_wheel("doctor", tmp_path)
    assert code == 1 and not errors and "\ndetectron2: MISSING: revisit install-detectron2" in text
    starts = ("python", "torch", "detectron2's operators", "gpu", "data sets", "cpu", "disk")
    assert all(re.search(f"^{start}: .", text, re.MULTILINE) for start in starts), text


def test_a_torchvision_built_for_another_torch_is_one_line_of_doctor_and_of_every_command(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    line = "torchvision was built for another torch .*: expected a pair, by pip install --upgrade torch torchvision"
    path = f"{tmp_path}:{ROOT}"
    code, text, errors = of_wheel("doctor", tmp_path, path, "")
    assert code == 1 and not errors and re.search(f"^torchvision: {line}", text, re.MULTILINE) and "\ndisk: " in text
    code, _, errors = of_wheel("embed --weights random --data folder:. --output out", tmp_path, path, "")
    assert code == 2 and re.fullmatch(f"error: {line}.*\n", errors), errors


CHILD = """
import sys
sys.path.pop(0)  # of python -c itself
import multiprocessing, subprocess
from revisit.engine.command import run_command
def main():
    process = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",))
    process.start()
    process.join()
    assert process.exitcode == 0
    subprocess.run([sys.executable, "-m", "pip", "--version"], check=True, stdout=subprocess.DEVNULL)
run_command(main)
"""


@pytest.mark.parametrize("words", [["-m", "revisit", "embed", "--help"], ["-c", CHILD]])
def test_no_process_runs_a_file_of_a_librarys_name_in_the_working_directory(words, tmp_path):
    for library in ("pickle", "socket", "argparse", "pip", "brotli"):
        (tmp_path / f"{library}.py").write_text("print('ran'); raise SystemExit(1)")
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "ran" not in done.stdout.split(), done.stdout + done.stderr


def test_the_api_starts_its_commands_without_the_working_directory(tmp_path, monkeypatch, capfd):
    (tmp_path / "pickle.py").write_text("raise SystemExit('ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with pytest.raises(UserError, match="nowhere.pth"):
        api.predict("nowhere.pth", tmp_path, tmp_path / "out")


def test_a_file_gets_the_text_of_a_colored_message_alone():
    formatter = Shown(logging.Formatter("%(levelname)s %(message)s"))
    message = "\x1b[36ma table\x1b[0m \x1b[1;31mof\x1b[m %d"
    assert formatter.format(logging.makeLogRecord({"msg": message, "args": (3,)})).endswith(" a table of 3")
