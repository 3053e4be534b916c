"""A score compares classes by name, whatever their order; and images that bank and test set share are counted."""

import shutil
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from trees import one_line_error, refused

from revisit.data.sources import records as sharing
from revisit.data.sources.catalog import drop_records, get_records, keep_records, share_classes
from revisit.data.sources.class_names import index_by_name
from revisit.data.sources.records import shared_pairs

from detectron2.data import DatasetCatalog, MetadataCatalog, get_detection_dataset_dicts

NAMES = ["auk", "kite", "owl", "wren"]


@pytest.fixture
def register():
    """Registers records with metadata under a name, until the test's end."""
    names = []

    def add(name: str, records: list[dict], **metadata: object) -> str:
        DatasetCatalog.register(name, lambda: deepcopy(records))
        MetadataCatalog.get(name).set(**metadata)
        names.append(name)
        return name

    yield add
    for name in names:
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)


@given(st.permutations(NAMES), st.permutations(NAMES), st.lists(st.integers(0, 3), min_size=1))
def test_in_any_order_a_label_keeps_its_name(own, wanted, labels):
    places = index_by_name(own, wanted, ("one", "other"))
    assert [wanted[places[label]] for label in labels] == [own[label] for label in labels]


@given(st.lists(st.sampled_from(NAMES)), st.lists(st.sampled_from(NAMES)))
def test_other_names_and_names_of_two_classes_are_refused(own, wanted):
    if sorted(own) == sorted(wanted) and len(set(own)) == len(own):
        return
    refused("'one' and 'other' have different classes", index_by_name, own, wanted, ("one", "other"))


def test_records_and_what_evaluators_know_are_mapped_each_time_they_are_loaded(register):
    records = [
        {"file_name": "1", "label": 2, "labels": (1, -1, -1, 0), "annotations": [{"category_id": n} for n in (3, 0)]},
        {"file_name": "2", "label": -1, "labels": (-1, 1, -1, -1), "annotations": []},
    ]
    ids = {5: 0, 6: 1, 8: 2, 9: 3}
    register("leader", [{"file_name": "3", "label": 0}], thing_classes=NAMES)
    register("follower", records, thing_classes=NAMES[::-1], thing_dataset_id_to_contiguous_id=ids)
    share_classes("leader", ["leader", "follower"])
    for _ in range(2):
        first, second = get_records("follower")
        assert (first["label"], second["label"]) == (1, -1)
        assert (first["labels"], second["labels"]) == ((0, -1, -1, 1), (-1, -1, 1, -1))
        assert [a["category_id"] for a in first["annotations"]] == [0, 3]
        metadata = MetadataCatalog.get("follower")
        assert metadata.thing_classes == NAMES
        assert metadata.thing_dataset_id_to_contiguous_id == {5: 3, 6: 2, 8: 1, 9: 0}
    share_classes("follower", ["leader"])  # the other way round: nothing is left of the first
    assert get_records("follower") == records and MetadataCatalog.get("follower").thing_classes == NAMES[::-1]
    assert get_records("leader")[0]["label"] == 3


def test_names_that_are_asked_for_are_the_order(register):
    register("birds", [{"file_name": "1", "label": 2}], thing_classes=NAMES)
    assert get_records("birds", class_names=NAMES[::-1])[0]["label"] == 1
    assert MetadataCatalog.get("birds").thing_classes == NAMES[::-1]
    assert get_records("birds")[0]["label"] == 2
    assert MetadataCatalog.get("birds").thing_classes == NAMES
    refused("the names asked for", get_records, "birds", class_names=["auk", "bat"])


def test_detectron2s_functions_get_the_leaders_order(register):
    register("leader", [{"file_name": "3", "annotations": []}], thing_classes=NAMES)
    register("follower", [{"file_name": "1", "annotations": [{"category_id": 0}]}], thing_classes=NAMES[::-1])
    share_classes("leader", ["follower"])
    get_records("follower")
    (record,) = get_detection_dataset_dicts(["follower"])
    assert record["annotations"] == [{"category_id": 3}]


def test_a_subset_of_a_follower_counts_by_itself(register):
    register("leader", [{"file_name": "3", "label": 0}], thing_classes=NAMES)
    register("follower", [{"file_name": str(n), "label": 0} for n in range(3)], thing_classes=NAMES[::-1])
    share_classes("leader", ["follower"])
    assert get_records("follower")[0]["label"] == 3
    assert get_records("subset:2:1:follower")[0]["label"] == 0
    assert MetadataCatalog.get("subset:2:1:follower").thing_classes == NAMES[::-1]
    assert MetadataCatalog.get("follower").thing_classes == NAMES
    DatasetCatalog.remove("subset:2:1:follower")
    MetadataCatalog.remove("subset:2:1:follower")


def test_records_that_are_kept_are_read_once(register):
    loads = []
    DatasetCatalog.register("counted", lambda: loads.append(1) or [{"file_name": "1", "label": 0}])
    keep_records()
    first = get_records("counted")
    first.clear()
    assert len(get_records("counted")) == len(DatasetCatalog.get("counted")) == 1 and len(loads) == 1
    drop_records()
    get_records("counted")
    get_records("counted")
    assert len(loads) == 3
    DatasetCatalog.remove("counted")


