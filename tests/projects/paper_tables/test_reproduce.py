"""The paper's tables as jobs: which there are, in which order they run, and what the table says of them."""

from __future__ import annotations

import csv
import json
import os
import stat
import sys
from pathlib import Path

import pytest
from commands import ROOT, one_line_error, run

from projects.PaperTables.cells import all_jobs, choose, make_cells, missing_inputs
from projects.PaperTables.columns import COLUMNS
from projects.PaperTables.jobs import Job, run_jobs
from projects.PaperTables.paper_figures import figure_jobs, figure_page
from projects.PaperTables.paper_values import paper_table
from projects.PaperTables.result_table import as_csv, as_latex, as_markdown, ours
from projects.PaperTables.rows import ROWS, Weights
from revisit.errors import UserError

TOOL = "python tools/reproduce.py"


def cells_of(table: str, profile: str, root: Path, only: str | None = None, seeds: tuple[int, ...] = (1,)):
    return make_cells(*choose(table, only), table, profile=profile, seeds=list(seeds), root=root)


@pytest.mark.parametrize("table", ROWS)
def test_rows_and_columns_are_the_papers(table):
    paper = paper_table(table)
    assert [row.label for row in ROWS[table]] == list(paper)
    assert all(set(values) <= set(COLUMNS) for values in paper.values())


def test_the_papers_values_come_from_its_tables():
    assert paper_table("ablation")["+MC+CC+m+A+NN"]["VOC_SVM_mAP"] == 85.1
    assert paper_table("knn")["k 1"] == {"VOC_SVM_mAP": 83.6}
    assert paper_table("knn")["mined after the head"] == {"VOC_SVM_mAP": 82.8}
    assert paper_table("augmentation")["AutoAugment"] == {"VOC_SVM_mAP": 79.9}
    assert paper_table("transfer")["BDD100K"]["seg_VOC"] is None


@pytest.mark.parametrize("profile", ["paper", "toy"])
@pytest.mark.parametrize("table", ROWS)
def test_every_job_is_there_once_behind_what_it_needs_with_files_that_exist(table, profile, toy_datasets, tmp_path):
    jobs = all_jobs(cells_of(table, profile, tmp_path, seeds=(1, 2)))
    assert jobs and len({job.result for job in jobs}) == len({job.name for job in jobs}) == len(jobs)
    seen = set()
    for job in jobs:
        assert all(needed.result in seen for needed in job.needs)
        seen.add(job.result)
        for command in job.commands:
            assert (ROOT / command[0]).is_file()
            if "--config-file" in command:
                assert (ROOT / command[command.index("--config-file") + 1]).is_file()


def test_the_page_of_figures_shows_pictures_of_figures_and_how_far_the_others_are(toy_datasets, tmp_path):
    jobs = figure_jobs(profile="toy", seed=1, root=tmp_path, extra=(), gpus=1)
    assert "- figure: IoU of crops: not run" in figure_page(jobs, tmp_path)
    for job in jobs:  # all but one
        if job.name != "figure: class activation maps":
            job.result.parent.mkdir(parents=True, exist_ok=True)
            job.result.touch()
    for picture in ("figures/iou/seed1/runs.png", "evaluate/toy-ablation-moco/ImageNet/seed1/curves.png"):
        (tmp_path / picture).touch()
    page = figure_page(jobs, tmp_path)
    assert "![runs.png](figures/iou/seed1/runs.png)" in page
    assert "![curves.png](figures/curves/toy-ablation-moco/seed1/curves.png)" in page
    assert "- figure: class activation maps: not run" in page
    assert "ImageNet" not in page  # the classifiers' own curves


@pytest.mark.parametrize("profile", ["paper", "toy"])
def test_no_two_jobs_of_all_tables_and_figures_share_a_folder(profile, toy_datasets, tmp_path):
    jobs = figure_jobs(profile=profile, seed=1, root=tmp_path, extra=(), gpus=1)
    for table in ROWS:
        jobs += all_jobs(cells_of(table, profile, tmp_path))
    by_folder = {}
    for job in jobs:
        job.claim()
        assert by_folder.setdefault(job.result.parent, job) == job


