from __future__ import annotations

import argparse
import fcntl
import json
import os
import runpy
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from projects.PaperTables.jobs import Job, run_jobs
from projects.PaperTables.plots import plot_purity, plot_sweeps, sweep_points
from projects.PaperTables.toy import RANDOM_INIT, TABLES, as_markdown, choose_rows, collect, make_jobs, metrics_files
from revisit.errors import UserError

WRITE = (
    "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('{}'); pathlib.Path(sys.argv[2]).open('a').write('x')"
)


def writing_job(folder: Path, name: str) -> Job:
    result = folder / name / "result.json"
    return Job(name, (("-c", WRITE, str(result), str(folder / f"{name}.count")),), result)


def test_jobs_leave_their_results_and_are_not_run_again(tmp_path, capsys):
    jobs = [writing_job(tmp_path, name) for name in "abc"]
    run_jobs(jobs, parallel=2)
    run_jobs(jobs, parallel=2)
    assert all(job.done for job in jobs)
    assert [(tmp_path / f"{name}.count").read_text() for name in "abc"] == ["x", "x", "x"]
    assert "3 jobs, 3 done before" in capsys.readouterr().out


def test_a_failed_job_is_named_with_its_log_and_the_others_finish(tmp_path):
    broken = Job("broken", (("-c", "raise SystemExit('no data')"), ("-c", "never")), tmp_path / "broken" / "r.json")
    good = writing_job(tmp_path, "good")
    with pytest.raises(UserError, match="1 of 2 jobs failed; their output is in .*broken/job.log"):
        run_jobs([broken, good], parallel=1)
    assert good.done and (tmp_path / "broken" / "job.log").read_text() == "no data\n"


@pytest.mark.parametrize("table", TABLES)
def test_every_row_set_and_seed_has_its_own_folder_and_recipe(table, toy_datasets, tmp_path):
    rows = choose_rows(table, None)
    jobs = make_jobs(rows, ["object-centric", "scene-centric"], [1, 2], tmp_path, ())
    assert len(jobs) == 2 + 2 * 2 * len(rows) == len({job.result for job in jobs}) == len({job.name for job in jobs})
    assert len({job.commands for job in jobs}) == len(jobs)
    assert all(Path(command[2]).is_file() for job in jobs for command in job.commands)
    assert all("--resume" in command for job in jobs for command in job.commands)


def test_the_papers_values_are_those_of_the_same_row():
    """Against the tables "ablation" (VOC SVM) and "knn" of the paper; its lambda and mining rows have k 20."""
    ablation = {row.label: row.paper for row in TABLES["ablation"]}
    assert ablation == {
        "MoCo": 76.1, "+MC": 81.3, "+MC+CC": 82.1, "+MC+CC+m": 82.8, "+MC+CC+m+A": 83.7, "+MC+CC+m+A+NN": 85.1,
    }  # fmt: skip
    k = {1: 83.6, 5: 84.0, 10: 84.1, 20: 84.2, 50: 84.3}
    weight = {"0.0": 82.8, "0.1": 83.8, "0.2": 84.1, "0.8": 80.7}
    knn = {row.label: row.paper for row in TABLES["knn"]}
    assert knn == {
        **{f"k {value}, lambda 0.4": score for value, score in k.items()},
        **{f"k 10, lambda {value}": score for value, score in weight.items()},
        "k 10, lambda 0.4, mined after the head": 82.8,
    }


def test_a_result_of_another_recipe_or_other_data_is_not_taken_for_this_one(toy_datasets, tmp_path):
    job = writing_job(tmp_path, "a")
    run_jobs([job], parallel=1)
    for other in (replace(job, commands=(("-c", "other"),)), replace(job, facts=("train: 8000 images",))):
        with pytest.raises(UserError, match="was made by another recipe or from other data"):
            run_jobs([other], parallel=1)


