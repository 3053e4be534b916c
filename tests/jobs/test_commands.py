"""Jobs run once, in order, alone in their folders, and stop with the program that runs them."""

import fcntl
import json
import math
import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
from trees import refused

from revisit.jobs import commands as paper_jobs
from revisit.jobs.commands import Job
from revisit.jobs.sbatch import BatchJob

WRITE = """import sys, pathlib
result, count, *needed = map(pathlib.Path, sys.argv[1:])
assert all(path.exists() for path in needed)
result.write_text('{}')
count.open('a').write('x')"""


def run_jobs(jobs: list[Job], parallel: int) -> None:
    for job in jobs:
        job.claim()
    paper_jobs.run_jobs(jobs, parallel)


def writing_job(folder: Path, name: str, *needs: Job) -> Job:
    """A job that writes its result, and an x into NAME.count each time; it fails without the results of others."""
    result = folder / name / "result.json"
    words = (result, folder / f"{name}.count", *(needed.result for needed in needs))
    return Job(name, (("-c", WRITE, *map(str, words)),), result, needs=needs)


def kill_table(job: Job) -> None:
    """Kill the process that runs a job, once the job has printed that it has started."""
    job.claim()
    if not (table := os.fork()):
        paper_jobs.run_jobs([job], parallel=1)
        os._exit(0)
    while not (job.log.is_file() and "started" in job.log.read_text()):
        time.sleep(0.05)
    os.kill(table, signal.SIGKILL)
    os.waitpid(table, 0)


def test_jobs_leave_their_results_and_are_not_run_again(tmp_path, capsys):
    jobs = [writing_job(tmp_path, name) for name in "abc"]
    run_jobs(jobs, parallel=2)
    run_jobs(jobs, parallel=2)
    assert all(job.done for job in jobs)
    assert [(tmp_path / f"{name}.count").read_text() for name in "abc"] == ["x", "x", "x"]
    assert "3 jobs, 3 done before" in capsys.readouterr().out


def test_jobs_that_are_at_work_are_not_waited_for_one_after_the_other(tmp_path, capsys, monkeypatch):
    """Of four at a time, the first to end says that the others are about to."""
    now = [0]

    def sleep(_):
        now[0] += 60
        time.sleep(0.05)

    monkeypatch.setattr(paper_jobs, "time", SimpleNamespace(sleep=sleep, perf_counter=lambda: now[0]))
    run_jobs([writing_job(tmp_path, name) for name in "abcd"], parallel=4)
    first = re.search(r"\[1/4\] .*: (\d+) s; (\d+) minutes for the other 3", capsys.readouterr().out)
    seconds, minutes = first.groups()
    assert int(seconds) > 0 and 60 * int(minutes) <= int(seconds)


def test_a_job_finds_files_by_names_as_they_were_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = Job("here", (("-c", "open('run/result.json', 'x').write('{}')"),), Path("run/result.json"))
    run_jobs([job], parallel=1)
    assert (tmp_path / "run/result.json").is_file()
    assert f"cd {tmp_path}\n" in BatchJob("here", ("true",), job.log, hours=1, gpus=0, cpus=1).script


def test_a_failed_job_is_named_with_its_log_those_that_need_it_do_not_run_and_the_others_finish(tmp_path, capsys):
    first = writing_job(tmp_path, "first")
    second = writing_job(tmp_path, "second", first)
    broken = Job("broken", (("-c", "raise SystemExit('no data')"), ("-c", "never")), tmp_path / "broken" / "r.json")
    after = writing_job(tmp_path, "after", broken)
    refused("broken/job.log", run_jobs, [first, second, broken, after], parallel=2)
    assert second.done and not after.done and broken.log.read_text() == "no data\n"
    assert "broken: FAILED: no data" in capsys.readouterr().out


def test_a_result_whose_job_failed_after_it_counts_once_all_commands_have_ended_well(tmp_path, capsys):
    folder, again = tmp_path / "a", tmp_path / "again"
    fails = f"import pathlib, sys; pathlib.Path({str(folder / 'r.json')!r}).write_text('1'); print('no space'); "
    fails += f"sys.exit(0 if pathlib.Path({str(again)!r}).exists() else 3)"
    later = f"open({str(tmp_path / 'later')!r}, 'x')"
    job = Job("a", (("-c", fails), ("-c", later)), folder / "r.json")
    after = writing_job(tmp_path, "after", job)
    for _ in range(2):  # also of a later call
        refused("1 of 2 jobs failed; .*a/job.log; 1 that need", run_jobs, [job, after], parallel=1)
        assert "a: FAILED after it wrote r.json: no space" in capsys.readouterr().out
    refused("a was made by other commands", run_jobs, [writing_job(tmp_path, "a")], parallel=1)
    assert job.result.is_file() and not after.done
    again.touch()
    run_jobs([job, after], parallel=1)
    assert job.done and after.done and (tmp_path / "later").is_file()