def test_tables_share_their_runs(toy_datasets, tmp_path):
    ablation = {job.result: job for job in all_jobs(cells_of("ablation", "toy", tmp_path))}
    shared = [job for job in all_jobs(cells_of("augmentation", "toy", tmp_path)) if job.result in ablation]
    assert len(shared) == 4  # two backbones and their SVMs
    assert all(ablation[job.result] == job for job in shared)


def test_two_columns_of_one_evaluation_are_read_from_it(toy_datasets, tmp_path):
    j, f = (cells_of("davis", "toy", tmp_path, f"MoCo (COCO),{name}")[0] for name in ("Jm", "Fm"))
    assert j.jobs == f.jobs and j.score != f.score


def test_weights_of_others_that_are_missing_are_named(toy_datasets, tmp_path):
    (virtex,) = [row for row in ROWS["sota"] if isinstance(row.paper, Weights)]
    jobs = all_jobs(cells_of("sota", "paper", tmp_path, f"{virtex.label},ImageNet"))
    missing = missing_inputs(jobs)
    assert any("weights/virtex.pth" in what for what in missing.values())
    assert any("imagenet_train" in what for what in missing.values())


def test_a_run_is_a_row_with_other_options_elsewhere(tmp_path, toy_datasets):
    jobs = all_jobs(cells_of("scaling", "toy", tmp_path))
    drawn = {job.name for job in jobs if job.name.startswith("ToyScenes")}
    assert len(drawn) == 8  # four sizes of two worlds
    trained = [job for job in jobs if job.name.endswith("pretraining")]
    assert len({job.commands for job in trained}) == len(trained) == 8
    assert all(job.needs and "toy_scenes/" in " ".join(job.commands[0]) for job in trained)


def finish(cell, *values: float) -> None:
    """Put finished evaluations of the first seeds where the cell's jobs would leave them."""
    for job, value in zip(cell.jobs, values, strict=False):
        for each in (*job.needs, job):
            each.claim()
            each.result.write_text("{}")
        content: object = value
        for name in reversed(cell.score):
            content = {name: content}
        job.result.write_text(json.dumps(content))


def test_a_cell_shows_mean_and_spread_of_finished_seeds_alone(toy_datasets, tmp_path):
    (cell,) = cells_of("ablation", "toy", tmp_path, "MoCo,seg_VOC", seeds=(1, 2, 3))
    assert ours(cell) == "not run"
    finish(cell, 10.0)
    assert ours(cell) == "10.0 (1 of 3 seeds)"
    finish(cell, 10.0, 11.0, 12.0)
    assert ours(cell) == "11.0 ± 1.0"


def test_a_half_finished_run_is_no_number(toy_datasets, tmp_path):
    (cell,) = cells_of("ablation", "toy", tmp_path, "MoCo,seg_VOC")
    pretraining = cell.jobs[0].needs[0]
    pretraining.claim()
    (pretraining.result.parent / "model_0000299.pth").write_bytes(b"")
    assert ours(cell) == "half-finished: iteration 300"
    pretraining.result.write_text("{}")
    cell.jobs[0].claim()
    cell.jobs[0].log.write_text("")
    assert ours(cell) == "begun"


def test_a_result_of_another_recipe_is_no_number(toy_datasets, tmp_path):
    (cell,) = cells_of("ablation", "toy", tmp_path, "MoCo,seg_VOC")
    finish(cell, 10.0)
    (tmp_path / "other").mkdir()
    changed = make_cells(
        *choose("ablation", "MoCo,seg_VOC"),
        "ablation",
        profile="toy",
        seeds=[1],
        root=tmp_path,
        extra=("SOLVER.GAMMA", "0.2"),
    )
    assert changed[0].jobs[0].result == cell.jobs[0].result and changed[0].values() == []


def test_the_table_is_written_for_people_programs_and_papers(toy_datasets, tmp_path):
    cells = cells_of("augmentation", "toy", tmp_path, seeds=(1, 2))
    finish(cells[0], 20.0, 22.0)
    markdown = as_markdown(cells, "augmentation", ["A note."])
    assert "| Standard | 82.8 | 21.0 ± 1.4 |" in markdown and "| AutoAugment | 79.9 | not run |" in markdown
    rows = list(csv.DictReader(as_csv(cells).splitlines()))
    assert rows[0]["paper"] == "82.8" and rows[0]["values"] == "20.0 22.0" and rows[0]["state"] == "finished"
    assert rows[1]["mean"] == "" and rows[1]["state"] == "not run"
    latex = as_latex(cells, "augmentation")
    assert "Standard & 82.8 / 21.0 $\\pm$ 1.4 \\\\" in latex and "VOC\\_SVM\\_mAP" in latex
    assert latex.count("{") == latex.count("}")