def test_a_folder_in_which_another_process_works_is_left_alone(tmp_path):
    job = writing_job(tmp_path, "a")
    job.claim()
    with open(job.log, "a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="a is being run by another process"):
            run_jobs([job], parallel=1)
    assert not job.done


@pytest.fixture
def ctrl_c_interrupts():
    """Where the tests run in the background of a shell, it has switched Ctrl-C off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_interrupts")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_study_stops_its_running_jobs(tmp_path, number):
    wait = "import sys, time; print('started', flush=True); time.sleep(300)"
    job = Job("slow", (("-c", wait),), tmp_path / "slow" / "result.json")

    def interrupt() -> None:
        while not (job.log.is_file() and "started" in job.log.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    start = time.monotonic()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], parallel=1)
    assert time.monotonic() - start < 250 and not job.done


def test_without_toy_scenes_no_job_is_started(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    with pytest.raises(UserError, match="make_toy_scenes.py"):
        make_jobs(choose_rows("ablation", None), ["object-centric"], [1], tmp_path, ())


def test_an_unknown_row_is_refused_with_the_names_there_are():
    with pytest.raises(UserError, match=r"ablation has no row '\+CC': expected some of 'MoCo', '\+MC'"):
        choose_rows("ablation", ["+CC"])


def test_the_table_gives_mean_and_deviation_over_seeds(toy_datasets, tmp_path):
    rows = choose_rows("ablation", ["MoCo"])
    for job, score in zip(make_jobs(rows, ["object-centric"], [1, 2], tmp_path, ()), (30, 36, 10, 12), strict=True):
        job.result.parent.mkdir(parents=True)
        job.result.write_text(json.dumps({"knn_top1": score, "linear_top1": score + 1}))
    results = collect(rows, ["object-centric"], [1, 2], tmp_path)
    assert results[1]["knn_top1"] == [30, 36]
    lines = as_markdown(results, ["object-centric"]).splitlines()
    assert lines[2] == f"| {RANDOM_INIT.label} | 11.0 ± 1.4 | 12.0 ± 1.4 |  |"
    assert lines[3] == "| MoCo | 33.0 ± 4.2 | 34.0 ± 4.2 | 76.1 |"


def finished_sweep(folder: Path) -> list[dict]:
    rows = choose_rows("knn", None)
    for n, job in enumerate(make_jobs(rows, ["object-centric"], [1, 2], folder, ())):
        job.result.parent.mkdir(parents=True)
        job.result.write_text(json.dumps({"knn_top1": n, "linear_top1": n + 1}))
        lines = [json.dumps({"iteration": i, "neighbor_purity": 10.0 + i}) for i in range(3)]
        (job.result.parent / "metrics.json").write_text("\n".join(lines))
    return collect(rows, ["object-centric"], [1, 2], folder)


def test_each_sweep_runs_along_one_key_and_through_the_centre(toy_datasets, tmp_path):
    results = finished_sweep(tmp_path)
    assert [x for x, _ in sweep_points(results, "KNN_MOCO.NUM_NEIGHBORS")] == [1, 5, 10, 20, 50]
    weights = sweep_points(results, "KNN_MOCO.WEIGHT")
    assert [x for x, _ in weights] == [0, 0.1, 0.2, 0.4, 0.8]
    assert weights[3][1]["row"] == "k 10, lambda 0.4"


def test_sweeps_and_purity_are_drawn(toy_datasets, tmp_path):
    results = finished_sweep(tmp_path)
    plot_sweeps(results, tmp_path / "sweep.png")
    plot_sweeps(results[-1:], tmp_path / "empty.png")  # after the head: on neither line
    assert not np.array_equal(cv2.imread(str(tmp_path / "sweep.png")), cv2.imread(str(tmp_path / "empty.png")))
    files = metrics_files(choose_rows("knn", None), "object-centric", [1, 2], tmp_path)
    assert plot_purity(files, tmp_path / "purity.png")
    for name in ("sweep.png", "purity.png"):
        assert cv2.imread(str(tmp_path / name)).shape[0] == 440
    assert not plot_purity({"MoCo": []}, tmp_path / "none.png") and not (tmp_path / "none.png").exists()


def study_arguments(monkeypatch, *words: str) -> argparse.Namespace:
    monkeypatch.setattr("sys.argv", ["toy_studies.py", *words])
    return runpy.run_path("tools/toy_studies.py")["parse_args"]()


def test_what_is_asked_for_twice_is_run_once(monkeypatch):
    args = study_arguments(monkeypatch, "knn", "--seeds", "2", "1", "2", "--train-set", *["scene-centric"] * 2)
    assert args.seeds == [2, 1] and args.train_set == ["scene-centric"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--parallel", "0"], "--parallel: expected a whole number above 0, got 0"),
        (["--seeds", "1", "x"], "--seeds: expected a whole number above 0, got x"),
        (["--opts", "SOLVER.MAX_ITER"], "--opts: expected pairs KEY VALUE, got SOLVER.MAX_ITER"),
    ],
)
def test_impossible_arguments_are_refused_before_any_job(monkeypatch, capsys, words, message):
    with pytest.raises(SystemExit, match="2"):
        study_arguments(monkeypatch, "ablation", *words)
    assert message in capsys.readouterr().err
