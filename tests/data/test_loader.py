"""From images to batches of views: what a view depends on, any number of workers, any start, files that are broken."""

import pickle
import random
import traceback
from itertools import islice

import numpy as np
import pytest
import torch
from tiny import tiny_config
from torch.utils.data import DataLoader, Dataset

from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import MAX_REPLACEMENTS, UnreadableImageError, read_image
from revisit.data.loading import loader as loader_module
from revisit.data.loading.loader import ResumableLoader, ViewDataset
from revisit.data.sources.catalog import get_records
from revisit.data.views.crops import ConstrainedMultiCrop
from revisit.data.views.looks import autoaugment, standard
from revisit.data.views.mapper import ViewMapper
from revisit.data.views.resampling import crop_and_reduce
from revisit.errors import UserError

from detectron2.utils import comm

TENSORS = ("anchor", "positive", "small")
A_PLUS = "standard_or_autoaugment"


def make_mapper(policy="standard", seed=0):
    return ViewMapper.from_config(tiny_config("VIEWS.NUM_SMALL", 3, "VIEWS.POLICY", policy, "SEED", seed))


def same_views(one, other):
    return all(np.array_equal(one[name], other[name]) for name in TENSORS)


@pytest.fixture
def picture(make_picture):
    return make_picture(60, 80)


def test_views_depend_on_seed_epoch_and_index_only(picture):
    calls = [(0, 0), (0, 1), (1, 0), (7, 123_456)]
    first = {call: make_mapper(A_PLUS)(picture, *call) for call in calls}
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    for call in reversed(calls):
        assert same_views(make_mapper(A_PLUS)(picture, *call), first[call])
        assert not same_views(make_mapper(A_PLUS, seed=1)(picture, *call), first[call])
    for n, call in enumerate(calls):
        assert not any(same_views(first[call], first[other]) for other in calls[:n])


def test_neither_a_global_generator_nor_the_image_is_changed(picture):
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before, image = states(), picture.copy()
    for index in range(20):
        make_mapper(A_PLUS)(picture, 0, index)
    assert states() == before and np.array_equal(picture, image)


@pytest.mark.parametrize("size", [(5, 3), (3, 5), (1, 1), (1, 40), (60, 80)])
@pytest.mark.parametrize("policy", ["standard", "autoaugment"])
def test_images_of_any_size_have_views(make_picture, size, policy):
    for index in range(30):  # AutoAugment has 25 sub-policies
        views = make_mapper(policy)(make_picture(*size), 0, index)
        assert all(views[name].shape == shape for name, shape in make_mapper().shapes.items())
        assert all(views[name].dtype == np.uint8 for name in TENSORS)


def test_the_configuration_reaches_the_mapper(picture):
    cfg = tiny_config("SEED", 11, "VIEWS.LARGE_SIZE", 24, "VIEWS.SMALL_SIZE", 12, "VIEWS.POLICY", "autoaugment")
    scales = {"large_scale": (0.5, 0.6), "small_scale": (0.1, 0.11)}
    cfg.VIEWS.LARGE_SCALE, cfg.VIEWS.SMALL_SCALE = scales.values()
    cfg.VIEWS.NUM_SMALL, cfg.VIEWS.MIN_OVERLAP, cfg.VIEWS.MAX_IOU = 3, 0.3, 0.7
    crops = ConstrainedMultiCrop(**scales, num_small=3, min_overlap=0.3, max_iou=0.7)
    looks = {"anchor_look": standard(cfg), "positive_look": autoaugment(cfg)}
    expected = ViewMapper(crops, large_size=24, small_size=12, seed=11, resize=crop_and_reduce, **looks)
    for index in range(20):
        assert same_views(ViewMapper.from_config(cfg)(picture, 1, index), expected(picture, 1, index))


@pytest.fixture
def paths(tmp_path, write_pictures):
    return write_pictures(tmp_path / "photos", 10)


@pytest.fixture
def cfg(paths):
    options = ("SOLVER.IMS_PER_BATCH", 4, "VIEWS.NUM_SMALL", 3)
    return tiny_config("DATASETS.TRAIN", (f"folder:{paths[0].parent}",), *options)


