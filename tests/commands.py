"""Command lines as a user types them, and processes of a run, for the tests that drive whole programs.

Importing torch and its like takes 5 s of CPU, Detectron2 and this project half a second. Processes here are forks of
one that has imported them, except where a test is about how processes start. Where another checkout or a wheel comes
before this one, they are imported again.
"""

from __future__ import annotations

import atexit
import gc
import io
import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing import forkserver, resource_tracker, spawn
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REAL_DATA = Path(os.environ.get("REVISIT_REAL_DATA", ROOT.parent / "shared" / "data"))
TINY = (
    "SOLVER.IMS_PER_BATCH 8 MOCO.QUEUE_SIZE 50 MOCO.BN_GROUP 0 NEIGHBORS.NUM_NEIGHBORS 5 KNN_EVAL.IMAGE_SIZE 32 "
    "VIEWS.LARGE_SIZE 32 VIEWS.SMALL_SIZE 16 DATALOADER.NUM_WORKERS 0 TEST.EVAL_EPOCHS 0 "
    "SOLVER.WARMUP_ITERS 0 NEIGHBORS.WARMUP_EPOCHS 0 SOLVER.AMP.ENABLED False "
    "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
)
TIMEOUT = 300  # seconds


def run(command: str, datasets: Path, expect: int = 0) -> str:
    """Run one command line in the repository; returns stdout and stderr together."""
    return run_in(ROOT, _environment(datasets), command, expect)


