"""A task for whole comparisons whose trainings are made up, and boxes to learn from."""

import json
from collections.abc import Callable

import pytest

from projects.CompareStarts.task import Task, read_task


@pytest.fixture
def crates(tmp_path, write_pictures) -> Callable[[int], str]:
    """Writes so many pictures with a box each; returns the data set's name."""

    def write(count: int) -> str:
        write_pictures(tmp_path / "images", count)
        boxes = [{"id": n + 1, "image_id": n, "category_id": 7, "bbox": [1, 1, 9, 9]} for n in range(count)]
        pictures = [{"id": n, "file_name": f"{n:03d}.png", "height": 30, "width": 40} for n in range(count)]
        content = {"images": pictures, "annotations": boxes, "categories": [{"id": 7, "name": "crate"}]}
        (tmp_path / "a.json").write_text(json.dumps(content))
        return f"coco:{tmp_path}/images:{tmp_path}/a.json"

    return write


@pytest.fixture
def task(crates) -> Task:
    """A detector's recipe of 400 iterations on 16 images, which also test it."""
    data = f"('{crates(16)}',)"
    options = f"DATASETS.TRAIN {data} DATASETS.TEST {data} MODEL.ROI_HEADS.NUM_CLASSES 1 SOLVER.MAX_ITER 400"
    return read_task(
        "configs/own_images/detection.yaml",
        options.split() + ["SOLVER.STEPS", "(300,)", "SOLVER.WARMUP_ITERS", "50"],
        frozen=False,
    )
