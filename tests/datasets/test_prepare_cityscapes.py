"""datasets/prepare_cityscapes.py: train ids beside label ids."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from revisit.engine.command import run_command
from revisit.errors import UserError

from detectron2.data.datasets.builtin_meta import CITYSCAPES_CATEGORIES

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "datasets"))

from prepare_cityscapes import main

FRAME = "gtFine/val/bonn/bonn_000001_000019_gtFine"


def write(path, ids):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(ids, np.uint8)).save(path)


def read(path):
    return np.asarray(Image.open(path))


def test_every_label_id_becomes_its_train_id_or_255(tmp_path):
    label_ids = np.arange(34).reshape(2, 17)
    write(tmp_path / f"{FRAME}_labelIds.png", label_ids)
    main(["--cityscapes", str(tmp_path)])
    expected = {category["id"]: category["trainId"] for category in CITYSCAPES_CATEGORIES}
    assert len(expected) == 19
    train_ids = read(tmp_path / f"{FRAME}_labelTrainIds.png")
    assert train_ids.dtype == np.uint8
    assert train_ids.tolist() == [[expected.get(n, 255) for n in row] for row in label_ids.tolist()]


def test_masks_that_are_there_stay_as_they_are(tmp_path, capsys):
    for split in ("train/aachen/aachen_0", "val/bonn/bonn_0", "test/mainz/mainz_0"):
        write(tmp_path / f"gtFine/{split}_gtFine_labelIds.png", [[7, 8]])
    done = tmp_path / "gtFine/train/aachen/aachen_0_gtFine_labelTrainIds.png"
    write(done, [[5, 5]])
    main(["--cityscapes", str(tmp_path)])
    assert "wrote 2 masks of train ids, 1 were there already" in capsys.readouterr().out
    assert read(done).tolist() == [[5, 5]]
    assert len(list(tmp_path.rglob("*"))) == 4 + 3 + 6  # folders, cities, masks: nothing temporary is left


def test_a_damaged_mask_stops_with_its_name_and_leaves_no_half_written_one(tmp_path):
    write(tmp_path / f"{FRAME}_labelIds.png", [[7, 8]])
    file = tmp_path / f"{FRAME}_labelIds.png"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(UserError, match="bonn_000001_000019_gtFine_labelIds.png cannot be read"):
        main(["--cityscapes", str(tmp_path)])
    assert list(file.parent.iterdir()) == [file]


def test_ids_that_cityscapes_does_not_have_are_refused(tmp_path):
    write(tmp_path / f"{FRAME}_labelIds.png", [[7, 34]])
    with pytest.raises(UserError, match="_labelIds.png has ids 34: expected 0 to 33"):
        main(["--cityscapes", str(tmp_path)])


def test_a_folder_without_masks_ends_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["prepare_cityscapes.py", "--cityscapes", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        run_command(main)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: no masks in {tmp_path}: expected gtFine/SPLIT/CITY/*_gtFine_labelIds.png")


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert "python datasets/prepare_cityscapes.py --cityscapes $DETECTRON2_DATASETS/cityscapes" in text
