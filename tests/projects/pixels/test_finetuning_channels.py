"""Images of channels on their way into detectors, segmentation and depth: each channel as if it were alone."""

import numpy as np
import pytest
import tifffile
import torch
from fields import SHAPE, write_fields
from PIL import Image

from revisit.data.sources.catalog import get_records
from revisit.engine.data_checks import decide_by_images
from revisit.engine.finetune_trainer import build_mapper
from revisit.engine.setup import make_config
from revisit.keys import Facts

LARGER = ("INPUT.MIN_SIZE_TRAIN", "(100,)", "INPUT.MIN_SIZE_TEST", "100", "SEED", "1")


def decided(recipe, name, *opts):
    cfg = make_config(recipe, ["DATASETS.TRAIN", f"('{name}',)", *opts])
    decide_by_images(cfg, Facts(stated=[list(opts[::2])]), looked_at=False)
    return cfg


@pytest.mark.parametrize("channels", [1, 2, 4, 5])
@pytest.mark.parametrize("is_train", [True, False])
def test_a_detector_sees_each_channel_as_if_it_were_alone(tmp_path, channels, is_train):
    name = write_fields(tmp_path / "fields", count=4, channels=channels)
    named = ("INPUT.CHANNELS", " ".join("abcde"[:channels]), "INPUT.RANGE", "0 4096")
    mapper = build_mapper(decided("own_images/detection.yaml", name, *LARGER, *named), is_train)
    record = get_records(name)[0]
    mapped = []
    for seed in range(8):
        np.random.seed(seed)
        mapped.append(mapper(record)["image"].numpy())
    levels = (tifffile.imread(record["file_name"]).reshape(*SHAPE, channels) >> 4).clip(max=255).astype(np.uint8)
    resized = np.stack(
        [np.asarray(Image.fromarray(plane).resize((125, 100), 2)) for plane in levels.transpose(2, 0, 1)]
    )
    flipped = [not np.array_equal(image, resized) for image in mapped]
    for image, is_flipped in zip(mapped, flipped, strict=True):
        np.testing.assert_array_equal(image, resized[..., ::-1] if is_flipped else resized)
    assert any(flipped) == is_train and not all(flipped)


def test_no_order_of_colours_turns_channels_round(tmp_path):
    name = write_fields(tmp_path / "fields", count=4, channels=4)
    record = get_records(name)[0]
    cfgs = [decided("own_images/detection.yaml", name, "INPUT.FORMAT", order) for order in ("RGB", "BGR")]
    one, other = (build_mapper(cfg, is_train=False)(record)["image"] for cfg in cfgs)
    assert torch.equal(one, other) and cfgs[1].INPUT.FORMAT == "RGB"
