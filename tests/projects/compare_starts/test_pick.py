"""The first images of a list get the labels, the same for all starts."""

import pytest
from commands import one_line_error
from trees import refusal

from projects.CompareStarts.comparison import make_cells
from projects.CompareStarts.starts import read_starts
from projects.CompareStarts.task import read_task, with_pick
from revisit.data.sources.catalog import get_records
from revisit.data.sources.subsets import is_labelled

from detectron2.data import MetadataCatalog


@pytest.fixture
def task(toy_datasets):
    return read_task("configs/toy/faster_rcnn_fpn.yaml", [], frozen=False)


@pytest.fixture
def files(task, tmp_path):
    """Two lists of training images, from the last to the first and the other way round; the records of the second."""
    records = [record for record in get_records(task.data) if is_labelled(record)]
    for seed, order in ((1, records[::-1]), (2, records)):
        (tmp_path / f"seed{seed}.txt").write_text("".join(f"{record['file_name']}\n" for record in order))
    return records


def test_the_first_images_of_the_seeds_list_are_learned_from(task, files, tmp_path):
    picked = with_pick(task, f"{tmp_path}/seed{{seed}}.txt", (1, 2))
    names = [picked.train_set(3, seed) for seed in (1, 2)]
    for name, expected in zip(names, (files[::-1], files), strict=True):
        assert [each["file_name"] for each in get_records(name)] == [each["file_name"] for each in expected[:3]]
    of_all, of_picked = MetadataCatalog.get(task.data), MetadataCatalog.get(names[0])
    assert of_picked.thing_classes == of_all.thing_classes
    assert picked.train_set(task.total, 1) == task.data
    starts = read_starts(["random"], picked.load(picked.options), "")
    (cell,) = make_cells(picked, starts, [3], (1, 2), root=tmp_path)
    for job, name in zip(cell.jobs, names, strict=True):
        assert f"('{name}',)" in job.commands[0] and f"{tmp_path}/seed1.txt: " in " ".join(job.facts)


def test_refusals_say_what_to_do(task, files, tmp_path):
    assert "no such list; tools/select_images.py" in refusal(with_pick, task, f"{tmp_path}/none.txt", (1,))
    (tmp_path / "short.txt").write_text(f"{files[0]['file_name']}\n")
    picked = with_pick(task, f"{tmp_path}/short.txt", (1,))
    assert "has 1 labelled images" in refusal(get_records, picked.train_set(2, 1))
    words = (
        "--config-file configs/toy/detection.yaml --weights random a.pth --how until-flat --labelled a.txt --output x"
    )
    assert "expected no --labelled" in one_line_error(f"python tools/compare_starts.py {words}", tmp_path)
