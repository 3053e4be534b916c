"""What is released: the wheel and its command, the Python API by its own examples, the notebook, the workflows."""

import doctest
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import zipfile
from functools import partial
from importlib.metadata import version
from pathlib import Path
from unittest.mock import MagicMock

import cv2
import jupyter_client.launcher
import nbclient
import nbformat
import numpy as np
import pytest
import yaml
from commands import ROOT, ForkedScript, popen, run, run_in, wait_until

import revisit
from revisit import api
from revisit.__main__ import TOOLS, main
from revisit.plugins import name_from_here

# Of a folder where somebody else has a package projects, too.
THEIRS = {
    "projects/__init__.py": "WHOSE = 'theirs'",
    "projects/Pictures.py": "WHOSE = 'theirs'",
    "projects/mine.py": "",
    "plug_in.py": """
import projects.Pictures, projects.mine, projects.LargeData.shards
from projects.LargeData import plugin, shards
import revisit.home.projects.LargeData.shards as own

assert shards is own is projects.LargeData.shards and projects.WHOSE == projects.Pictures.WHOSE == "theirs"
""",
}
# The project under test may be installed to be edited, with its projects: not for who sees the wheel.
NOT_EDITABLE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
"""
LABELS = ("circle", "cross", "square")


OLD_PYTHON = """#!/bin/sh
[ "$1" = -c ] && exec {python} -c "import sys; sys.version_info = (3, 10, 13); exec(sys.argv[1])" "$2"
echo "ran $@"
"""


@pytest.mark.parametrize("name", ["python3.10", "nowhere"])
def test_make_env_asks_a_python_for_its_version_before_anything_is_fetched(tmp_path, name):
    (tmp_path / "python3.10").write_text(OLD_PYTHON.format(python=sys.executable))
    (tmp_path / "python3.10").chmod(0o755)
    words = ["make", "--silent", "env", f"VENV={tmp_path}/env", f"BOOTSTRAP={tmp_path}/{name}"]
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    expected = "is not Python 3.11 to 3.14.*: expected one, by make env BOOTSTRAP=/path/to/python"
    assert done.returncode == 2 and re.match(f"make: {tmp_path}/{name} {expected}", done.stderr), done.stderr
    assert not done.stdout and not (tmp_path / "env").exists()


def test_the_wheel_has_what_the_command_runs_and_works_in_an_empty_folder(tmp_path):
    if int(version("setuptools").partition(".")[0]) < 77:
        pytest.skip("pyproject.toml states its licence as setuptools 77 and newer read it")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True, env=os.environ | {"PIP_NO_INDEX": "1"})
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        names = archive.namelist()
    (tmp_path / "site/sitecustomize.py").write_text(NOT_EDITABLE)
    assert {name.partition("/")[0] for name in names} == {
        "revisit",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }
    recipes = [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "projects").glob("*/configs/*/*.yaml")]
    assert (
        not {f"revisit/home/{path.relative_to(ROOT)}" for path in recipes} - set(names) and "revisit/py.typed" in names
    )
    (tmp_path / "empty").mkdir()

    def revisit_command(*words: str, options: tuple[str, ...] = ()) -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
        return run_in(tmp_path / "empty", environment, shlex.join(["python", *options, "-m", "revisit", *words]))

    overview = revisit_command()
    assert all(f"\n  {verb} " in overview for verb in TOOLS) and "study linear" in overview
    taught = revisit_command("study", "linear", "--help")
    assert "usage: revisit study linear" in taught and "\n    revisit study linear " in taught
    for name, code in THEIRS.items():
        (tmp_path / "empty" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "empty" / name).write_text(code)
    own = ("IMPORTS", "('projects.mine', 'plug_in')")
    dry = (*own, "DATASETS.TRAIN", f"('folder:{ROOT}/docs',)", "SOLVER.IMS_PER_BATCH", "2", "OUTPUT_DIR", "out")
    plan = ("train", "--config-file", "own_images/pretrain.yaml", "--dry-run", *dry)
    assert "dry_run.json" in revisit_command(*plan, options=("-B",))  # no fork, which has the checkout's projects


def test_a_command_that_is_shown_names_files_that_are_there(tmp_path, monkeypatch):
    assert name_from_here("tools/train_net.py") == "tools/train_net.py"
    monkeypatch.chdir(tmp_path)
    assert name_from_here("tools/train_net.py") == str(ROOT / "tools/train_net.py")


def test_doctor_says_what_there_is(tmp_path):
    text = run("python tools/doctor.py", tmp_path)
    assert (
        all(f"\n{word}: " in text for word in ("revisit", "torch", "detectron2", "cpu", "disk"))
        and "MISSING" not in text
    )


def test_doctor_says_when_revisit_is_another_project(tmp_path):
    (tmp_path / "revisit").mkdir()
    (tmp_path / "revisit/__init__.py").write_text("no Python 3.11")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    text = run_in(tmp_path, environment, f"python {ROOT}/tools/doctor.py", expect=1)
    assert f"is what Python imports, from {tmp_path}" in text and "pip uninstall revisit revisit-detectron2" in text


def test_doctor_says_when_another_revisit_is_installed_into_the_same_folder(tmp_path, monkeypatch):
    other_project = runpy.run_path(str(ROOT / "tools/doctor.py"))["other_project"]
    monkeypatch.syspath_prepend(tmp_path)
    for name, summary in {"revisit-detectron2": "kNN-MoCo", "revisit": "studies"}.items():
        folder = tmp_path / f"{name.replace('-', '_')}-0.0.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 0.0.1\nSummary: {summary}\n")
    assert "is installed, too" in other_project()


def test_doctor_finds_a_package_that_is_not_on_the_path_but_installed_to_be_edited(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not (Path(folder) / "revisit").is_dir()])
    assert runpy.run_path(str(ROOT / "tools/doctor.py"))["packages"]() == [] and "revisit: " in capsys.readouterr().out


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """A folder with 128 photographs, photos/, and boxes of three classes on the first 8, boxes.json."""
    folder, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    (folder / "photos").mkdir()
    for number in range(128):
        cv2.imwrite(str(folder / f"photos/{number:03d}.png"), rng.integers(0, 256, (48, 64, 3), np.uint8))
    pictures = [{"id": n, "file_name": f"{n:03d}.png", "height": 48, "width": 64} for n in range(8)]
    boxes = [{"id": n + 1, "image_id": n, "category_id": n % 3, "bbox": [4, 4, 30, 30]} for n in range(8)]
    classes = [{"id": n, "name": label} for n, label in enumerate(LABELS)]
    content = {"images": pictures, "annotations": boxes, "categories": classes}
    (folder / "boxes.json").write_text(json.dumps(content))
    return folder


class LastLines(doctest.OutputChecker):
    """Expected is what comes after the log of a training."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return got.endswith(want)


