"""Processes that are killed right before one of their file operations, or with a file that is still empty."""

import itertools
import os
import runpy
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import ROOT

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
ALL = "FUZZ_CASES" in os.environ  # whether long commands are killed at every change


def tool(command: str) -> Callable[[], None]:
    """A command of tools/, to be called in the process that is there."""

    def call() -> None:
        words = shlex.split(command)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            runpy.run_path(f"{ROOT}/{words[0]}", run_name="__main__")

    return call


def fork(call: Callable[[], None]) -> tuple[int, str]:
    """The exit code of a fork that calls it, negative where a signal killed it, and what it has printed."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            _be_child(call, output.fileno())
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read()


def _be_child(call: Callable[[], None], output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)
    code = 0
    try:
        call()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def killed(call: Callable[[], None], folder: Path, number: int) -> bool:
    """Whether a fork that calls it makes so many changes below a folder that it is killed before the ``number``-th.

    A file that is opened to be written from its start counts twice: before that, and when it is empty.
    """
    left = [number]

    def count(event: str, args: tuple) -> None:
        writes = event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if not (event in CHANGES or writes) or not str(args[0]).startswith(str(folder)):
            return
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if writes and args[2] & os.O_TRUNC:
            left[0] -= 1
            if left[0] == 0:
                Path(args[0]).write_bytes(b"")
                os.kill(os.getpid(), signal.SIGKILL)

    def call_counted() -> None:
        sys.addaudithook(count)  # which nothing removes, so in a fork
        call()

    code, output = fork(call_counted)
    assert code in (0, -signal.SIGKILL), output[-3000:]
    return code != 0


def kill_at_every_change(
    call: Callable[[], None],
    folder: Path,
    *,
    begin: Callable[[], None] = lambda: None,
    look: Callable[[], None],
    whole: Callable[[], None],
    step: int = 1,
) -> int:
    """Kill the call before its first change below the folder, its ``step``-th after that, and so on, until it ends.

    Each time ``begin`` makes the folder ready, ``look`` judges what the kill has left, and ``whole`` what the same
    call makes of that. Returns how many kills there were.
    """
    for number in itertools.count(1, step):
        begin()
        if not killed(call, folder, number):
            whole()
            return (number - 1) // step
        look()
        assert not killed(call, folder, 10**9)
        whole()
