"""DATALOADER.AUGMENT_ON_DEVICE: the looks of a batch at once, against the workers' and torchvision's on PIL images."""

from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import tiny_config
from torchvision.transforms import InterpolationMode, autoaugment
from trees import refused

from projects.LargeData.looks_on_device import (
    NAMES,
    OPERATIONS,
    MapperWithoutLooks,
    apply_looks,
    looks_on_device,
    record_of,
)
from projects.Pictures.pretraining_sheets import finished
from revisit.data.loading.loader import ResumableLoader, finish
from revisit.data.views.looks import BRIGHTNESS, CONTRAST, HUE, LOOK_REGISTRY, SATURATION, StandardLook
from revisit.data.views.mapper import ViewMapper, training_mapper

SIZE = 40
SPACE = autoaugment.AutoAugment()._augmentation_space(10, (SIZE, SIZE))
EXACT = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Posterize", "Solarize", "Invert", "Equalize"}
NOISE = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
ON_DEVICE = ("DATALOADER.AUGMENT_ON_DEVICE", True)


def pictures() -> dict[str, np.ndarray]:
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    smooth = np.stack([y * 4 + 40, x * 3 + 20, (x * y) % 256], axis=-1).astype(np.uint8)
    grey = np.repeat(smooth[..., :1], 3, axis=-1)
    flat = {name: np.full_like(NOISE, value) for name, value in (("flat", 77), ("black", 0), ("white", 255))}
    return {"noise": NOISE, "smooth": smooth, "pastel": NOISE // 8 + 150, "grey": grey, **flat}


PICTURES = pictures()


def look(**changes: object) -> StandardLook:
    return StandardLook(**{"jitter": (), "grey": False, "blur_sigma": 0.0, "flip": False, **changes})


def distance(one: object, other: object) -> float:
    """Largest difference, in grey levels."""
    return np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float)).max()


def together(images: list[np.ndarray], looks: list) -> np.ndarray:
    """Views with their looks, (M, S, S, 3)."""
    batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    before = batch.clone()
    result = apply_looks(batch, np.stack([record_of(each, len(images[0])) for each in looks]))
    assert torch.equal(batch, before) and result.dtype == torch.uint8
    return result.permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize(
    "changes",
    [
        *({"jitter": ((op, factor),)} for op in (BRIGHTNESS, CONTRAST, SATURATION) for factor in (0.6, 1.0, 1.4)),
        *({"jitter": ((HUE, turns),)} for turns in (-0.1, 0.0, 0.05)),
        *({"blur_sigma": sigma} for sigma in (0.1, 0.5, 2.0)),
        {"grey": True},
        {"flip": True},
        {},
    ],
    ids=str,
)
def test_a_step_is_the_workers_within_grey_levels(changes):
    on_device = together(list(PICTURES.values()), [look(**changes)] * len(PICTURES))
    for image, views in zip(PICTURES.values(), on_device, strict=True):
        assert distance(views, look(**changes).apply(image)) <= 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("picture", PICTURES)
def test_an_operation_of_autoaugment_is_pils(picture, name):
    image = PICTURES[picture]
    batch = torch.from_numpy(image.copy()).permute(2, 0, 1).expand(2, -1, -1, -1)
    levels, signed = SPACE[name]
    for magnitude in {sign * float(level) for level in levels.flatten() for sign in ((1, -1) if signed else (1,))}:
        pil = Image.fromarray(image)
        expected = autoaugment._apply_op(pil, name, magnitude, InterpolationMode.NEAREST, None)
        tensors = OPERATIONS[name](batch, magnitude)
        assert tensors.dtype == torch.uint8
        assert distance(tensors.permute(0, 2, 3, 1), [expected] * 2) <= (0 if name in EXACT else 2), magnitude


def test_every_view_of_a_batch_gets_its_own_look(make_picture):
    rng, draw = np.random.default_rng(1), LOOK_REGISTRY.get("standard_or_autoaugment")(tiny_config())
    photographs = [make_picture(SIZE, SIZE, seed) for seed in range(5)]
    images = [*(PICTURES[name] for name in ("noise", "pastel", "black")), *photographs] * 40
    looks = [draw(rng) for _ in images]
    one_by_one = np.stack([each.apply(image) for image, each in zip(images, looks, strict=True)])
    # Several operations round and cut off more than once: close on average, and never another look.
    differences = np.abs(together(images, looks) - one_by_one.astype(float)).mean(axis=(1, 2, 3))
    assert np.median(differences) < 1 and np.quantile(differences, 0.95) < 2


@pytest.mark.parametrize("size", [1, 2, 5])
def test_tiny_views_are_blurred_by_their_mirrored_selves(size):
    image = np.random.default_rng(size).integers(0, 256, (size, size, 3), dtype=np.uint8)
    blurred = look(blur_sigma=1.3)
    assert distance(together([image], [blurred])[0], blurred.apply(image)) <= 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_looks_on_the_device_are_those_of_the_workers(tmp_path, write_pictures, num_workers):
    write_pictures(tmp_path, 10)
    options = ("DATASETS.TRAIN", (f"folder:{tmp_path}",), "SOLVER.IMS_PER_BATCH", 4)
    cfg = tiny_config(*options, "DATALOADER.NUM_WORKERS", num_workers)
    by_workers = list(islice(ResumableLoader(cfg), 3))
    cfg.DATALOADER.AUGMENT_ON_DEVICE = True
    for batch, expected in zip(ResumableLoader(cfg), by_workers, strict=False):
        assert finish(batch, "cpu") is batch
        assert batch.keys() == expected.keys()
        for name in ("anchor", "positive", "small"):
            assert batch[name].shape == expected[name].shape and batch[name].dtype == torch.uint8
            difference = (batch[name].int() - expected[name].int()).abs().float()
            assert difference.mean() < 2  # rounded once instead of after each operation


def test_pictures_show_the_views_as_the_device_finishes_them(make_picture):
    image, cfg = make_picture(120, 160), tiny_config(*ON_DEVICE)
    mapper, complete = training_mapper(cfg), ViewMapper.from_config(cfg)(image, 0, 3)
    views = finished(mapper, mapper(image, 0, 3))
    for name in mapper.shapes:
        assert np.abs(views[name].astype(int) - complete[name]).mean() < 2


def test_the_key_chooses_the_mapper_and_refuses_other_looks():
    assert type(training_mapper(tiny_config(*ON_DEVICE))) is MapperWithoutLooks
    assert type(training_mapper(tiny_config())) is not MapperWithoutLooks
    cfg = tiny_config(*ON_DEVICE, "VIEWS.POLICY", "grain")
    refused("AUGMENT_ON_DEVICE True does not know VIEWS.POLICY grain: expected one of standard, ", looks_on_device, cfg)
