"""One run, one folder: who is refused, who takes over, and who learns that the folder is another run's by now."""

import json
import os
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from commands import TINY, one_line_error, run
from torch.utils.tensorboard import SummaryWriter

from revisit.engine import run_lock
from revisit.engine.hooks import quiet_tensorboard
from revisit.engine.run_lock import FILE, check_owner, there_to_the_end
from revisit.errors import UserError


@pytest.fixture(autouse=True)
def a_quick_heart(monkeypatch):
    for name, seconds in {"BEAT": 0.05, "DEAD": 1.0, "SETTLE": 0.2}.items():
        monkeypatch.setattr(run_lock, name, seconds)


def write_lock(folder, **owner) -> None:
    """The lock of a process on another host."""
    content = {"host": "node7", "process": 1, "since": "2026-01-01 00:00:00", "place": "node7", "token": "x"}
    (folder / FILE).write_text(json.dumps({**content, "started": "5", **owner}))


def content(folder) -> dict:
    return json.loads((folder / FILE).read_text())


def test_the_second_run_in_a_folder_is_refused_and_the_next_is_not(tmp_path):
    folder = tmp_path / "new/run"
    with run_lock.run_lock(folder):
        owner = content(folder)
        said = f"alive: process {os.getpid()} on {owner['host']}, since {owner['since']}. Wait for it, stop it"
        with pytest.raises(UserError, match=said), run_lock.run_lock(folder):
            pass
        check_owner(folder)
    assert not list(folder.iterdir())
    with run_lock.run_lock(folder):
        assert content(folder)["token"] != owner["token"]


def test_a_process_here_is_known_to_be_alive_or_killed_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "DEAD", 1e9)
    owner = subprocess.Popen(["sleep", "60"])
    write_lock(tmp_path, process=owner.pid, place=run_lock._place(), started=run_lock._start_of(owner.pid))
    with pytest.raises(UserError, match=f"alive: process {owner.pid} on node7"), run_lock.run_lock(tmp_path):
        pass
    owner.kill()
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie, as in a container without an init
    with run_lock.run_lock(tmp_path):
        assert content(tmp_path)["process"] == os.getpid()
    owner.wait()


def test_a_run_on_another_host_is_alive_while_its_heart_beats(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "DEAD", 1e9)  # however late a busy machine lets it beat
    write_lock(tmp_path)
    ended = threading.Event()

    def beat():
        while not ended.wait(0.1):
            os.utime(tmp_path / FILE)

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        with pytest.raises(UserError, match="process 1 on node7, since 2026-01-01"), run_lock.run_lock(tmp_path):
            pass
    finally:
        ended.set()
        heart.join()
    assert os.listdir(tmp_path) == [FILE]


@pytest.mark.parametrize("lock", [None, '{"host": "no', "[]"])
def test_a_lock_that_nobody_touches_is_taken_over(tmp_path, capsys, lock):
    """A dead run's on another host, and what a run left that died while it was writing it."""
    write_lock(tmp_path)
    if lock:
        (tmp_path / FILE).write_text(lock)
    with run_lock.run_lock(tmp_path):
        check_owner(tmp_path)
    assert "alive? Up to 1 s to know" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_the_owner_touches_its_lock(tmp_path):
    with run_lock.run_lock(tmp_path):
        os.utime(tmp_path / FILE, (0, 0))
        while not (tmp_path / FILE).stat().st_mtime:
            pass


def test_who_lost_the_folder_while_it_stood_still_learns_it_and_leaves_the_lock(tmp_path):
    with run_lock.run_lock(tmp_path):
        write_lock(tmp_path)
        with pytest.raises(UserError, match="now belongs to process 1 on node7, since .* with --resume"):
            check_owner(tmp_path)
    assert content(tmp_path)["host"] == "node7"
    with pytest.raises(UserError, match="has lost its run.lock, or is gone"), run_lock.run_lock(tmp_path / "run"):
        (tmp_path / "run" / FILE).unlink()
        check_owner(tmp_path / "run")


def test_a_folder_that_no_run_has_locked_is_anybodys(tmp_path):
    write_lock(tmp_path)
    check_owner(tmp_path)


def test_of_many_that_take_over_one_owns_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "SETTLE", 2.0)  # longer than a thread waits for its turn
    write_lock(tmp_path)
    os.utime(tmp_path / FILE, (0, 0))
    refused = threading.Semaphore(0)

    def take(_: int) -> bool:
        try:
            with run_lock.run_lock(tmp_path):
                for _ in range(7):  # the others
                    refused.acquire()
                check_owner(tmp_path)
                return True
        except UserError:
            refused.release()
            return False

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(take, range(8))) == [False] * 7 + [True]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_ends_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="OUTPUT_DIR .*file/run cannot be written"),
        run_lock.run_lock(tmp_path / "file/run"),
    ):
        pass


def test_a_training_is_refused_in_the_folder_of_another_and_an_evaluation_is_not(toy_root, tmp_path):
    options = f"--config-file configs/toy/pretrain.yaml OUTPUT_DIR {tmp_path} {TINY}"
    with run_lock.run_lock(tmp_path):
        assert f"alive: process {os.getpid()} on" in one_line_error(f"python tools/train_net.py {options}", toy_root)
        assert os.listdir(tmp_path) == [FILE]  # nothing else was written
        run(f"python tools/train_net.py --eval-only {options}", toy_root)


def test_a_folder_that_vanishes_ends_the_run_in_one_line(toy_root, tmp_path):
    """At its next checkpoint; what cannot be written before is said in a line each."""
    imports = "IMPORTS \"('projects.ToyScenes', 'tests.engine.vanishing')\""
    options = f"{imports} OUTPUT_DIR {tmp_path}/run {TINY} SOLVER.MAX_ITER 50 TEST.EVAL_PERIOD 5"
    output = run(f"python tools/train_net.py --config-file configs/toy/pretrain.yaml {options}", toy_root, expect=2)
    assert "metrics cannot be written" in output and "this gallery will be missing" in output
    assert "\nerror: " in output and "lost its run.lock" in output and "Traceback" not in output


def test_a_folder_that_vanishes_is_no_defect_and_anything_else_is(tmp_path):
    with pytest.raises(UserError, match="run has vanished: bring it back"), there_to_the_end(tmp_path / "run"):
        (tmp_path / "run/evaluation.json").write_text("{}")
    with pytest.raises(FileNotFoundError), there_to_the_end(tmp_path):
        (tmp_path / "run/evaluation.json").write_text("{}")


def test_only_tensorboards_thread_fails_quietly(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(threading, "excepthook", said.append)

    def fail() -> None:
        raise OSError

    with quiet_tensorboard():
        writer = SummaryWriter(tmp_path / "run")
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(OSError, match="No such file"):
            while True:
                writer.add_scalar("loss", 1.0)
        assert said == []
        other = threading.Thread(target=fail)
        other.start()
        other.join()
    assert [failure.thread for failure in said] == [other]
