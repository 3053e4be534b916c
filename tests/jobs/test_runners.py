"""Whoever makes the parts of a job, each is made once, and what comes out is the same."""

import multiprocessing
import os
import shutil
import signal
import socket
import sys
from argparse import ArgumentParser, ArgumentTypeError
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from commands import FORKS, wait_until
from trees import refusal, refused

from revisit.command.options import share_of_gpus
from revisit.errors import UserError
from revisit.files import written_whole
from revisit.jobs import parts
from revisit.jobs.options import add_runner_options, runner_of
from revisit.jobs.parts import Work, in_parts
from revisit.jobs.processes import HERE, Processes
from revisit.jobs.runner import in_batches
from revisit.jobs.shares import Share


def squares(notes: Path, part: range) -> dict:
    """Of the numbers of a part; notes who has made it. The first worker that meets a file ``kill`` there dies."""
    if (notes / "kill").exists() and part.start == 6:
        (notes / "kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    with open(notes / "made", "a") as file:
        file.write(f"{part.start} ")
    odd = [f"{number} is odd" for number in part if number % 2]  # of parts of one number some have none
    return {"squares": np.array([number**2 for number in part]), "odd": np.array(odd, str)}


def work(notes: Path, count: int = 20) -> Work:
    notes.mkdir(exist_ok=True)
    return Work("squares", count, 3, partial(squares, notes))


def made(notes: Path) -> list[int]:
    return sorted(map(int, (notes / "made").read_text().split()))


def result(work: Work, folder: Path, runner=HERE) -> list[int]:
    with in_parts(work, folder / "parts", runner) as arrays:
        assert arrays["odd"].tolist() == [f"{number} is odd" for number in range(1, work.count, 2)]
        return arrays["squares"].tolist()


def left_in_files(work: Work, folder: Path) -> list[str]:
    """The files of a job that could not save what it has made."""
    with pytest.raises(OSError), in_parts(work, folder / "parts"):
        raise OSError
    return sorted(os.listdir(folder / "parts"))


EXPECTED = [number**2 for number in range(20)]
STARTS = list(range(0, 20, 3))


def test_a_folder_of_that_name_which_holds_other_files_is_left_alone(tmp_path):
    photos = tmp_path / "parts"
    photos.mkdir()
    (photos / "a.jpg").touch()
    refused("is for parts of the work, and has a.jpg: give another", result, work(tmp_path / "notes"), tmp_path)
    assert os.listdir(photos) == ["a.jpg"] and not (tmp_path / "notes/made").exists()


def test_a_folder_to_which_another_process_is_writing_its_first_part_is_of_parts(tmp_path):
    (tmp_path / "parts").mkdir()
    with written_whole(tmp_path / "parts/000000000-000000003.npz") as temporary:
        temporary.touch()
        assert len(os.listdir(tmp_path / "parts")) == 1
        parts.own_folder(tmp_path / "parts")


def test_parts_are_put_together_in_order_and_deleted(tmp_path):
    assert result(work(tmp_path / "notes"), tmp_path) == EXPECTED
    assert made(tmp_path / "notes") == STARTS and not (tmp_path / "parts").exists()


def test_parts_stay_until_what_they_make_is_saved(tmp_path):
    def save() -> None:
        with in_parts(work(tmp_path / "notes"), tmp_path / "parts"):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        save()
    assert result(work(tmp_path / "notes"), tmp_path) == EXPECTED and made(tmp_path / "notes") == STARTS


def test_a_damaged_file_is_named_and_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "SECONDS", 0)
    assert len(left_in_files(work(tmp_path / "notes"), tmp_path)) == len(STARTS)
    (tmp_path / "parts/000000003-000000006.npz").write_bytes(b"")
    refused("3-000000006.npz was damaged, and is deleted now: the same command", result, work(tmp_path), tmp_path)
    assert result(work(tmp_path / "notes"), tmp_path) == EXPECTED
    assert made(tmp_path / "notes") == sorted([*STARTS, 3])


