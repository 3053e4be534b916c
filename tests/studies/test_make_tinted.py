"""Images under coloured lamps, which agree with the class in the share that was asked for."""

import csv
import runpy
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from trees import refusal

from studies.groups.tinting import DARKEST, make_tinted


def read(folder: Path) -> dict[str, str]:
    with (folder / "groups.csv").open() as file:
        return {line["file_name"]: line["group"] for line in csv.DictReader(file)}


@pytest.fixture
def images(tmp_path) -> Path:
    """White images of five classes, 80 of each."""
    for place in range(400):
        file = tmp_path / f"images/class{place % 5}/{place:03d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), "white").save(file)
    return tmp_path / "images"


@pytest.mark.parametrize(("agree", "low", "high"), [(1.0, 400, 400), (0.9, 340, 380), (0.2, 55, 105), (0.0, 0, 0)])
def test_lamps_agree_with_the_class_as_often_as_asked_for(images, tmp_path, agree, low, high):
    make_tinted(images, tmp_path / "lit", agree, seed=0)
    groups = read(tmp_path / "lit")
    assert len(groups) == 400 and set(groups.values()) == {f"lamp {n}" for n in range(5)}
    assert low <= sum(name[len("class")] == group[-1] for name, group in groups.items()) <= high
    if agree == 0.2:
        assert min(Counter(groups.values()).values()) > 50  # any lamp


def test_each_lamp_is_a_colour_of_its_own_and_leaves_no_channel_dark(images, tmp_path):
    make_tinted(images, tmp_path / "lit", 0.5, seed=0)
    colours = {}
    for name, group in read(tmp_path / "lit").items():
        pixels = np.asarray(Image.open(tmp_path / "lit" / name))
        assert (pixels == pixels[0, 0]).all() and colours.setdefault(group, tuple(pixels[0, 0])) == tuple(pixels[0, 0])
    assert len(set(colours.values())) == 5 and min(map(min, colours.values())) >= int(255 * DARKEST)


def test_the_same_seed_gives_the_same_lamps_and_no_folder_is_written_to_twice(images, tmp_path):
    for name in ("one", "other"):
        make_tinted(images, tmp_path / name, 0.5, seed=3)
    assert read(tmp_path / "one") == read(tmp_path / "other")
    assert "is already there: expected a new folder" in refusal(make_tinted, images, tmp_path / "one", 0.5, 3)


def test_images_that_would_be_one_file_are_refused(images, tmp_path):
    Image.new("RGB", (4, 4)).save(images / "class1/001.png")  # next to 001.jpg
    assert "2 files that would be class1/001.png" in refusal(make_tinted, images, tmp_path / "lit", 0.5, 3)
    assert not (tmp_path / "lit").exists()


def test_its_command(images, tmp_path, monkeypatch, capsys):
    words = ["make_tinted.py", "--data", str(images), "--output", str(tmp_path / "lit")]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path("studies/groups/make_tinted.py", run_name="tinted")["main"]()
    assert "has the images, and groups.csv" in capsys.readouterr().out