def test_boxes_and_masks_may_lack_classes_that_a_checkpoint_has_but_have_no_others(register):
    boxes = [{"file_name": "1", "annotations": [{"category_id": 1}, {"category_id": 0}]}]
    register("boxes", boxes, thing_classes=["owl", "kite"], thing_dataset_id_to_contiguous_id={7: 0, 4: 1})
    register("masks", [{"file_name": "1", "sem_seg_file_name": "1"}], stuff_classes=NAMES[:2])
    register("zebras", boxes, thing_classes=["owl", "zebra"])
    share_classes("a.pth", ["boxes", "masks", "zebras"], names=NAMES)
    (record,) = get_records("boxes")
    assert [a["category_id"] for a in record["annotations"]] == [1, 2]
    assert MetadataCatalog.get("boxes").thing_classes == NAMES
    ids = MetadataCatalog.get("boxes").thing_dataset_id_to_contiguous_id
    assert (ids.pop(7), ids.pop(4)) == (2, 1) and sorted(ids.values()) == [0, 3] and min(ids) > 7
    assert get_records("masks") and MetadataCatalog.get("masks").stuff_classes == NAMES
    assert "2 and 4; only zebras has zebra; only a.pth has auk, kite, wren" in one_line_error("zebras")


def test_boxes_whose_classes_have_texts_for_ids_may_lack_some(register):
    boxes = [{"file_name": "1", "annotations": [{"category_id": 0}]}]
    register("leader", [{"file_name": "3", "annotations": []}], thing_classes=NAMES)
    register("follower", boxes, thing_classes=["owl"], thing_dataset_id_to_contiguous_id={"o": 0})
    share_classes("leader", ["follower"])
    assert get_records("follower")[0]["annotations"] == [{"category_id": 2}]
    ids = MetadataCatalog.get("follower").thing_dataset_id_to_contiguous_id
    assert ids.pop("o") == 2 and sorted(ids.values()) == [0, 1, 3]


@pytest.mark.parametrize(("own", "is_logged"), [(["auk", "owl"], False), (["owl", "auk"], True), (NAMES, False)])
def test_another_order_is_logged_and_a_class_that_is_missing_is_none(register, caplog, own, is_logged):
    register("leader", [{"file_name": "3", "annotations": []}], thing_classes=NAMES)
    register("follower", [{"file_name": "1", "annotations": [{"category_id": 1}]}], thing_classes=own)
    share_classes("leader", ["follower"])
    with caplog.at_level("INFO"):
        (record,) = get_records("follower")
    assert record["annotations"][0]["category_id"] == NAMES.index(own[1])
    assert ("follower are in another order than those of leader" in caplog.text) == is_logged


def test_classes_without_names_are_compared_by_their_number(register):
    records = [{"file_name": str(n), "label": n} for n in range(4)]
    register("named", records, thing_classes=NAMES)
    register("unnamed", records)
    register("more", [*records, {"file_name": "4", "label": 4}])
    share_classes("named", ["unnamed", "more"])
    assert get_records("unnamed") == records
    assert "have different classes, 5 and 4" in one_line_error("more")


def test_masks_in_another_order_are_refused(register):
    register("masks", [{"file_name": "1", "sem_seg_file_name": "1"}], stuff_classes=NAMES)
    register("turned", [{"file_name": "1", "sem_seg_file_name": "1"}], stuff_classes=NAMES[::-1])
    share_classes("masks", ["turned"])
    assert "wren, owl" in one_line_error("turned")


def test_a_leader_that_the_model_was_not_trained_on_is_not_compared_with(register, caplog):
    records = [{"file_name": "1", "annotations": []}]
    register("trained", records, thing_classes=NAMES)
    register("tested", records, thing_classes=["bat"])
    share_classes("trained", ["tested"], num_classes=1)
    assert get_records("tested") == records
    assert "it has 4, but the model 1" in caplog.text
    share_classes("coco:/nowhere:/nowhere.json", ["tested"], num_classes=1)
    assert get_records("tested") == records and "/nowhere.json" in caplog.text
    share_classes("coco:/nowhere:/nowhere.json", ["tested"])  # of data sets that must be compared
    assert "/nowhere.json" in one_line_error("tested")


def test_shared_images_are_those_of_one_path_or_one_content(tmp_path, write_pictures, monkeypatch):
    paths = write_pictures(tmp_path / "bank", 4)
    shutil.copy(paths[0], tmp_path / "copy.png")
    Image.new("RGB", (4, 4)).save(tmp_path / "other.png")
    (tmp_path / "same_size.png").write_bytes(paths[1].read_bytes()[:-1] + b"?")
    bank = [{"file_name": str(path)} for path in paths]
    test = [{"file_name": str(tmp_path / name)} for name in ("copy.png", "other.png", "bank/003.png", "same_size.png")]
    assert len(shared_pairs(bank, test)) == 2
    assert len(shared_pairs(test, bank)) == 2
    assert len(shared_pairs(bank, [*test, {"file_name": "gone.png"}])) == 2
    arrays = [{"image": np.full((2, 2, 3), n, np.uint8)} for n in range(3)]
    assert len(shared_pairs(arrays, arrays[1:])) == 2
    monkeypatch.setattr(sharing, "COMPARED", 2)  # contents of 000 and 003, and of copy and same_size
    assert len(shared_pairs(bank, test)) == 2
    monkeypatch.setattr("builtins.open", None)
    assert len(shared_pairs(bank, bank)) == 4  # by their paths, without reading


def test_names_that_differ_in_the_normal_form_of_unicode_alone_are_one(tmp_path, write_pictures):
    names = [f"class_folders:{tmp_path / kind}" for kind in ("train", "test")]
    for kind, accent in (("train", "caf\xe9"), ("test", "cafe\u0301")):
        for label in (accent, "cafe", "tea"):
            write_pictures(tmp_path / kind / label, 1)
    share_classes(names[0], names[1:])
    label_of = [{record["file_name"].split("/")[-2]: record["label"] for record in get_records(name)} for name in names]
    assert label_of[0]["caf\xe9"] == label_of[1]["cafe\u0301"] and label_of[0]["tea"] == label_of[1]["tea"]
