"""How commands end that cannot write: on a full disk, and where nobody reads what they print."""

import errno
import os
import resource
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch
from checkpoints import run_checkpoint
from commands import ROOT
from kills import fork, tool

from revisit.checkpoint.backbone_file import write_tensors
from revisit.errors import UserError, translated, words_of_disk
from revisit.files import written_whole

CODE = 128 + signal.SIGPIPE


def fill_disk(limit: int) -> None:
    """From now on this process can write no file larger than the limit, in bytes."""
    sys.dont_write_bytecode = True  # of a module Python would leave the first part, which the other tests would read
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def on_a_full_disk(command: str, limit: int) -> str:
    """What a command says that may write no file larger than the limit, in bytes; it is one line and exit code 2."""

    def call() -> None:
        fill_disk(limit)
        tool(command)()

    code, output = fork(call)
    lines = [line for line in output.splitlines() if line.startswith("error: ")]
    assert (code, len(lines)) == (2, 1) and "Traceback" not in output, output[-3000:]
    return lines[0]


def test_a_full_disk_is_one_line_in_every_command_and_leaves_nothing_unfinished(write_pictures, tmp_path):
    torch.save(run_checkpoint(iteration=9), tmp_path / "run.pth")
    write_pictures(tmp_path / "photos", 20, size=(60, 80))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.json").write_text('{"iteration": 1, "total_loss": 2.0}\n')
    out = tmp_path / "out"
    for command in (
        f"tools/convert_to_d2.py {tmp_path}/run.pth {out}/a.pth",
        f"tools/convert_to_d2.py {tmp_path}/run.pth {out}/a.pkl",
        f"tools/make_shards.py --data folder:{tmp_path}/photos --output {out}",
        f"tools/report.py {tmp_path}/run --output {out}/page.html",
    ):
        assert "free some space" in on_a_full_disk(command, 2_000), command
        assert {path.name for path in out.glob("*")} <= {"shards.json"}, command


@pytest.mark.parametrize("suffix", ["pth", "safetensors", "pkl"])
def test_whatever_a_library_makes_of_a_full_disk_is_an_oserror(suffix, tmp_path):
    def call() -> None:
        fill_disk(1000)
        try:
            write_tensors({"weight": torch.zeros(1000)}, tmp_path / f"a.{suffix}")
        except OSError as error:
            print(words_of_disk(error))

    code, output = fork(call)
    assert code == 0 and "cannot be written" in output and not list(tmp_path.iterdir()), output


def test_the_words_of_a_disk_name_the_file_and_defects_have_none():
    full = OSError(errno.ENOSPC, "No space left on device", "/data/a.pth")
    assert words_of_disk(full).startswith("/data/a.pth cannot be written (No space left on device): free some space")
    assert "expected another place" in words_of_disk(PermissionError(errno.EACCES, "Permission denied", "/a"))
    assert words_of_disk(FileNotFoundError(errno.ENOENT, "No such file", "/a")) == words_of_disk(KeyError("a")) == ""
    with pytest.raises(UserError, match="^writing a.pth: /data/a.pth cannot be written"), translated("writing a.pth"):
        raise full


def test_an_error_of_ours_while_a_file_is_written_stays_what_it_is(tmp_path):
    with pytest.raises(ZeroDivisionError), written_whole(tmp_path / "a"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_reader_that_has_gone_ends_a_command_quietly(tmp_path):
    torch.save(run_checkpoint(iteration=9), tmp_path / "run.pth")

    def call(command: str) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        tool(command)()

    for command in ("tools/train_net.py --help", f"tools/convert_to_d2.py {tmp_path}/run.pth {tmp_path}/a.pth"):
        assert fork(partial(call, command)) == (CODE, ""), command
    assert (tmp_path / "a.pth").is_file()


def test_a_full_disk_that_takes_the_output_is_one_line():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    words = [sys.executable, "tools/report.py", "--help"]
    with open("/dev/full", "w") as full:
        process = subprocess.run(words, cwd=ROOT, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert process.returncode == UserError.EXIT_CODE
    assert process.stderr.startswith("error: a file cannot be written (No space left on device)")
    assert process.stderr.count("\n") == 1
