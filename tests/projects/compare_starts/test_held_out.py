"""Images to choose by: which they are, what scores them, what is refused."""

import pytest
from trees import pack, refused

from projects.CompareStarts.labelled_parts import HeldOut, read_held_out
from revisit.data.sources.catalog import get_records, subset_name
from revisit.evaluation.box_evaluators import BoxEvaluator
from revisit.evaluation.registry import evaluator_for

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog


def names_of(name: str) -> set[str]:
    return {record["file_name"] for record in get_records(name)}


def test_held_out_images_are_those_that_the_smaller_subset_lacks(toy_datasets):
    for data in ("toy_voc_trainval", "toy_nyud_depth_train"):
        name = f"held_out:{data}:20:30:2"
        assert len(names_of(name)) == 10
        assert names_of(name) == names_of(subset_name(data, 30, 2)) - names_of(subset_name(data, 20, 2))
    assert evaluator_for("held_out:toy_voc_trainval:20:30:2") is BoxEvaluator
    metadata = MetadataCatalog.get("held_out:toy_voc_trainval:20:30:2")
    assert metadata.thing_classes == MetadataCatalog.get("toy_voc_trainval").thing_classes


def test_held_out_images_of_shards_are_told_by_their_places(write_pictures, tmp_path):
    for label in ("cat", "dog"):
        write_pictures(tmp_path / "photos" / label, 10)
    pack(f"--data class_folders:{tmp_path}/photos --output {tmp_path}/shards --count 1")
    name = f"shards:{tmp_path}/shards"
    more, fewer, others = (
        get_records(each) for each in (subset_name(name, 12, 2), subset_name(name, 8, 2), f"held_out:{name}:8:12:2")
    )
    assert len(others) == 4
    assert sorted(each["offset"] for each in [*fewer, *others]) == sorted(each["offset"] for each in more)


def test_boxes_are_scored_against_held_out_images_alone(tmp_path, crates):
    name = f"held_out:{crates(6)}:4:6:1"
    assert len(get_records(name)) == 2
    cfg = CfgNode(
        {
            "TEST": {"DETECTIONS_PER_IMAGE": 10, "KEYPOINT_OKS_SIGMAS": [0.05, 0.1]},
            "DATASETS": {"TEST": (name,)},
            "MODEL": {"META_ARCHITECTURE": "RetinaNet"},
        }
    )
    cfg.OUTPUT_DIR = str(tmp_path)
    evaluator = BoxEvaluator(name, cfg)
    assert len(evaluator._coco_api.imgs) == 2 and len(evaluator._coco_api.anns) == 2
    assert evaluator._kpt_oks_sigmas == [0.05, 0.1]


@pytest.mark.parametrize("rest", ["20:20:1", "30:20:1", "x:20:1", "20:30:-1"])
def test_numbers_that_hold_out_nothing_are_refused(toy_datasets, rest):
    refused("expected numbers of images FEWER below MORE", get_records, f"held_out:toy_voc_trainval:{rest}")


@pytest.mark.parametrize(("labels", "held"), [(2, 1), (5, 2), (15, 3), (50, 10), (205, 41)])
def test_a_fifth_is_held_out_but_three_where_it_can(labels, held):
    assert HeldOut().count(labels) == held
    assert HeldOut(name="others").count(labels) == 0


def test_a_share_or_a_data_set_is_read():
    assert read_held_out("0.3") == HeldOut(0.3) and read_held_out("voc_2007_val") == HeldOut(name="voc_2007_val")
    for text in ("0", "0.6", "-1", "nan"):
        refused("expected a share above 0 and up to 0.5", read_held_out, text)