def test_a_result_of_another_recipe_or_other_data_is_not_taken_for_this_one(tmp_path):
    job = writing_job(tmp_path, "a")
    run_jobs([job], parallel=1)
    for other in (replace(job, commands=(("-c", "other"),)), replace(job, facts=("train: 8000 images",))):
        refused(str(job.result.parent), run_jobs, [other], parallel=1)


def test_a_result_of_a_recipe_that_has_changed_since_is_not_taken_for_this_one(tmp_path):
    base, recipe = tmp_path / "base.yaml", tmp_path / "recipe.yaml"
    base.write_text("SOLVER:\n  BASE_LR: 0.02\n")
    recipe.write_text("_BASE_: base.yaml\n")
    job = Job("a", (("tools/train_net.py", "--config-file", str(recipe)),), tmp_path / "a/result.json")
    job.claim()
    base.write_text("# as before\nSOLVER:\n  BASE_LR: 0.02\n")
    job.claim()
    base.write_text("SOLVER:\n  BASE_LR: 0.2\n")
    assert not job.owns_result
    refused(r"made by a recipe that has changed since \(.*recipe.yaml\): give another --output", job.claim)
    record = tmp_path / "a/job.json"
    earlier = {key: value for key, value in json.loads(record.read_text()).items() if key != "recipes"}
    record.write_text(json.dumps(earlier))  # as earlier versions wrote it
    job.claim()
    record.write_text("{}")
    refused("made by other commands", job.claim)


def test_a_job_that_failed_before_its_first_checkpoint_can_be_corrected(tmp_path):
    broken = Job("broken", (("-c", "raise SystemExit('no data')"),), tmp_path / "a" / "result.json")
    refused("a/job.log", run_jobs, [broken], parallel=1)
    run_jobs([writing_job(tmp_path, "a")], parallel=1)


def test_a_job_that_failed_after_a_checkpoint_keeps_its_folder(tmp_path):
    broken = Job("broken", (("-c", "raise SystemExit('no space')"),), tmp_path / "a" / "result.json")
    broken.result.parent.mkdir()
    (broken.result.parent / "model_0000009.pth").touch()
    refused("a/job.log", run_jobs, [broken], parallel=1)
    refused("a was made by other commands", run_jobs, [writing_job(tmp_path, "a")], parallel=1)


def test_a_folder_in_which_another_process_works_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(paper_jobs, "LOCK_PATIENCE", 0.0)
    job = writing_job(tmp_path, "a")
    job.claim()
    with open(job.log, "a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        refused("a/job.log", run_jobs, [job], parallel=1)
    assert not job.done


def test_a_folder_whose_last_process_is_about_to_end_is_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paper_jobs, "LOCK_PATIENCE", math.inf)
    job, other = writing_job(tmp_path, "a"), writing_job(tmp_path, "b")
    job.claim()
    with open(job.log, "a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        lock_file, refusals = fcntl.flock, []

        def lock(file: IO, how: int) -> None:
            try:
                lock_file(file, how)
            except BlockingIOError:
                refusals.append(file.name)
                if len(refusals) == 3:
                    log.close()
                raise

        monkeypatch.setattr(fcntl, "flock", lock)
        run_jobs([job, other], parallel=2)
    assert job.done and other.done and refusals == [str(job.log)] * 3
    assert capsys.readouterr().out.count("another process works in") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="a parent's end is a signal on Linux alone")
def test_a_killed_table_leaves_no_job_running(tmp_path):
    wait = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(75)))\n"
    job = Job("slow", (("-uc", f"{wait}print('started')\ntime.sleep(300)"),), tmp_path / "slow" / "result.json")
    kill_table(job)
    with open(job.log) as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # until its last process has ended
    assert not job.done and "saved" in job.log.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="a parent's end is a signal on Linux alone")
def test_a_killed_table_is_continued_at_once(tmp_path):
    """While its job still writes what it has."""
    saving = (
        "import pathlib, signal, sys, time\n"
        "result, saved = map(pathlib.Path, sys.argv[1:])\n"
        "if saved.exists():\n"
        "    result.write_text('{}')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), saved.touch(), sys.exit(75)))\n"
        "print('started')\n"
        "time.sleep(300)\n"
    )
    result = tmp_path / "slow" / "result.json"
    job = Job("slow", (("-uc", saving, str(result), str(tmp_path / "saved")),), result)
    kill_table(job)
    run_jobs([job], parallel=1)
    assert job.done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_table_stops_its_running_jobs_and_waits_for_them(tmp_path, number):
    wait = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(75)))\n"
    job = Job("slow", (("-uc", f"{wait}print('started')\ntime.sleep(300)"),), tmp_path / "slow" / "result.json")

    def interrupt() -> None:
        while not (job.log.is_file() and "started" in job.log.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], parallel=1)
    assert not job.done and "saved" in job.log.read_text()
    assert signal.getsignal(number) is before
