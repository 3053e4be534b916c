"""As many images of each class as there can be: k images a class are among the first, whatever else they show."""

from collections import Counter
from dataclasses import replace
from itertools import chain, islice

import pytest
from commands import one_line_error
from hypothesis import given
from hypothesis import strategies as st
from trees import refusal

from projects.CompareStarts.by_class import images_for, rounds
from projects.CompareStarts.comparison import read_labels
from projects.CompareStarts.task import read_task
from revisit.data.sources.catalog import get_records
from revisit.data.sources.subsets import is_labelled

from detectron2.data import MetadataCatalog


def boxes(*classes: int, **fields) -> dict:
    return {"annotations": [{"category_id": each, **fields} for each in classes]}


def shown_by(records: list[dict]) -> Counter:
    """On how many images each class is."""
    return Counter(chain.from_iterable({box["category_id"] for box in record["annotations"]} for record in records))


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=40), st.integers(1, 6), st.integers(0, 99))
def test_after_k_rounds_each_class_is_on_k_images_or_on_all_that_show_it(images, per_class, seed):
    records = [boxes(*classes) for classes in images]
    order = [*chain.from_iterable(islice(rounds(records, seed, "x"), per_class))]
    there, chosen = shown_by(records), shown_by([records[index] for index in order])
    assert all(chosen[each] >= min(per_class, there[each]) for each in there)
    whole = [*chain.from_iterable(rounds(records, seed, "x"))]
    assert whole[: len(order)] == order
    assert sorted(whole) == [index for index, record in enumerate(records) if is_labelled(record)]


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 99))
def test_of_images_with_one_class_there_are_k_of_each(labels, per_class, seed):
    records = [{"label": label} for label in labels]
    chosen = Counter(labels[index] for index in chain.from_iterable(islice(rounds(records, seed, "x"), per_class)))
    there = Counter(label for label in labels if label >= 0)
    assert chosen == {label: min(per_class, count) for label, count in there.items()}


def test_crowds_show_no_class():
    records = [boxes(0, iscrowd=1), boxes(1)]
    assert [*chain.from_iterable(rounds(records, 1, "x"))] == [1]


def test_images_that_show_no_class_are_none_of_those_that_it_takes(monkeypatch):
    records = [{"label": label} for label in (0, 0, 0, 1, 1, 1)] + [{"annotations": [], "background": True}] * 6
    monkeypatch.setattr("projects.CompareStarts.by_class.get_records", lambda name: records)
    assert [images_for("x", count, [1, 2]) for count in (1, 3, 5)] == [2, 6, 6]


@pytest.fixture
def task(toy_datasets):
    return replace(read_task("configs/toy/faster_rcnn_fpn.yaml", [], frozen=False), by_class=True)


def test_labels_a_class_are_a_number_of_images_that_all_starts_learn_from(task, capsys):
    (two, three) = read_labels(["3/class", "2/class"], task, (1, 2))
    assert two == images_for(task.data, 2, (1, 2)) < three
    assert f"2 images a class, or all of a class that has fewer: {two} images" in capsys.readouterr().out
    for seed in (1, 2):
        fewer, more = (
            {each["file_name"] for each in get_records(task.train_set(count, seed))} for count in (two, three)
        )
        there, chosen = shown_by(get_records(task.data)), shown_by(get_records(task.train_set(two, seed)))
        assert fewer < more and min(chosen[each] / min(2, there[each]) for each in there) >= 1
    assert MetadataCatalog.get(task.train_set(two, 1)).thing_classes == MetadataCatalog.get(task.data).thing_classes
    drawn = {str(get_records(task.train_set(two, seed))) for seed in (1, 2)}
    assert len(drawn) == 2


def test_refusals_say_what_to_do(task, tmp_path):
    assert "expected --labels N, without /class" in refusal(lambda: [*rounds([{"sem_seg_file_name": "a"}], 1, "x")])
    assert "labelled images: expected at most as many" in refusal(get_records, f"by_class:{task.data}:100000:1")
    words = "--config-file configs/toy/detection.yaml --weights random a.pth --labels 5/class --output x"
    for further in ("--labelled a.txt", "--how until-flat"):
        assert "--label" in one_line_error(f"python tools/compare_starts.py {words} {further}", tmp_path)
