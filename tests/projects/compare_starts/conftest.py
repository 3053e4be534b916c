"""A task for whole comparisons whose trainings are made up."""

import json

import pytest

from projects.CompareStarts.comparison import Task, read_task


@pytest.fixture
def task(tmp_path, write_pictures) -> Task:
    """A detector's recipe of 400 iterations on 16 images, which also test it."""
    write_pictures(tmp_path / "images", 16)
    boxes = [{"id": n + 1, "image_id": n, "category_id": 1, "bbox": [1, 1, 9, 9]} for n in range(16)]
    pictures = [{"id": n, "file_name": f"{n:03d}.png", "height": 30, "width": 40} for n in range(16)]
    content = {"images": pictures, "annotations": boxes, "categories": [{"id": 1, "name": "crate"}]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    data = f"('coco:{tmp_path}/images:{tmp_path}/a.json',)"
    options = f"DATASETS.TRAIN {data} DATASETS.TEST {data} MODEL.ROI_HEADS.NUM_CLASSES 1 SOLVER.MAX_ITER 400"
    return read_task(
        "configs/own_images/detection.yaml",
        options.split() + ["SOLVER.STEPS", "(300,)", "SOLVER.WARMUP_ITERS", "50"],
        frozen=False,
    )
