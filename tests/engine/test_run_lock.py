"""One run, one folder: who is refused, who takes over, and who learns that the folder is gone."""

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import FORKS, TINY, one_line_error, run
from trees import refused

from revisit.engine.run_lock import FILE, check_owner, run_lock
from revisit.errors import UserError


def hold(folder: Path, locked) -> None:
    with run_lock(folder):
        locked.set()
        signal.pause()


@pytest.fixture
def owner(tmp_path) -> Iterator[multiprocessing.Process]:
    """A process that holds ``tmp_path``."""
    locked = FORKS.Event()
    process = FORKS.Process(target=hold, args=(tmp_path, locked))
    process.start()
    assert locked.wait(60)
    yield process
    process.kill()
    process.join()


def write_record(folder: Path, **owner: object) -> None:
    record = {"host": "node7", "process": 1, "since": "2026-01-01 00:00:00", "job": "", **owner}
    (folder / FILE).write_text(json.dumps(record))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught, run_lock(folder):
        pass
    return str(caught.value)


def test_the_run_of_a_living_process_is_refused_by_name_and_a_killed_ones_is_taken_over(owner, tmp_path):
    assert f"process {owner.pid} on " in refusal(tmp_path)
    owner.kill()
    owner.join()
    assert (tmp_path / FILE).exists()
    with run_lock(tmp_path):
        assert json.loads((tmp_path / FILE).read_text())["process"] == os.getpid()
        check_owner(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_on_another_machine_is_refused_with_the_file_to_delete(tmp_path):
    write_record(tmp_path)
    for _ in range(2):
        message = refusal(tmp_path)
        assert "process 1 on node7" in message and f"delete {tmp_path / FILE}" in message
    (tmp_path / FILE).unlink()
    with run_lock(tmp_path):
        check_owner(tmp_path)


@pytest.mark.parametrize(("record", "job"), [("{", ""), ("[]", ""), (None, "17")])
def test_a_record_that_was_cut_short_or_is_of_the_same_job_is_in_nobodys_way(monkeypatch, tmp_path, record, job):
    """SLURM starts a job again on another node only when the first one is gone."""
    monkeypatch.setenv("SLURM_JOB_ID", job)
    write_record(tmp_path, job="17")
    if record:
        (tmp_path / FILE).write_text(record)
    with run_lock(tmp_path):
        check_owner(tmp_path)


def test_who_lost_the_folder_learns_it_and_leaves_the_next_owners_record(tmp_path):
    with run_lock(tmp_path / "run"):
        shutil.move(tmp_path / "run", tmp_path / "elsewhere")
        refused(FILE, check_owner, tmp_path / "run")
        (tmp_path / "run").mkdir()
        write_record(tmp_path / "run")
        refused(FILE, check_owner, tmp_path / "run")
    assert json.loads((tmp_path / "run" / FILE).read_text())["host"] == "node7"
    check_owner(tmp_path / "run")  # nobody here holds it


def test_a_folder_that_cannot_be_made_ends_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    assert "file/run" in refusal(tmp_path / "file/run")


def test_a_training_is_refused_in_the_folder_of_another_and_an_evaluation_is_not(toy_root, tmp_path):
    options = f"--config-file configs/toy/pretrain.yaml OUTPUT_DIR {tmp_path} {TINY}"
    with run_lock(tmp_path):
        files = set(os.listdir(tmp_path))
        assert f"process {os.getpid()} on" in one_line_error(f"python tools/train_net.py {options}", toy_root)
        assert set(os.listdir(tmp_path)) == files  # nothing was written
        run(f"python tools/train_net.py --eval-only {options}", toy_root)


def test_a_folder_that_vanishes_ends_the_run_in_one_line(toy_root, tmp_path):
    """At its next checkpoint; what cannot be written before is said in a line each."""
    imports = "IMPORTS \"('projects.ToyScenes', 'tests.engine.vanishing')\""
    options = f"{imports} OUTPUT_DIR {tmp_path}/run {TINY} SOLVER.MAX_ITER 50 TEST.EVAL_PERIOD 5"
    output = run(f"python tools/train_net.py --config-file configs/toy/pretrain.yaml {options}", toy_root, expect=2)
    assert "metrics cannot be written" in output and "this gallery will be missing" in output
    assert "\nerror: " in output and "lost its run.lock" in output