def test_a_table_with_a_typo_lists_the_tables(tmp_path):
    error = one_line_error(f"{TOOL} ablatoin --dry-run", tmp_path)
    assert "ablation" in error and "segment_retrieval" in error and "figures" in error


@pytest.mark.parametrize(
    ("only", "expected"),
    [("MoCO", "no 'MoCO', expected one of 'Rand. init.'"), ("MoCo,voc", "no 'voc', expected one of")],
)
def test_a_row_or_column_with_a_typo_lists_them(only, expected):
    with pytest.raises(UserError, match=expected):
        choose("ablation", only)


def test_a_dry_run_tells_jobs_cost_and_missing_data(tmp_path):
    text = run(f"{TOOL} ablation --dry-run --output {tmp_path}/out", tmp_path)
    assert "92,400 iterations of 256 images; MISSING coco_2017_train_images" in text
    assert "48 jobs, 0 done, 48 without data" in text and not (tmp_path / "out").exists()


def test_without_any_data_nothing_runs(tmp_path):
    assert "nothing can run here; missing: " in one_line_error(f"{TOOL} ablation --output {tmp_path}/out", tmp_path)


def test_jobs_wait_for_those_they_need_and_those_behind_a_failure_are_not_run(tmp_path):
    def job(name: str, code: str, *needs: Job) -> Job:
        return Job(name, (("-c", code),), tmp_path / name / "result", needs=needs)

    def writing(name: str, before: str = "") -> str:
        return f"{before}import pathlib; pathlib.Path({str(tmp_path / name / 'result')!r}).write_text('')"

    first = job("first", writing("first"))
    second = job("second", writing("second", f"import os; assert os.path.exists({str(first.result)!r}); "), first)
    broken = job("broken", "raise SystemExit(1)")
    behind = job("behind", writing("behind"), broken)
    with pytest.raises(UserError, match="1 of 4 jobs failed; .*broken/job.log; 1 that need them were not run"):
        run_jobs([first, second, broken, behind], parallel=2)
    assert second.done and not behind.done


def test_slurm_gets_a_job_each_with_what_it_waits_for(toy_root, tmp_path, monkeypatch):
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nwc -l < {tmp_path}/asked\n')
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    only = "--only MoCo,seg_VOC --slurm --partition gpu"
    text = run(f"{TOOL} ablation --profile toy {only} --output {tmp_path}/out", toy_root)
    first, second = (tmp_path / "asked").read_text().splitlines()
    assert "--dependency" not in first and "--partition=gpu" in first and sys.executable in first
    assert "--dependency=afterok:1" in second
    assert "submitted as 2: toy-ablation-moco, seed 1: seg_VOC" in text and "| MoCo | 66.2 | not run |" in text


def test_a_cell_is_pretrained_converted_evaluated_and_not_run_again(toy_root, tmp_path):
    small = (
        "--opts SOLVER.IMS_PER_BATCH 8 MOCO.QUEUE_SIZE 50 VIEWS.LARGE_SIZE 32 VIEWS.SMALL_SIZE 16 SOLVER.MAX_ITER 2 "
        "SOLVER.CHECKPOINT_PERIOD 2 MODEL.RESNETS.STEM_OUT_CHANNELS 16"
    )
    command = f"{TOOL} ablation --profile toy --only MoCo,VOC_SVM_mAP --output {tmp_path}/out {small}"
    first = run(command, toy_root)
    row = next(line for line in first.splitlines() if line.startswith("| MoCo |"))
    assert row.startswith("| MoCo | 76.1 | ") and float(row.split("|")[3]) > 0
    assert {path.name for path in (tmp_path / "out/ablation").iterdir()} == {"table.md", "table.csv", "table.tex"}
    second = run(command, toy_root)
    assert "2 jobs, 2 done before" in second and row in second