def test_every_public_function_has_an_example_that_runs(photos, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.chdir(photos)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    examples = {test.name.rpartition(".")[2]: test for test in doctest.DocTestFinder().find(api) if test.examples}
    order = ("pretrain", "load_backbone", "embed", "finetune", "predict")
    assert examples.keys() == set(order)
    runner = doctest.DocTestRunner(LastLines())
    examples["pretrain"].globs["pretrain"] = partial(api.pretrain, **SMALL_VIEWS)
    for name in order:
        if name == "predict":  # draws each
            for photo in sorted(Path("photos").iterdir())[8:]:
                photo.unlink()
        if name == "finetune":
            examples[name].globs[name] = partial(api.finetune, **QUICK)
        runner.run(examples[name])
    assert runner.summarize().failed == 0


def test_what_is_public_is_listed_once_and_a_mistake_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", popen)
    assert revisit.__all__ == api.__all__ and all(getattr(revisit, name) for name in revisit.__all__)
    with pytest.raises(revisit.UserError, match="^[^\n]*nowhere[^\n]*$"):
        revisit.predict("nowhere.pth", tmp_path, tmp_path / "out")
    with pytest.raises(revisit.UserError, match="^no images to embed"):
        revisit.embed(MagicMock(), [])
    with pytest.raises(revisit.UserError, match="got a str: expected load_backbone"):
        revisit.embed("imagenet:efficientnet_lite0", "photos")
    with pytest.raises(revisit.UserError, match="^unknown data set 'folders:x'"):
        revisit.embed(MagicMock(), "folders:x")


SMALL_VIEWS = {"VIEWS.LARGE_SIZE": 64, "VIEWS.SMALL_SIZE": 32}
# Of finetuning: small images, and few to measure batch statistics by.
QUICK = {"INPUT.MIN_SIZE_TRAIN": (64,), "INPUT.MIN_SIZE_TEST": 64, "TEST.PRECISE_BN.NUM_ITER": 1}
QUICKLY = f"import functools, revisit; revisit.finetune = functools.partial(revisit.finetune, **{QUICK})"


def forked_kernel(*args: object, **options: object) -> ForkedScript:
    """What starts a notebook's kernel, and what that starts, without imports."""
    kernel = popen(*args, **options)
    kernel.stdin, kernel.stderr = MagicMock(), None  # the one is closed
    wait_until(lambda: os.getpgid(kernel.pid) == kernel.pid)  # it is asked for, and signals go there
    return kernel


NOTEBOOK = ROOT / "notebooks/own_images.ipynb"
NO_PATH_OF_A_MACHINE = re.compile(r"""(^|[\s'"=(])/\w""")


def outputs_of(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def texts_of(notebook: nbformat.NotebookNode) -> str:
    data = [output.get("data", {"text/plain": output.get("text", "")}) for output in outputs_of(notebook)]
    return "\n".join(each.get("text/plain", "") for each in data)


def test_the_notebook_is_stored_with_what_it_shows_and_no_path_of_a_machine():
    notebook = nbformat.read(NOTEBOOK, 4)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in codes] == list(range(1, len(codes) + 1))
    assert sum("image/png" in output.get("data", ()) for output in outputs_of(notebook)) == 2
    assert not any(output.get("name") == "stderr" or output.output_type == "error" for output in outputs_of(notebook))
    assert not NO_PATH_OF_A_MACHINE.search(texts_of(notebook)) and NOTEBOOK.stat().st_size < 2**20


@pytest.mark.docs
def test_the_notebook_runs_and_what_is_kept_of_it_names_no_place_of_its_own(tmp_path, monkeypatch):
    for name, value in {"OUT": tmp_path, "ITERATIONS": 2, "IMAGES": 80, "PYTHONPATH": ROOT}.items():
        monkeypatch.setenv(name, str(value))
    notebook = nbformat.read(NOTEBOOK, 4)
    monkeypatch.setattr(jupyter_client.launcher, "Popen", forked_kernel)
    options = {"timeout": 600, "coalesce_streams": True, "extra_arguments": [f"--IPKernelApp.exec_lines={QUICKLY}"]}
    nbclient.NotebookClient(notebook, **options).execute(cwd=tmp_path)
    assert (tmp_path / "found/predictions.json").is_file()
    assert str(tmp_path) in texts_of(notebook)
    runpy.run_path(str(ROOT / "notebooks/execute.py"))["keep_what_is_read"](notebook, f"{tmp_path}/")
    assert str(tmp_path) not in texts_of(notebook) and texts_of(notebook).count("\n") < 100


def test_an_image_is_built_of_what_git_knows_and_nothing_else_that_lies_here():
    """By Docker's rules as far as the file uses them: the last line that fits decides."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in ("", "#")]

    def is_sent(path: str) -> bool:
        fitting = [rule for rule in rules if _fits(rule.removeprefix("!").strip("/"), path)]
        return fitting[-1].startswith("!")

    places = ("", "configs/", "projects/Objectives/", "revisit/", "datasets/", "output/", "tools/")
    names = (
        ".env",
        ".env.local",
        "a.safetensors",
        "a.onnx",
        "a.pth",
        "a.pt",
        "a.npz",
        "wandb/run/a.log",
        ".netrc",
        "id_rsa",
    )
    assert not [place + name for place in places for name in names if is_sent(place + name)]
    assert not is_sent(".venv/bin/python") and not is_sent(".git/config") and is_sent(".git/HEAD")
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    needed = ("revisit/", "projects/", "tools/", "configs/", "datasets/", "Makefile", "pyproject.toml", "setup.py")
    assert not [path for path in known if path.startswith(needed) and not is_sent(path)]


def _fits(pattern: str, path: str) -> bool:
    words = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
    return re.match(f"{words}(/|$)", path) is not None


def test_a_training_that_python_interrupts_is_asked_once_to_stop_after_a_checkpoint(monkeypatch):
    process = MagicMock()
    process.__enter__.return_value = process
    process.stdout.__iter__.side_effect = KeyboardInterrupt
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: process)
    with pytest.raises(KeyboardInterrupt):
        api._command("train")
    process.send_signal.assert_called_once_with(signal.SIGTERM)  # to a second SIGINT it would write none
    process.wait.assert_called_once()


def test_a_verb_that_is_none_is_named(monkeypatch, capsys):
    for words in (["trian"], ["study", "Nothing"]):
        monkeypatch.setattr(sys, "argv", ["revisit", *words])
        with pytest.raises(SystemExit, match="2"):
            main()
        error = capsys.readouterr().err
        assert f"error: no verb {' '.join(words)}" in error and ("mean train?" in error) == (words == ["trian"])


def test_versions_agree_and_workflows_only_call_make():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (
        citation["version"] == revisit.__version__
        and f"## [{revisit.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    )
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands and all(command.startswith("make ") for command in commands)
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines()}
    assert {command.removeprefix("make ") for command in commands} <= targets
