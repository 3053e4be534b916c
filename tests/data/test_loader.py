"""Batches of views: equal for any number of workers and any start, and unreadable files replaced."""

from itertools import islice

import numpy as np
import pytest
import torch

from revisit import add_revisit_config
from revisit.data import loader as loader_module
from revisit.data.catalog import get_records
from revisit.data.loader import ResumableLoader, ViewDataset
from revisit.data.mapper import ViewMapper
from revisit.data.reader import UnreadableImageError, read_image

from detectron2.config import get_cfg

TENSORS = ("anchor", "positive", "small")


@pytest.fixture
def folder(tmp_path, write_pictures):
    write_pictures(tmp_path / "photos", 10)
    return tmp_path / "photos"


@pytest.fixture
def cfg(folder):
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.SEED = 4
    cfg.DATASETS.TRAIN = (f"folder:{folder}",)
    cfg.SOLVER.IMS_PER_BATCH = 4
    cfg.DATALOADER.NUM_WORKERS = 0
    cfg.VIEWS.LARGE_SIZE, cfg.VIEWS.SMALL_SIZE, cfg.VIEWS.NUM_SMALL = 32, 16, 3
    return cfg


def batches_of(cfg, count, start=0):
    loader = ResumableLoader(cfg)
    loader.start_iteration = start
    return list(islice(loader, count))


def assert_same_batches(one, other):
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in TENSORS if name in a)
        assert (a["num_fallbacks"], a["read_errors"]) == (b["num_fallbacks"], b["read_errors"])


def test_batches_have_the_documented_layout(cfg):
    (batch,) = batches_of(cfg, 1)
    assert {name: tuple(batch[name].shape) for name in TENSORS} == {
        "anchor": (4, 3, 32, 32),
        "positive": (4, 3, 32, 32),
        "small": (4, 3, 3, 16, 16),  # (B, N, 3, h, w)
    }
    assert all(batch[name].dtype == torch.uint8 for name in TENSORS)
    assert isinstance(batch["num_fallbacks"], int) and batch["read_errors"] == []
    for images in (batch["anchor"], batch["positive"], batch["small"].flatten(0, 1)):
        assert images.is_contiguous(memory_format=torch.channels_last)
    cfg.VIEWS.NUM_SMALL = 0
    (two_crops,) = batches_of(cfg, 1)
    assert two_crops.keys() == {"anchor", "positive", "num_fallbacks", "read_errors"}


def test_a_batch_holds_the_mappers_views_in_the_samplers_order(cfg):
    records = get_records(cfg.DATASETS.TRAIN[0])
    mapper = ViewMapper.from_config(cfg)
    loader = ResumableLoader(cfg)
    assert (loader.num_images, loader.iterations_per_epoch) == (10, 2)
    sampler = loader_module.EpochBatchSampler(10, 4, cfg.SEED)
    for keys, batch in islice(zip(sampler, loader, strict=False), 5):
        assert loader.last_batch is batch
        num_fallbacks = 0
        for n, (epoch, index) in enumerate(keys):
            views = mapper(read_image(records[index]["file_name"]), epoch, index)
            for name in TENSORS:
                assert np.array_equal(batch[name][n].movedim(-3, -1).numpy(), views[name])
            num_fallbacks += views["boxes"].num_fallbacks
        assert batch["num_fallbacks"] == num_fallbacks


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_can_start_anywhere(cfg, num_workers):
    from_zero = batches_of(cfg, 6)  # three epochs of two batches
    cfg.DATALOADER.NUM_WORKERS = num_workers
    assert_same_batches(batches_of(cfg, 3, start=3), from_zero[3:])


def test_processes_share_the_batches_of_one(cfg, monkeypatch):
    whole = batches_of(cfg, 3)
    monkeypatch.setattr(loader_module.comm, "get_world_size", lambda: 2)
    shares = []
    for rank in (0, 1):
        monkeypatch.setattr(loader_module.comm, "get_rank", lambda rank=rank: rank)
        shares.append(batches_of(cfg, 3))
    for n, batch in enumerate(whole):
        for name in TENSORS:
            assert torch.equal(torch.cat([share[n][name] for share in shares]), batch[name])
        assert batch["num_fallbacks"] == sum(share[n]["num_fallbacks"] for share in shares)