def test_parts_that_take_no_time_share_a_file_but_for_gaps_and_may_be_in_two(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "SECONDS", 1000)
    assert left_in_files(work(tmp_path / "notes"), tmp_path) == ["000000000-000000020.npz"]
    (tmp_path / "other").mkdir()
    assert share(tmp_path / "other", 1, 2) is None
    names = [f"{start:09d}-{start + 3:09d}.npz" for start in STARTS[1::2]]
    assert sorted(os.listdir(tmp_path / "other/parts")) == names
    for name in names:
        (tmp_path / "other/parts" / name).rename(tmp_path / "parts" / name)
    assert result(work(tmp_path / "notes"), tmp_path) == EXPECTED and made(tmp_path / "notes") == STARTS


def test_a_killed_worker_is_one_line_and_the_same_call_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: FORKS)  # which have imported torch
    job = work(tmp_path / "notes")
    (tmp_path / "notes/kill").touch()
    others = {*multiprocessing.active_children()}
    refused("squares: a worker was killed", result, job, tmp_path, Processes(2))
    wait_until(lambda: {*multiprocessing.active_children()} <= others)
    in_files = {int(path.stem.partition("-")[0]) for path in (tmp_path / "parts").glob("*.npz")}
    (tmp_path / "notes/made").unlink(missing_ok=True)  # the other worker may have ended between a note and its file
    assert result(job, tmp_path, Processes(2)) == EXPECTED
    assert made(tmp_path / "notes") == sorted({*STARTS} - in_files)


def share(folder: Path, number: int, count: int) -> list[int] | None:
    try:
        return result(work(folder / "notes"), folder, Share(number, count))
    except SystemExit as end:
        assert end.code == 0


def test_of_several_processes_the_one_that_finds_all_parts_puts_them_together(tmp_path, capsys):
    assert [share(tmp_path, number, 3) for number in range(3)] == [None, None, EXPECTED]
    assert made(tmp_path / "notes") == STARTS and sorted(os.listdir(tmp_path)) == ["notes"]
    assert "process 1 of 3 has made its parts" in capsys.readouterr().out


def test_more_processes_than_parts_leave_some_without_one(tmp_path):
    assert [share(tmp_path, number, 9) for number in reversed(range(9))] == [None] * 8 + [EXPECTED]


def test_of_very_many_parts_a_process_makes_batches_of_neighbours(tmp_path):
    of_100_parts = work(tmp_path / "notes", 300)
    with pytest.raises(SystemExit):
        result(of_100_parts, tmp_path, Share(1, 2))
    assert made(tmp_path / "notes") == [3 * number for number in range(100) if number // 3 % 2]


def test_a_process_that_is_alone_leaves_no_lock(tmp_path):
    with Share(0, 2).alone(tmp_path):
        assert os.listdir(tmp_path)
    assert not os.listdir(tmp_path)


def test_what_a_process_left_a_last_call_makes_and_puts_together(tmp_path):
    assert share(tmp_path, 1, 2) is None
    assert result(work(tmp_path / "notes"), tmp_path) == EXPECTED and made(tmp_path / "notes") == STARTS


def test_one_process_at_a_time_puts_parts_together(tmp_path):
    """While it does, another one that finds all of them ends."""
    with in_parts(work(tmp_path / "notes"), tmp_path / "parts", Share(0, 1)) as arrays:
        assert share(tmp_path, 1, 2) is None
        assert arrays["squares"].tolist() == EXPECTED


def test_ten_thousand_parts_are_few_batches_and_few_are_one_each():
    assert max(map(len, in_batches(list(range(10_000)), 2))) == 312
    assert in_batches([4, 7, 9], 2) == [[4], [7], [9]]
    assert sum(in_batches(list(range(100)), 3), []) == list(range(100))


def runner(options: str, monkeypatch, **environment):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", *(f"SLURM_ARRAY_TASK_{name}" for name in ARRAY)):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    parser = ArgumentParser()
    add_runner_options(parser)
    return runner_of(parser.parse_args(options.split()))


ARRAY = ("ID", "COUNT", "MIN", "MAX", "STEP")


def array(*values) -> dict:
    return {f"SLURM_ARRAY_TASK_{name}": value for name, value in zip(ARRAY, values, strict=False)}


def test_the_options_say_who_makes_the_parts(monkeypatch):
    assert runner("", monkeypatch) == Processes(1) and runner("--processes 3", monkeypatch) == Processes(3)
    of_torchrun = {"RANK": 1, "WORLD_SIZE": 4, "LOCAL_RANK": 1}
    assert runner("--on torchrun", monkeypatch, **of_torchrun) == Share(1, 4)
    assert runner("--on slurm", monkeypatch, **array(3, 8)) == Share(3, 8)
    assert runner("--on slurm", monkeypatch, **array(7, 4, 1, 7, 2)) == Share(3, 4)
    assert runner("--on slurm", monkeypatch, **array(5, 1, 5, 5, 1)) == Share(0, 1)  # submitted again, alone


@pytest.mark.parametrize(
    ("options", "environment", "named"),
    [
        ("--on elsewhere", {}, "expected here, torchrun, slurm, ray or ray://HOST:PORT"),
        ("--on torchrun", {}, "RANK is '': expected a whole number; torchrun sets it"),
        ("--on torchrun", {"RANK": 2, "WORLD_SIZE": 2, "LOCAL_RANK": 0}, "expected a rank below it"),
        ("--on slurm", {}, "SLURM_ARRAY_TASK_ID is '': expected a whole number; SLURM sets it in a job array"),
        (
            "--on slurm",
            array(9, 2, 3, 9, 1),
            "task 9 of 2 tasks from 3 to 9 in steps of 1: expected tasks without a gap",
        ),
        ("--on slurm", array(8, 8), "expected tasks without a gap"),
        ("--on slurm", array(0, 0), "task 0 of 0 tasks from 0 to -1 in steps of 1: expected tasks without a gap"),
        ("--on slurm", array(1, "many"), "SLURM_ARRAY_TASK_COUNT is 'many'"),
        ("--on slurm --processes 2", array(0, 2), "each process is one worker"),
        ("--num-gpus 1", {}, "expected --on ray"),
        ("--on ray://", {}, "expected ray://HOST:PORT"),
    ],
)
def test_what_contradicts_is_refused_in_one_line(monkeypatch, options, environment, named):
    assert named in refusal(runner, options, monkeypatch, **environment)


@pytest.mark.parametrize("text", ["-1", "1.5", "nan", "inf"])
def test_an_amount_of_gpus_that_no_task_can_have_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="expected 0 to 1, or a whole number"):
        share_of_gpus(text)
    assert [share_of_gpus(amount) for amount in ("0", "0.25", "2")] == [0, 0.25, 2]


