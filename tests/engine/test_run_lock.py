"""One run, one folder: who is refused, who takes over, and who learns that the folder is gone."""

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import FORKS, TIMEOUT, TINY, one_line_error, run
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
    assert locked.wait(TIMEOUT)
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


def test_a_living_runs_folder_is_refused(owner, tmp_path):
    assert f"process {owner.pid} on " in refusal(tmp_path)
    owner.kill()
    owner.join()
    assert (tmp_path / FILE).exists()
    with run_lock(tmp_path):
        assert json.loads((tmp_path / FILE).read_text())["process"] == os.getpid()
        check_owner(tmp_path)
    assert not list(tmp_path.iterdir())


def test_another_machines_run_is_refused_with_its_file(tmp_path):
    write_record(tmp_path)
    for _ in range(2):
        message = refusal(tmp_path)
        assert "process 1 on node7" in message and f"delete {tmp_path / FILE}" in message
    (tmp_path / FILE).unlink()
    with run_lock(tmp_path):
        check_owner(tmp_path)


@pytest.mark.parametrize(("record", "job"), [("{", ""), ("[]", ""), (None, "17")])
def test_a_torn_or_same_jobs_record_is_ignored(monkeypatch, tmp_path, record, job):
    """SLURM starts a job again on another node only when the first one is gone."""
    monkeypatch.setenv("SLURM_JOB_ID", job)
    write_record(tmp_path, job="17")
    if record:
        (tmp_path / FILE).write_text(record)
    with run_lock(tmp_path):
        check_owner(tmp_path)


def test_a_lost_folder_is_noticed_and_left_alone(tmp_path):
    with run_lock(tmp_path / "run"):
        shutil.move(tmp_path / "run", tmp_path / "elsewhere")
        refused(FILE, check_owner, tmp_path / "run")
        (tmp_path / "run").mkdir()
        write_record(tmp_path / "run")
        refused(FILE, check_owner, tmp_path / "run")
    assert json.loads((tmp_path / "run" / FILE).read_text())["host"] == "node7"
    check_owner(tmp_path / "run")  # nobody here holds it


def test_an_impossible_folder_ends_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    assert "file/run" in refusal(tmp_path / "file/run")


def test_a_locked_folder_allows_evaluation_but_no_training(toy_root, tmp_path):
    options = f"--config-file configs/toy/pretrain.yaml OUTPUT_DIR {tmp_path} {TINY}"
    with run_lock(tmp_path):
        files = set(os.listdir(tmp_path))
        assert f"process {os.getpid()} on" in one_line_error(f"python tools/train_net.py {options}", toy_root)
        assert set(os.listdir(tmp_path)) == files  # nothing was written
        run(f"python tools/train_net.py --eval-only {options}", toy_root)


def test_a_vanished_folder_ends_in_one_line(toy_root, tmp_path):
    """At its next checkpoint; what cannot be written before is said in a line each."""
    imports = "IMPORTS \"('tests.engine.vanishing',)\""
    options = (
        f"{imports} OUTPUT_DIR {tmp_path}/run {TINY} SOLVER.MAX_ITER 50 SOLVER.CHECKPOINT_PERIOD 4 TEST.EVAL_PERIOD 3"
    )
    output = run(f"python tools/train_net.py --config-file configs/toy/pretrain.yaml {options}", toy_root, expect=2)
    assert "metrics cannot be written" in output and "this gallery will be missing" in output
    assert "\nerror: " in output and "lost its run.lock" in output
