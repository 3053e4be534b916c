"""Command lines as a user types them, and processes of a run, for the tests that drive whole programs.

Importing torch and its like takes 3 s of CPU. Processes here are forks of one that has imported them, except where a
test is about how processes start. Detectron2 and this project, 0.2 s, are imported by each, in its own environment.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch.multiprocessing as mp

ROOT = Path(__file__).resolve().parent.parent
TINY = (
    "SOLVER.IMS_PER_BATCH 8 MOCO.QUEUE_SIZE 50 MOCO.BN_SPLITS 1 KNN_MOCO.NUM_NEIGHBORS 5 KNN_EVAL.IMAGE_SIZE 32 "
    "VIEWS.LARGE_SIZE 32 VIEWS.SMALL_SIZE 16 DATALOADER.NUM_WORKERS 0 TEST.EVAL_EPOCHS 0 "
    "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
)
TIMEOUT = 300  # seconds

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([
    *("cv2", "matplotlib.pyplot", "pycocotools.cocoeval", "scipy.optimize", "sklearn.linear_model", "torch._dynamo"),
    *("torch.utils.flop_counter", "torch.utils.tensorboard", "torchvision.models"),
])  # fmt: skip


def run(command: str, datasets: Path, expect: int = 0, *, fresh: bool = False) -> str:
    """Run one command line in the repository; returns stdout and stderr together.

    ``fresh`` starts Python as a user does, and its processes too, instead of forking.
    """
    words = shlex.split(command)
    environment = os.environ | {"DETECTRON2_DATASETS": str(datasets), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if words[0] == "python" and words[1].endswith(".py") and not fresh:
        code, output = _run_fork(words[1:], environment)
    else:
        words[0] = sys.executable if words[0] == "python" else words[0]
        done = subprocess.run(words, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=TIMEOUT)
        code, output = done.returncode, done.stdout + done.stderr
    assert code == expect, output[-3000:]
    return output


def one_line_error(command: str, datasets: Path) -> str:
    output = run(command, datasets, expect=2)
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    return line


def launch_forks(main: Callable[..., object], processes: int, *args: object) -> None:
    """``launch`` on the CPU, with this process's environment."""
    from revisit.engine.launch import Processes, launch

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setattr(mp, "start_processes", partial(mp.start_processes, start_method="forkserver"))
        launch(_main_of_fork, Processes(processes), device="cpu", args=(dict(os.environ), main, args))


def _main_of_fork(environment: dict[str, str], main: Callable[..., object], args: tuple) -> None:
    os.environ.update(environment)
    os.chdir(ROOT)
    main(*args)


def _run_fork(words: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and output of a script with its arguments."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # for the first fork's parent
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        process = _forks.Process(target=_be_script, args=(words, environment, outputs))
        process.start()
        process.join(TIMEOUT)
        process.kill()
        process.join()
        return process.exitcode, "".join(path.read_text() for path in outputs)


def _be_script(words: list[str], environment: dict[str, str], outputs: list[Path]) -> None:
    """In the fork: what ``python WORDS`` does."""
    for stream, path in zip((1, 2), outputs, strict=True):
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.argv = list(words)
    tests = str(ROOT / "tests")
    sys.path[:] = [str((ROOT / words[0]).parent), *(p for p in sys.path if not p.startswith(tests))]
    mp.start_processes = partial(mp.start_processes, start_method="fork")
    try:
        runpy.run_path(words[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # a fork leaves without


def documented(document: str) -> list[str]:
    """The Python commands in a document's indented blocks: continued lines joined, comments removed."""
    text = (ROOT / document).read_text().replace("\\\n", " ")
    lines = (line.split("  #")[0] for line in text.splitlines() if line.startswith("    python "))
    return [" ".join(line.split()) for line in lines]