def batches_of(cfg, count, start=0):
    loader = ResumableLoader(cfg)
    loader.start_iteration = start
    return list(islice(loader, count))


def keys_of(cfg, count, num_images=10):
    return list(islice(loader_module.EpochBatchSampler(num_images, cfg.SOLVER.IMS_PER_BATCH, cfg.SEED), count))


def test_batches_have_the_documented_layout(cfg):
    (batch,) = batches_of(cfg, 1)
    shapes = {"anchor": (4, 3, 32, 32), "positive": (4, 3, 32, 32), "small": (4, 3, 3, 16, 16)}  # (B, N, 3, h, w)
    assert {name: tuple(batch[name].shape) for name in TENSORS} == shapes
    assert all(batch[name].dtype == torch.uint8 for name in TENSORS)
    assert isinstance(batch["num_fallbacks"], int) and batch["read_errors"] == []
    for images in (batch["anchor"], batch["positive"], batch["small"].flatten(0, 1)):
        assert images.is_contiguous(memory_format=torch.channels_last)
    cfg.VIEWS.NUM_SMALL = 0
    (two_crops,) = batches_of(cfg, 1)
    assert two_crops.keys() == {"index", "anchor", "positive", "num_fallbacks", "read_errors"}


def test_a_batch_holds_the_mappers_views_in_the_samplers_order(cfg, paths):
    mapper, loader = ViewMapper.from_config(cfg), ResumableLoader(cfg)
    assert (loader.num_images, loader.iterations_per_epoch) == (10, 2)
    for keys, batch in zip(keys_of(cfg, 5), loader, strict=False):
        assert loader.last_batch is batch
        views = [mapper(read_image(paths[index]), epoch, index) for epoch, index in keys]
        for name in TENSORS:
            assert np.array_equal(batch[name].movedim(-3, -1).numpy(), [each[name] for each in views])
        assert batch["num_fallbacks"] == sum(each["boxes"].num_fallbacks for each in views)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_can_start_anywhere(cfg, num_workers):
    from_zero = batches_of(cfg, 6)  # three epochs of two batches
    cfg.DATALOADER.NUM_WORKERS = num_workers
    for one, other in zip(batches_of(cfg, 3, start=3), from_zero[3:], strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in TENSORS)
        assert (one["num_fallbacks"], one["read_errors"]) == (other["num_fallbacks"], other["read_errors"])


def test_a_worker_that_is_no_fork_makes_the_same_batches(cfg, monkeypatch):
    expected = batches_of(cfg, 1)
    loader = loader_module.SignalSafeLoader

    def of_copy(dataset: ViewDataset, **options: object) -> DataLoader:
        return loader(pickle.loads(pickle.dumps(dataset)), **options)

    monkeypatch.setattr(loader_module, "SignalSafeLoader", of_copy)
    for one, other in zip(batches_of(cfg, 1), expected, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in TENSORS)


def test_processes_share_the_batches_of_one(cfg, monkeypatch):
    whole = batches_of(cfg, 3)
    monkeypatch.setattr(comm, "get_world_size", lambda: 2)
    shares = []
    for rank in (0, 1):
        monkeypatch.setattr(comm, "get_rank", lambda rank=rank: rank)
        shares.append(batches_of(cfg, 3))
    for batch, *parts in zip(whole, *shares, strict=True):
        assert all(torch.equal(torch.cat([part[name] for part in parts]), batch[name]) for name in TENSORS)
        assert batch["num_fallbacks"] == sum(part["num_fallbacks"] for part in parts)


