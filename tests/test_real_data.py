"""The main job on real photographs: `make check-real`, by hand; nothing here runs in `make test`.

They lie in $REVISIT_REAL_DATA (default ../shared/data): coco/images/{train2017,val2017} and voc/VOC2007_mini.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from test_cli import ROOT, run

from revisit.data.catalog import load_folder
from revisit.data.images import read_image

DATA = Path(os.environ.get("REVISIT_REAL_DATA", ROOT.parent / "shared" / "data"))

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data in {DATA}: set REVISIT_REAL_DATA"),
]


def test_every_photograph_is_read_as_rgb():
    records = load_folder(DATA / "coco" / "images") + load_folder(DATA / "voc" / "VOC2007_mini" / "JPEGImages")
    assert len(records) == 213
    for record in records:
        image = read_image(record["file_name"])
        assert image.ndim == 3 and image.shape[2] == 3 and min(image.shape[:2]) > 100


def test_pretrain_convert_and_detect_on_photographs(tmp_path):
    """R50 with the paper's crops, 2 processes; then the C5 detector from its weights."""
    text = run(
        "python tools/train_net.py --config-file configs/pretrain/knn_moco.yaml --num-gpus 2 "
        f"DATASETS.TRAIN \"('folder:{DATA}/coco/images',)\" OUTPUT_DIR {tmp_path}/pretrain SOLVER.MAX_ITER 3 "
        "SOLVER.IMS_PER_BATCH 8 SOLVER.BASE_LR 0.01 MOCO.QUEUE_SIZE 500 KNN_MOCO.WARMUP_EPOCHS 0 "
        "DATALOADER.NUM_WORKERS 0",
        tmp_path,
    )
    (metrics,) = (json.loads(line) for line in (tmp_path / "pretrain/metrics.json").read_text().splitlines())
    assert 0 < metrics["total_loss"] < 20 and "unreadable" not in text
    queue = torch.load(tmp_path / "pretrain/model_final.pth", weights_only=True)["model"]["queue.num_enqueued"]
    assert queue == 24
    weights = tmp_path / "backbone.pth"
    run(f"python tools/convert_to_d2.py {tmp_path}/pretrain/model_final.pth {weights}", tmp_path)
    voc = f"('voc:{DATA}/voc/VOC2007_mini:all',)"
    text = run(
        "python tools/train_net.py --config-file configs/detection/voc_faster_rcnn_R50_C5.yaml "
        f'MODEL.WEIGHTS {weights} DATASETS.TRAIN "{voc}" DATASETS.TEST "{voc}" OUTPUT_DIR {tmp_path}/detect '
        "SOLVER.MAX_ITER 2 SOLVER.IMS_PER_BATCH 2 SOLVER.BASE_LR 0.001 TEST.PRECISE_BN.NUM_ITER 1 "
        "INPUT.MIN_SIZE_TRAIN (240,) INPUT.MIN_SIZE_TEST 240 DATALOADER.NUM_WORKERS 0",
        tmp_path,
    )
    assert "265 of 265 backbone tensors" in text
    assert "bbox/AP50" in (tmp_path / "detect/metrics.json").read_text()