def test_images_in_memory_are_read_without_a_warning(cfg, make_picture):
    stored = np.stack([make_picture(32, 32, seed) for seed in range(3)]).transpose(0, 3, 1, 2).copy()
    images = stored.transpose(0, 2, 3, 1)  # as torchvision holds CIFAR-10
    dataset = ViewDataset([{"image": image, "label": 0} for image in images], ViewMapper.from_config(cfg))
    expected = ViewMapper.from_config(cfg)(images[1].copy(), 0, 1)
    batch = dataset.__getitems__([(0, 1)])
    assert np.array_equal(batch["anchor"][0].permute(1, 2, 0), expected["anchor"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_unreadable_file_is_replaced_by_the_next_and_reported(cfg, folder, num_workers):
    cfg.SOLVER.IMS_PER_BATCH = 5
    healthy = batches_of(cfg, 4)
    broken = {3, 4, 9}  # two in a row, and the last, whose next is the first
    paths = sorted(folder.iterdir())
    for index in broken:
        paths[index].write_bytes(paths[index].read_bytes()[:200])
    cfg.DATALOADER.NUM_WORKERS = num_workers
    batches = batches_of(cfg, 4)  # two epochs

    mapper = ViewMapper.from_config(cfg)
    sampler = loader_module.EpochBatchSampler(10, 5, cfg.SEED)
    for keys, batch, before in zip(islice(sampler, 4), batches, healthy, strict=True):
        expected_errors = []
        for n, (epoch, index) in enumerate(keys):
            if index not in broken:
                assert all(torch.equal(batch[name][n], before[name][n]) for name in TENSORS)
                continue
            tried = {3: [3, 4], 4: [4], 9: [9]}[index]
            expected_errors += [str(paths[each]) for each in tried]
            views = mapper(read_image(paths[(tried[-1] + 1) % 10]), epoch, index)
            assert np.array_equal(batch["anchor"][n].movedim(0, -1).numpy(), views["anchor"])
        assert len(batch["read_errors"]) == len(expected_errors)
        for error, path in zip(batch["read_errors"], expected_errors, strict=True):
            assert path in error


def test_when_every_file_is_broken_the_first_is_named(cfg, folder):
    for path in folder.iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(UnreadableImageError, match=r"10 images in a row cannot be read.*\.png"):
        batches_of(cfg, 1)


def test_a_long_row_of_broken_files_ends_the_search(tmp_path, cfg):
    """A disk that went away must not be read to its end for every image."""
    records = [{"file_name": str(tmp_path / f"{n}.png")} for n in range(500)]
    with pytest.raises(UnreadableImageError, match=f"{loader_module.MAX_REPLACEMENTS} images in a row"):
        ViewDataset(records, ViewMapper.from_config(cfg)).__getitems__([(0, 0)])


def test_classes_travel_with_their_images_for_the_monitors(tmp_path, write_pictures, cfg):
    for name in ("bird", "cat"):
        write_pictures(tmp_path / "classes" / name, 4)
    cfg.DATASETS.TRAIN = (f"class_folders:{tmp_path / 'classes'}",)
    cfg.SOLVER.IMS_PER_BATCH = 8
    (batch,) = batches_of(cfg, 1)
    assert sorted(batch["label"].tolist()) == [0] * 4 + [1] * 4
    records = get_records(cfg.DATASETS.TRAIN[0])
    mapper = ViewMapper.from_config(cfg)
    anchors = [mapper(read_image(record["file_name"]), 0, n)["anchor"] for n, record in enumerate(records)]
    for anchor, label in zip(batch["anchor"], batch["label"], strict=True):
        source = next(n for n, a in enumerate(anchors) if np.array_equal(a, anchor.permute(1, 2, 0)))
        assert records[source]["label"] == label


def test_several_data_sets_have_no_labels_since_their_numbers_may_clash(tmp_path, write_pictures, cfg):
    for name in "ab":
        write_pictures(tmp_path / name / "bird", 4)
    cfg.DATASETS.TRAIN = (f"class_folders:{tmp_path / 'a'}", f"class_folders:{tmp_path / 'b'}")
    (batch,) = batches_of(cfg, 1)
    assert "label" not in batch and ResumableLoader(cfg).num_images == 8


@pytest.mark.parametrize("num_workers", [0, 2])
def test_looks_on_the_device_are_those_of_the_workers(cfg, num_workers):
    cfg.DATALOADER.NUM_WORKERS = num_workers
    by_workers = batches_of(cfg, 3)
    cfg.DATALOADER.AUGMENT_ON_DEVICE, cfg.MODEL.DEVICE = True, "cpu"
    for batch, expected in zip(batches_of(cfg, 3), by_workers, strict=True):
        assert batch.keys() == expected.keys()  # the parameters of the looks are gone
        for name in TENSORS:
            assert batch[name].shape == expected[name].shape and batch[name].dtype == torch.uint8
            difference = (batch[name].int() - expected[name].int()).abs().float()
            assert difference.mean() < 2  # rounded once instead of after each operation


def test_a_workers_batch_reaches_the_training_without_a_copy(cfg, monkeypatch):
    monkeypatch.setattr(loader_module, "get_worker_info", lambda: object())
    records = get_records(cfg.DATASETS.TRAIN[0])
    batch = ViewDataset(records, ViewMapper.from_config(cfg)).__getitems__([(0, 0), (0, 1)])
    assert all(batch[name].is_shared() for name in TENSORS)