def test_images_in_memory_are_read_without_a_warning(cfg, make_picture):
    stored = np.stack([make_picture(32, 32, seed) for seed in range(3)]).transpose(0, 3, 1, 2).copy()
    images = stored.transpose(0, 2, 3, 1)  # as torchvision holds CIFAR-10
    dataset = ViewDataset([{"image": image, "label": 0} for image in images], ViewMapper.from_config(cfg), PHOTOGRAPHS)
    expected = ViewMapper.from_config(cfg)(images[1].copy(), 0, 1)
    batch = dataset.__getitems__([(0, 1)])
    assert np.array_equal(batch["anchor"][0].permute(1, 2, 0), expected["anchor"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_unreadable_file_is_replaced_by_the_next_and_reported(cfg, paths, num_workers):
    cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_WORKERS = 5, num_workers
    healthy, mapper = batches_of(cfg, 4), ViewMapper.from_config(cfg)
    tried = {3: [3, 4], 4: [4], 9: [9]}  # two in a row, and the last, whose next is the first
    for index in tried:
        paths[index].write_bytes(paths[index].read_bytes()[:200])
    batches = batches_of(cfg, 4)  # two epochs
    for keys, batch, before in zip(keys_of(cfg, 4), batches, healthy, strict=True):
        expected_errors = []
        for n, (epoch, index) in enumerate(keys):
            shown = (tried[index][-1] + 1) % 10 if index in tried else index
            assert batch["index"][n] == shown
            if index not in tried:
                assert all(torch.equal(batch[name][n], before[name][n]) for name in TENSORS)
                continue
            expected_errors += [str(paths[each]) for each in tried[index]]
            views = mapper(read_image(paths[shown]), epoch, index)
            assert np.array_equal(batch["anchor"][n].movedim(0, -1).numpy(), views["anchor"])
        for error, path in zip(batch["read_errors"], expected_errors, strict=True):
            assert path in error


@pytest.mark.parametrize(("num_images", "tried"), [(10, 10), (500, MAX_REPLACEMENTS)])
def test_when_no_file_can_be_read_the_search_ends_and_the_first_is_named(cfg, num_images, tried):
    """A disk that went away must not be read to its end for every image."""
    records = [{"file_name": f"/gone/{n}.png"} for n in range(num_images)]
    with pytest.raises(UnreadableImageError, match=f"^{tried} images in a row cannot be read.*/gone/0.png"):
        ViewDataset(records, ViewMapper.from_config(cfg), PHOTOGRAPHS).__getitems__([(0, 0)])


def test_classes_travel_with_their_images_unless_the_numbers_of_several_data_sets_may_clash(
    tmp_path, write_pictures, cfg
):
    for name in ("a/bird", "a/cat", "b/bird"):
        write_pictures(tmp_path / name, 4)
    cfg.DATASETS.TRAIN, cfg.SOLVER.IMS_PER_BATCH = (f"class_folders:{tmp_path / 'a'}",), 8
    records = get_records(cfg.DATASETS.TRAIN[0])
    (batch,), (keys,) = batches_of(cfg, 1), keys_of(cfg, 1, num_images=8)
    assert batch["label"].tolist() == [records[index]["label"] for _, index in keys] != sorted(batch["label"])
    cfg.DATASETS.TRAIN += (f"class_folders:{tmp_path / 'b'}",)
    (batch,) = batches_of(cfg, 1)
    assert "label" not in batch and ResumableLoader(cfg).num_images == 12


def test_a_workers_batch_reaches_the_training_without_a_copy(cfg, monkeypatch):
    monkeypatch.setattr(loader_module, "get_worker_info", lambda: object())
    dataset = ViewDataset(get_records(cfg.DATASETS.TRAIN[0]), ViewMapper.from_config(cfg), PHOTOGRAPHS)
    batch = dataset.__getitems__([(0, 0), (0, 1)])
    assert all(batch[name].is_shared() for name in TENSORS)


class Broken(Dataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise UserError("mask 7.png has ids 30: expected 0 to 20, and 255 for void")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_users_mistake_is_one_line_wherever_it_is_found(num_workers):
    with pytest.raises(UserError) as caught:
        next(iter(DataLoader(Broken(), num_workers=num_workers)))
    assert str(caught.value) == "mask 7.png has ids 30: expected 0 to 20, and 255 for void"
    traceback.clear_frames(caught.tb)  # ends the worker, for which a collection of garbage would wait 5 s