def _environment(datasets: Path) -> dict[str, str]:
    return os.environ | {"DETECTRON2_DATASETS": str(datasets), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def run_in(folder: Path, environment: dict[str, str], command: str, expect: int = 0, start: type | None = None) -> str:
    """``start``: in place of ``popen``."""
    words = shlex.split(command)
    words[0] = sys.executable if words[0] == "python" else words[0]
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = (start or popen)(words, cwd=folder, env=environment, stdout=stdout, stderr=stderr)
        try:
            code = process.wait(TIMEOUT)
        finally:
            process.kill()
        output = "".join(file.seek(0) or file.read() for file in (stdout, stderr))
    assert code == expect, output[-3000:]
    return output


def one_line_error(command: str, datasets: Path) -> str:
    """What a command refuses, which it does before it computes anything."""
    output = run_in(ROOT, _environment(datasets), command, expect=2, start=ScriptHere)
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    return line


def wait_until(condition: Callable[[], object]) -> None:
    """For what takes seconds where nothing else runs."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def rarely_collect() -> None:
    """Let collections of garbage leave out what is imported, such as all of torch, and come when much is new: they take
    long, and in a fork copy the memory that it shares with its parent."""
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)


def launch_forks(main: Callable[..., object], processes: int, *args: object) -> list:
    """``launch`` on the CPU, with this process's environment; what ``main`` returns in each process."""
    import torch

    from revisit.engine import launch

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setattr(launch, "START_METHOD", "forkserver")
        patch.setattr(launch, "GRACE", 1.0)  # for the others, when one of these processes has failed
        everything = (dict(os.environ), folder, 1, main, args)
        launch.launch(_be_process, launch.Processes(processes), device="cpu", args=everything)
        return [torch.load(f"{folder}/{rank}.pth", weights_only=False) for rank in range(processes)]


def exit_code_of_fork(main: Callable[..., object], *args: object) -> int:
    """Of a process that calls ``main``, negative where a signal killed it; a fork of one that has computed nothing. It
    rounds as this process does: with as many threads."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        everything = (dict(os.environ), folder, torch.get_num_threads(), main, args)
        process = FORKS.Process(target=_be_process, args=everything)
        process.start()
        process.join()
        return process.exitcode


def _be_process(
    environment: dict[str, str], folder: str, threads: int, main: Callable[..., object], args: tuple
) -> None:
    import torch

    from detectron2.utils import comm

    rarely_collect()
    os.environ.update(environment)
    os.chdir(ROOT)
    torch.set_num_threads(threads)  # those of the server are of whoever started it
    torch.save(main(*args), f"{folder}/{comm.get_rank()}.pth")


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([
    *("cv2", "filelock", "fsspec.implementations.local", "fvcore.common.config", "fvcore.common.param_scheduler"),
    *("fvcore.nn", "fvcore.transforms", "hydra", "jinja2", "matplotlib.backends.backend_agg", "matplotlib.figure"),
    *("omegaconf", "onnx", "PIL.JpegImagePlugin", "PIL.TiffImagePlugin", "plotly.graph_objects", "pycocotools.coco"),
    *("pycocotools.cocoeval", "pytest", "scipy.optimize", "sklearn.cluster", "sklearn.linear_model", "tabulate"),
    *("timm", "torch._dynamo", "torch.distributed.elastic.utils.distributed", "torch.utils.flop_counter"),
    *("torch.utils.tensorboard", "torchvision.models", "torchvision.transforms.v2", "yaml", "preloaded"),
])  # fmt: skip
_OURS = {"detectron2", "preloaded", "projects", "revisit"}  # what of it is imported again for another checkout
_SHARED = "REVISIT_TESTS_FORKS"  # where the process that all of pytest-xdist's fork from listens, and its key
_start_server = forkserver._forkserver.ensure_running


def _ensure_running() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", f"{ROOT}:{ROOT}/tests")
        _start_server()


if _address := os.environ.pop(_SHARED, ""):
    forkserver._forkserver._forkserver_address, _, _key = _address.rpartition(" ")
    forkserver._forkserver._forkserver_authkey = bytes.fromhex(_key)  # which Python 3.14 asks for
    forkserver._forkserver._forkserver_alive_fd, _ = os.pipe()
    forkserver._forkserver.ensure_running = resource_tracker.ensure_running  # its owner is pytest-xdist's first process
else:
    forkserver._forkserver.ensure_running = _ensure_running


def share_forks() -> None:
    """Start the process that the others fork from, which takes 8 s of CPU, once for the processes that this starts."""
    forkserver._forkserver.ensure_running()
    os.environ[_SHARED] = f"{forkserver._forkserver._forkserver_address} {_server_key().hex()}"


def _server_key() -> bytes:
    """What Python 3.14's server asks for whoever lets it fork."""
    return getattr(forkserver._forkserver, "_forkserver_authkey", b"")


_popen = subprocess.Popen


def popen(args: Sequence[str], **options: object) -> subprocess.Popen | ForkedScript:
    """``subprocess.Popen``, but of a script or a module of Python's a fork."""
    alone = args[4:] if "-IS" in args[1:2] else args  # without revisit/jobs/with_parent.py before it
    is_python = alone[0] == sys.executable and (alone[1] in ("-u", "-m", "-P") or alone[1].endswith(".py"))
    return ForkedScript(alone, **options) if is_python else _popen(args, **options)


class ForkedScript:
    """What of ``subprocess.Popen`` this project uses, for a script or ``-m MODULE`` and its arguments."""

    _parent = FORKS

    def __init__(self, words, *, stdout=None, stderr=None, env=None, cwd=None, start_new_session=False, **_):
        self.stdout = None
        if stdout == subprocess.PIPE:
            reader, writer = os.pipe()
            self.stdout, stdout = open(reader), open(writer, "w")  # noqa: SIM115
        stdout = 1 if stdout is None else stdout
        stderr = stdout if stderr == subprocess.STDOUT else 2 if stderr is None else stderr
        streams = [
            Connection(file if isinstance(file, int) else file.fileno(), readable=False) for file in (stdout, stderr)
        ]
        place = (dict(os.environ) if env is None else env, str(cwd or os.getcwd()))
        if self._parent is FORKS:
            forkserver._forkserver.ensure_running()  # which makes the key
        args = (words[1:], *place, streams, start_new_session, _server_key())
        self._process = self._parent.Process(target=self._be_script, args=args)
        # Without this process's main script, whose imports would see another environment.
        preparation = {k: v for k, v in spawn.get_preparation_data("script").items() if not k.startswith("init_main")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spawn, "get_preparation_data", lambda name: preparation)
            self._process.start()
        for stream in streams:
            stream._handle = None  # the files are the caller's
        if self.stdout:
            stdout.close()
        self.args, self.pid, self.kill = words, self._process.pid, self._process.kill

    def __enter__(self) -> ForkedScript:
        return self

    def __exit__(self, *error: object) -> None:
        if self.stdout:
            self.stdout.close()
        self.wait()

    def communicate(self, *_: object, **__: object) -> tuple[str | None, None]:
        """What ``subprocess.run`` calls."""
        text = self.stdout.read() if self.stdout else None
        self.wait()
        return text, None

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("fork", timeout)
        return self.returncode

    @staticmethod
    def _be_script(*args: object) -> None:
        _be_script(*args)


class ScriptHere(ForkedScript):
    """A fork of this process, which has imported the project, too: for what ends before anything is computed."""

    _parent = multiprocessing.get_context("fork")

    def __init__(self, *args, **options):
        import_module("sklearn.linear_model")  # a second of imports, once and not in each fork
        super().__init__(*args, **options)

    @staticmethod
    def _be_script(*args: object) -> None:
        import torch

        torch.set_num_threads(1)  # it would wait for threads that only the process of the tests has
        atexit._clear()  # what that one does at its end
        warnings.simplefilter("default")  # there they are errors
        _be_script(*args)


def _be_script(
    words: list[str], env: dict[str, str], cwd: str, streams: list[Connection], new_session: bool, key: bytes
) -> None:
    """In the fork: what ``python WORDS`` does. What it starts forks too."""
    import cv2

    cv2.setNumThreads(0)  # what this forks would wait for threads that only this process has
    rarely_collect()
    weakref.finalize._registry.clear()  # of torch's operators, which would be unregistered one by one at the end
    _forget({"huggingface_hub"})  # which reads its environment when it is imported
    if new_session:
        os.setsid()
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream.fileno(), number)
        stream.close()
    # New ones: those of the first fork's parent remember whether its output could seek.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w", closefd=False), write_through=True) for number in (1, 2)
    )
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    is_safe = words[0] == "-P"
    words = words[1:] if words[0] in ("-u", "-P") else words  # output is unbuffered
    module = words[0] == "-m" and words[1]
    sys.argv = list(words[1:] if module else words)
    first = cwd if module else str(Path(words[0]).resolve().parent)
    if named := env.get("PYTHONPATH"):  # its packages, and not this checkout's
        sys.path = [*named.split(os.pathsep), *(path for path in sys.path if path != str(ROOT))]
        if sys.path[0] != str(ROOT):
            _forget(_OURS)
    if not is_safe:
        sys.path.insert(0, first)
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method: fork
    subprocess.Popen = popen
    forkserver._forkserver.ensure_running = lambda: None  # it is: this is a fork of it
    forkserver._forkserver._forkserver_authkey = key
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # a fork leaves without


def _forget(packages: set[str]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


def documented(document: str) -> list[str]:
    """The Python commands in a document's indented blocks: continued lines joined, comments removed.

    ``revisit VERB`` is the script that it runs.
    """
    from revisit.__main__ import TOOLS  # not above: each process imports the project in its own environment

    text = (ROOT / document).read_text().replace("\\\n", " ")
    text = re.sub(r"^    revisit ([\w-]+)", lambda verb: f"    python {TOOLS[verb[1]]}", text, flags=re.MULTILINE)
    lines = (line.split("  #")[0] for line in text.splitlines() if line.startswith("    python "))
    return [" ".join(line.split()) for line in lines]
