"""The cache of features: what it holds, what invalidates it, and how it resumes after an interruption."""

import json
import os

import cv2
import numpy as np
import pytest
import torch
from tiny import tiny_config

import projects.FrozenEvaluations.linear  # noqa: F401  (declares LINEAR)
from projects.FrozenEvaluations import labelled_sets
from projects.FrozenEvaluations.labelled_sets import LabelledSet, images_key
from revisit.errors import UserError
from revisit.evaluation.features import TRANSFORMS
from revisit.files import one_at_a_time
from revisit.network.network import Network

RECORDS = [{"image": image} for image in np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)]


@pytest.fixture
def make(tmp_path, monkeypatch):
    """The features of RECORDS, how many were computed for them, and the backbone."""
    monkeypatch.setattr(labelled_sets, "BATCH", 2)
    monkeypatch.setattr(labelled_sets, "BATCHES_PER_SAVE", 2)
    calls = []

    def features(order=1, see=lambda image, size: image, load=lambda backbone: None, **options):
        monkeypatch.setitem(TRANSFORMS, "square", see)
        cfg = tiny_config()
        cfg.merge_from_list(["LINEAR.IMAGE_SIZE", 32, "LINEAR.CACHE", str(tmp_path / "cache")])
        cfg.merge_from_list([word for pair in options.items() for word in pair])
        backbone = Network.of_config(cfg)
        load(backbone)
        backbone.register_forward_hook(lambda module, args, output: calls.append(len(args[0])))
        calls.clear()
        rows, _ = labelled_sets.cached_features(cfg, backbone, LabelledSet("data", RECORDS[::order], np.arange(10)))
        return rows.copy(), sum(calls), backbone

    return features


@pytest.mark.parametrize(
    "changed",
    [
        {"SEED": 2},
        {"order": -1},
        {"LINEAR.IMAGE_SIZE": 48, "see": lambda image, size: cv2.resize(image, (size, size))},
        {"MODEL.RESNETS.RES5_DILATION": 2},
    ],
    ids=["weights", "images", "transform", "network"],
)
def test_features_are_the_pooled_map_computed_once_for_each_cause(changed, make):
    first, computed, backbone = make()
    images = torch.stack([torch.from_numpy(record["image"]).permute(2, 0, 1) for record in RECORDS])
    assert computed == 10 and np.allclose(first, backbone.last_map(images).mean(dim=(2, 3)), atol=1e-5)
    second, computed, _ = make(**changed)
    assert computed == 10 and not np.array_equal(first, second)
    for options, expected in (({}, first), (changed, second)):  # both are kept
        again, computed, _ = make(**options)
        assert computed == 0 and np.array_equal(again, expected)


def test_features_are_of_the_tensors_however_a_file_became_them(make):
    """MODEL.STEM_FROM makes several stems of one file."""
    first, _, _ = make()
    second, computed, _ = make(load=lambda backbone: next(backbone.network.parameters()).data.mul_(-1))
    assert computed == 10 and not np.array_equal(first, second)


def test_who_computes_features_has_them_alone(make, tmp_path):
    """A second command would begin the file of rows again."""
    waited = []

    def see(image, size):
        (lock,) = (tmp_path / "cache").glob("*.lock")
        with pytest.raises(UserError, match="in use"), one_at_a_time(lock, "in use"):
            pass
        waited.append(lock)
        return image

    make(see=see)
    assert len(waited) == 10 and not [*(tmp_path / "cache").glob("*.lock")]


def test_images_are_told_apart_by_the_files_of_all_channels(tmp_path):
    files = [str(tmp_path / f"{channel}.npy") for channel in "DF"]
    for file in files:
        np.save(file, np.zeros((8, 9)))
    record = {"file_name": files[0], "channel_files": files}
    before = images_key([record])
    assert images_key([record]) == before != images_key([record | {"channel_files": files[:1]}])
    assert images_key([{"file_name": files[0]}]) == images_key([record | {"channel_files": files[:1]}])
    os.utime(files[1], ns=(1, 1))
    assert images_key([record]) != before


def test_an_interrupted_call_is_completed(make, tmp_path):
    expected, _, _ = make()
    for file in (tmp_path / "cache").iterdir():
        file.unlink()
    seen = []

    def stop_at_the_seventh(image, size):
        seen.append(1)
        if len(seen) == 7:
            raise KeyboardInterrupt
        return image

    with pytest.raises(KeyboardInterrupt):
        make(see=stop_at_the_seventh)
    (state,) = (tmp_path / "cache").glob("*.json")
    assert json.loads(state.read_text()) == 4
    rows, computed, _ = make()
    assert computed == 6 and np.array_equal(rows, expected)
