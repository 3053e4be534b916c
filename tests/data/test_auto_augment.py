"""AutoAugment's operations and its draws, against torchvision's own on PIL images."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import AutoAugment, InterpolationMode, autoaugment

from revisit.data.augmentation import NUM_POLICIES, AutoAugmentLook
from revisit.data.augmentation_on_arrays import apply_operation
from revisit.data.augmentation_on_device import NAMES, OPERATIONS

SIZE = 40
SPACE = AutoAugment()._augmentation_space(10, (SIZE, SIZE))
EXACT = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Posterize", "Solarize", "Invert", "Equalize"}


def pictures():
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    smooth = np.stack([y * 4 + 40, x * 3 + 20, (x * y) % 256], axis=-1).astype(np.uint8)
    smooth[10:20, 10:30] = (200, 40, 90)
    noise = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    few = noise // 64 * 40 + 30  # four values
    flat = np.full_like(noise, 77)
    return {"smooth": smooth, "noise": noise, "few": few, "flat": flat, "black": 0 * flat}


PICTURES = pictures()


def magnitudes(name):
    levels, signed = SPACE[name]
    values = sorted({float(level) for level in levels.flatten()})
    return values + [-value for value in values if signed]


def reference(image, name, magnitude):
    pil = Image.fromarray(image)
    return np.asarray(autoaugment._apply_op(pil, name, magnitude, InterpolationMode.NEAREST, None)).astype(int)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("picture", PICTURES)
def test_an_operation_is_pils(picture, name):
    image = PICTURES[picture]
    before = image.copy()
    batch = torch.from_numpy(image).permute(2, 0, 1).expand(2, -1, -1, -1)
    for magnitude in magnitudes(name):
        expected = reference(image, name, magnitude)
        array = apply_operation(image, name, magnitude)
        assert array.dtype == np.uint8
        assert np.abs(array - expected).max() <= (0 if name in EXACT | {"AutoContrast"} else 2), magnitude
        tensors = OPERATIONS[name](batch, magnitude)
        assert tensors.dtype == torch.uint8
        for tensor in tensors:
            assert np.abs(tensor.permute(1, 2, 0).numpy() - expected).max() <= (0 if name in EXACT else 2), magnitude
    assert np.array_equal(image, before)


def test_draws_come_to_torchvisions_operations(monkeypatch):
    done = []

    def note(image, name, magnitude, **_):
        done.append((name, pytest.approx(magnitude)))
        return image

    monkeypatch.setattr(autoaugment, "_apply_op", note)
    covered = set()
    with torch.random.fork_rng():
        for seed in range(500):
            done.clear()
            torch.manual_seed(seed)
            AutoAugment()(Image.new("RGB", (SIZE, SIZE)))
            torch.manual_seed(seed)
            policy, probabilities, signs = AutoAugment.get_params(NUM_POLICIES)
            look = AutoAugmentLook(False, policy, probabilities.tolist(), signs.tolist())
            assert look.operations(SIZE) == done
            covered.add(policy)
    assert covered == set(range(NUM_POLICIES)) and set(NAMES) == set(SPACE)
