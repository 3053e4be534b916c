"""The main job on real photographs: `make check-real`, by hand; nothing here runs in `make test`.

They lie in $REVISIT_REAL_DATA (default ../shared/data): coco/images/{train2017,val2017},
voc/VOC2007_mini and cifar10/cifar10_train.tar.gz.
"""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest
import torch
from commands import run
from real import DATA, needs_real_data
from torch.utils.data import DataLoader

from revisit.data.image_folders import load_class_folders, load_folder
from revisit.data.reader import read_image, read_sample
from revisit.data.sampler import EpochBatchSampler
from revisit.data.shards import load_shards

from detectron2.data import DatasetFromList

pytestmark = needs_real_data


def test_every_photograph_is_read_as_rgb():
    records = load_folder(DATA / "coco" / "images") + load_folder(DATA / "voc" / "VOC2007_mini" / "JPEGImages")
    assert len(records) == 213
    for record in records:
        image = read_image(record["file_name"])
        assert image.ndim == 3 and image.shape[2] == 3 and min(image.shape[:2]) > 100


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory):
    """The 50,000 training images as files, and as shards."""
    root = tmp_path_factory.mktemp("cifar10")
    with tarfile.open(DATA / "cifar10/cifar10_train.tar.gz") as tar:
        tar.extractall(root / "cifar10", filter="data")
    run(f"python tools/make_shards.py --dataset cifar10_train --output {root}/shards --images-per-shard 8000", root)
    return root


class Bytes(torch.utils.data.Dataset):
    def __init__(self, records):
        self.records = DatasetFromList(records, copy=False)

    def __getitem__(self, key):
        return key[1], hashlib.sha1(read_sample(self.records[key[1]])).digest()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_shards_of_cifar10_are_its_files_once_an_epoch_whoever_reads(cifar10):
    records, files = load_shards(str(cifar10 / "shards")), load_class_folders(cifar10 / "cifar10/train")
    expected = {n: hashlib.sha1(Path(file["file_name"]).read_bytes()).digest() for n, file in enumerate(files)}
    assert [record["label"] for record in records] == [file["label"] for file in files] and len(records) == 50000
    for world_size in (1, 2, 4):
        for workers in (0, 1, 3):
            found = {}
            for rank in range(world_size):
                sampler = EpochBatchSampler(50000, 200, seed=1, rank=rank, world_size=world_size)
                loader = DataLoader(Bytes(records), batch_sampler=sampler, num_workers=workers, collate_fn=list)
                for _, samples in zip(range(sampler.iterations_per_epoch), loader, strict=False):
                    assert not found.keys() & dict(samples).keys()
                    found |= dict(samples)
            assert found == expected, (world_size, workers)


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
