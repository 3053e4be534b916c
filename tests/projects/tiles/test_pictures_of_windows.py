"""tools/visualize.py on windows of images that are too large to be seen at once."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from test_tiled_predictions import detector, planted

from projects.Predict import predictions
from projects.Predict.predictions import draw_detection, make_rows

from detectron2.data import MetadataCatalog
from detectron2.structures import Boxes, Instances


@pytest.fixture
def labelled(tmp_path) -> str:
    """A scan with an object in one of its corners, and an image that is smaller than a window."""
    images = [
        {"id": n, "file_name": f"{n}.png", "height": h, "width": w} for n, (h, w) in enumerate([(200, 200), (40, 50)])
    ]
    for image in images:
        cv2.imwrite(str(tmp_path / image["file_name"]), planted(image["height"], image["width"])[0][: image["height"]])
    boxes = [(0, [140, 20, 20, 20]), (0, [160, 40, 20, 15]), (1, [5, 5, 10, 20])]
    annotations = [
        {"id": n, "image_id": image, "category_id": 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        for n, (image, box) in enumerate(boxes)
    ]
    classes = [{"id": n, "name": name} for n, name in enumerate(["a", "b"])]
    content = {"images": images, "annotations": annotations, "categories": classes}
    (tmp_path / "labels.json").write_text(json.dumps(content))
    return f"tiles:64:coco:{tmp_path}:{tmp_path}/labels.json"


def test_windows_with_objects_and_as_many_without_are_drawn_and_named(labelled):
    cfg = detector("64", "MODEL.ROI_HEADS.NUM_CLASSES", "2", "MODEL.MASK_ON", "False")
    rows = make_rows(cfg, labelled, 100, truth_only=True)
    names = [Path(caption).name for row in rows for caption in row.captions]
    shown = {"0.png, window (128, 0, 192, 64)", "0.png, window (136, 0, 200, 64)", "1.png, window (0, 0, 50, 40)"}
    assert len(names) == 6 and shown <= {*names}
    (smaller,) = [row for row, name in zip(rows, names, strict=True) if name.startswith("1")]
    assert {tile.shape for tile in smaller.tiles} == {(336, 420, 3)}


def test_what_is_predicted_in_a_padded_window_is_drawn_where_it_is(labelled, monkeypatch):
    drawn = []

    def noted(image: np.ndarray, objects: predictions.Boxes, names: list[str]) -> np.ndarray:
        drawn.append(objects)
        return image

    monkeypatch.setattr(predictions, "draw_objects", noted)
    found = Instances((64, 64), pred_boxes=Boxes(torch.tensor([[5.0, 5, 15, 25], [52, 3, 60, 9], [3, 41, 9, 50]])))
    found.pred_classes, found.scores = torch.tensor([1, 1, 1]), torch.tensor([0.9, 0.8, 0.7])
    found.pred_masks = torch.zeros(3, 64, 64, dtype=torch.bool)
    found.pred_masks[0, 5:25, 5:15] = True
    record = {"file_name": "1.png", "window": (0, 0, 50, 40), "annotations": []}
    MetadataCatalog.get("windows to draw").thing_classes = ["a", "b"]
    metadata = MetadataCatalog.get("windows to draw")
    draw_detection(record, np.zeros((40, 50, 3), np.uint8), metadata, lambda: {"instances": found})
    assert len(drawn[1]) == 1 and drawn[1].masks.shape == (1, 40, 50) and drawn[1].masks[0, 5:25, 5:15].all()
