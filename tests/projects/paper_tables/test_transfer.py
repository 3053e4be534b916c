from __future__ import annotations

import json
from pathlib import Path

import pytest

from projects.PaperTables.transfer import TASKS, as_markdown, choose_tasks, collect, make_jobs
from revisit.errors import UserError


@pytest.fixture
def weights(tmp_path) -> list[Path]:
    files = [tmp_path / f"backbone{seed}.pth" for seed in (1, 2)]
    for file in files:
        file.touch()
    return files


def weights_of(job) -> list[str]:
    return [command[command.index("MODEL.WEIGHTS") + 1] for command in job.commands if "MODEL.WEIGHTS" in command]


def test_each_task_starts_from_nothing_and_from_the_backbone_of_its_seed(toy_datasets, weights, tmp_path):
    jobs = make_jobs(list(TASKS), weights, [1, 2], tmp_path / "out", ())
    assert len(jobs) == 2 * 2 * len(TASKS) == len({job.result for job in jobs}) == len({job.name for job in jobs})
    for job in jobs:
        seed = job.name[-1]
        expected = [] if "random init" in job.name else [str(tmp_path / f"backbone{seed}.pth")] * 2
        assert weights_of(job) == expected
        assert all(Path(command[2]).is_file() for command in job.commands)
        assert "--eval-only" not in job.commands[0] and "--eval-only" in job.commands[1]


def test_one_backbone_serves_every_seed(toy_datasets, weights, tmp_path):
    jobs = make_jobs(choose_tasks(["nyud, depth"]), weights[:1], [1, 2, 3], tmp_path / "out", ())
    assert {path for job in jobs for path in weights_of(job)} == {str(weights[0])}


def test_backbones_that_fit_no_seed_or_are_missing_are_refused(toy_datasets, weights, tmp_path):
    with pytest.raises(UserError, match="2 files for 3 seeds, expected one for all or one a seed"):
        make_jobs(list(TASKS), weights, [1, 2, 3], tmp_path, ())
    with pytest.raises(UserError, match="nowhere.pth not found, expected what tools/convert_to_d2.py writes"):
        make_jobs(list(TASKS), [tmp_path / "nowhere.pth"], [1], tmp_path, ())


def test_tasks_are_chosen_by_how_they_start():
    assert choose_tasks(None) == list(TASKS)
    assert [task.config for task in choose_tasks(["nyud", "VOC"])] == [
        "configs/toy/segmentation_nyud.yaml",
        "configs/toy/depth.yaml",
        "configs/toy/segmentation_voc.yaml",
    ]
    with pytest.raises(UserError, match="transfer has no task 'pose': expected the beginning of one of detection"):
        choose_tasks(["pose"])


def test_the_table_gives_both_starts_and_the_papers_values(toy_datasets, weights, tmp_path):
    tasks = choose_tasks(["NYUD, depth"])
    for job, rmse in zip(make_jobs(tasks, weights, [1, 2], tmp_path, ()), (0.9, 0.6, 0.8, 0.7), strict=True):
        job.result.parent.mkdir(parents=True)
        job.result.write_text(json.dumps({"depth": {"rmse": rmse}}))
    (result,) = collect(tasks, [1, 2], tmp_path)
    assert result["random init"] == [0.9, 0.8] and result["pretrained"] == [0.6, 0.7]
    row = as_markdown([result]).splitlines()[-1]
    assert row == "| NYUD, depth, rmse (m), lower is better | 0.850 ± 0.071 | 0.650 ± 0.071 | 0.867 | 0.58 |"


def test_the_papers_values_are_those_of_its_comparison():
    """Table "sota", rows "Rand. init." and "+CC+A+kNN"; detection is not in it."""
    assert [task.paper for task in TASKS] == [(None, None), (39.2, 73.5), (65.0, 72.3), (24.4, 41.3), (0.867, 0.580)]