def test_ray_that_is_not_installed_or_not_there_is_one_line(monkeypatch, tmp_path):
    job, without = work(tmp_path / "notes"), runner("--on ray", monkeypatch)
    monkeypatch.setitem(sys.modules, "ray", None)
    refused("--on ray needs the package ray", result, job, tmp_path, without)
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
    nobody = runner(f"--on {address}", monkeypatch)
    refused(f"no Ray cluster at {address} .*expected the head", result, job, tmp_path, nobody)


def test_a_second_command_in_a_folder_is_refused_while_the_first_works_there(tmp_path):
    with in_parts(work(tmp_path / "notes"), tmp_path / "parts"):
        refused(f"another command works in {tmp_path}: wait for its end", result, work(tmp_path / "notes"), tmp_path)
    assert result(work(tmp_path / "notes"), tmp_path) == EXPECTED and not (tmp_path / "parts.in_charge").exists()


@pytest.mark.parametrize("removed", [".", "parts"])
def test_a_folder_that_is_removed_while_a_command_works_there_is_one_line(removed, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "SECONDS", 0)
    (tmp_path / "out").mkdir()

    def compute(part: range) -> dict:
        if part.start == 9:
            shutil.rmtree(tmp_path / "out" / removed)
        return {"squares": np.array([number**2 for number in part])}

    def save() -> None:
        with in_parts(Work("squares", 20, 3, compute), tmp_path / "out/parts"):
            raise AssertionError

    refused(f"{tmp_path}/out/parts is gone, which something has removed .* give the same command again", save)


def test_parts_that_vanish_before_they_are_put_together_are_one_line(tmp_path):
    def compute(part: range) -> dict:
        return {"squares": np.array(part)}

    def lose(self: Processes, parts: object) -> None:
        shutil.rmtree(tmp_path / "parts")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match="has lost 7 of 7 parts"):
        patch.setattr(Processes, "run", lose)
        with in_parts(Work("squares", 20, 3, compute), tmp_path / "parts"):
            raise AssertionError
