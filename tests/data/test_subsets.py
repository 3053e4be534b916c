"""Nested seeded subsets of labelled images, of records and of data sets by name."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from trees import one_line_error, refusal

from projects.ToyScenes import CLASS_NAMES
from revisit.data.sources.catalog import get_records, share_classes, subset_name
from revisit.data.sources.subsets import classes_shown, nested_subset

from detectron2.data import MetadataCatalog


def names_of(records):
    return [record["file_name"] for record in records]


def images(count):
    return [{"file_name": f"{n:04d}.jpg"} for n in range(count)]


def test_a_subset_holds_all_smaller_ones_of_its_seed_in_the_order_of_the_data():
    records = images(500)
    subsets = [names_of(nested_subset(records, count, 3, "d")) for count in (1, 20, 50, 200, 500)]
    assert [len(subset) for subset in subsets] == [1, 20, 50, 200, 500]
    assert all(set(smaller) < set(larger) for smaller, larger in pairwise(subsets))
    assert all(subset == sorted(subset) for subset in subsets) and subsets[-1] == names_of(records)
    again, other = (names_of(nested_subset(records, 50, seed, "d")) for seed in (3, 4))
    assert again == subsets[2] and len({*again} & {*other}) < 20


def test_every_class_has_its_share_of_every_subset():
    sizes = (10, 40, 150)
    records = [{"file_name": f"{label} {n}", "label": label} for label, size in enumerate(sizes) for n in range(size)]
    for seed in range(5):
        drawn = []
        for count in (20, 50, 100, 199):
            subset = nested_subset(records, count, seed, "d")
            assert {*drawn} <= {*names_of(subset)}
            drawn = names_of(subset)
            found = Counter(record["label"] for record in subset)
            share = np.array(sizes) * count / sum(sizes)
            assert np.abs([found[label] for label in range(3)] - share).max() < 2, (count, found)


def test_an_image_shows_the_classes_of_its_boxes_its_own_or_those_that_are_present():
    boxes = [{"category_id": 2}, {"category_id": 0, "iscrowd": 1}, {"category_id": 2, "iscrowd": 0}]
    assert classes_shown({"annotations": boxes}) == [2, 2]
    for kind in (int, np.int64):
        assert classes_shown({"label": kind(3)}) == [3] and classes_shown({"label": kind(-1)}) == []
    assert classes_shown({"labels": (-1, 1, 0, 1)}) == [1, 3]


def test_images_without_a_box_to_learn_from_are_not_labelled():
    box, crowd = {"bbox": [0, 0, 1, 1]}, {"bbox": [0, 0, 1, 1], "iscrowd": 1}
    records = [
        {"file_name": str(n), "annotations": found} for n, found in enumerate([[], [box], [crowd], [crowd, box]])
    ]
    assert names_of(nested_subset(records, 2, 1, "d")) == ["1", "3"]
    assert "'d' has 2 labelled images" in refusal(nested_subset, records, 3, 1, "d")


def test_any_data_set_has_subsets_by_name_that_are_described_as_it_is(toy_datasets):
    for whole, key in (("toy_voc_trainval", "thing_classes"), ("toy_voc_sem_seg_train_aug", "stuff_classes")):
        name = subset_name(whole, 7, 2)
        assert name == f"subset:7:2:{whole}"
        subset, records = get_records(name), get_records(whole)
        assert len(subset) == 7 and all(record in records for record in subset)
        metadata = MetadataCatalog.get(name)
        assert list(metadata.get(key))[-10:] == list(CLASS_NAMES) and metadata.name == name
        assert metadata.evaluator_type == MetadataCatalog.get(whole).evaluator_type
    folders = f"class_folders:{toy_datasets}/toy_scenes/object_centric/train"
    found = Counter(record["label"] for record in get_records(subset_name(folders, 20, 1)))
    assert len(get_records(folders)) == 60 and set(found.values()) == {2}


def test_a_subset_of_boxes_is_learnt_from_and_scored_on_the_same_file(tmp_path, write_pictures):
    """The whole data set then follows the classes of its own subset."""
    write_pictures(tmp_path / "images", 6)
    boxes = [{"id": n + 1, "image_id": n, "category_id": 7 + n % 2, "bbox": [1, 1, 9, 9]} for n in range(5)]
    pictures = [{"id": n, "file_name": f"{n:03d}.png"} for n in range(6)]
    categories = [{"id": 7, "name": "crate"}, {"id": 8, "name": "barrel"}]
    (tmp_path / "a.json").write_text(json.dumps({"images": pictures, "annotations": boxes, "categories": categories}))
    whole = f"coco:{tmp_path}/images:{tmp_path}/a.json"
    name = subset_name(whole, 4, 1)
    share_classes(name, [whole])
    assert len(get_records(name)) == 4 and len(get_records(whole)) == 6 and len(get_records(name)) == 4
    assert MetadataCatalog.get(name).thing_classes == ["crate", "barrel"]
    assert "has 5 labelled images" in one_line_error(subset_name(whole, 6, 1))


@pytest.mark.parametrize(
    "name", ["subset:", "subset:5", "subset:5:1:", "subset:0:1:d", "subset:-5:1:d", "subset:5:x:d", "subset:٥:1:d"]
)
def test_a_subset_without_number_seed_and_name_is_refused(name):
    assert "subset:N:SEED:NAME" in one_line_error(name)
    assert "'nothing'" in one_line_error("subset:5:1:nothing")
