"""Where a converted backbone may be written."""

import pytest
from trees import refused, write

from revisit.checkpoint.backbone_file import check_place_of_flags

SUFFIXES = (".pth", ".pkl")
FLAGS = "source: dino\nconfig: {MODEL.RESNETS.DEPTH: 18}\n"


def test_flags_of_the_same_name_are_replaced(tmp_path):
    check_place_of_flags(tmp_path / "b.pth", SUFFIXES)
    write(tmp_path / "b.pth")
    write(tmp_path / "b.yaml", FLAGS)
    check_place_of_flags(tmp_path / "b.pth", SUFFIXES)


def test_those_of_weights_with_another_suffix_are_not(tmp_path):
    write(tmp_path / "b.pth")
    write(tmp_path / "b.yaml", FLAGS)
    refused("b.yaml says what b.pth is: expected another name", check_place_of_flags, tmp_path / "b.pkl", SUFFIXES)


@pytest.mark.parametrize("text", ["_BASE_: knn_moco.yaml\nSEED: 1\n", "- 1\n", "", "a: [\n", "7"])
def test_nor_is_another_file(tmp_path, text):
    write(tmp_path / "photos.yaml", text)
    refused(
        "photos.yaml would be replaced, and is no description", check_place_of_flags, tmp_path / "photos.pth", SUFFIXES
    )
