"""Images of channels on their way into detectors, segmentation and depth: each channel as if it were alone."""

import numpy as np
import pytest
import tifffile
import torch
from fields import SHAPE, write_fields
from PIL import Image
from runs import run
from trees import refused

from projects.Labels.near_copies import alike_images
from revisit.checkpoint.flags import check_flags, flags_of
from revisit.data.images.deep_images import format_of
from revisit.data.sources.catalog import get_records
from revisit.engine.data_checks import decide_by_images
from revisit.engine.finetune_trainer import FinetuneTrainer, build_mapper
from revisit.engine.setup import make_config
from revisit.keys import Facts

from detectron2.data import DatasetCatalog, MetadataCatalog

DEPTH = (
    *("MODEL.RESNETS.STEM_OUT_CHANNELS", "8", "MODEL.RESNETS.RES2_OUT_CHANNELS", "8", "SOLVER.IMS_PER_BATCH", "2"),
    *("DATALOADER.NUM_WORKERS", "0", "SOLVER.MAX_ITER", "2", "INPUT.CROP.SIZE", "[48, 48]", "DATASETS.TEST", "()"),
    *("SOLVER.STEPS", "()", "SOLVER.WARMUP_ITERS", "0", "SOLVER.EPOCHS", "0", "SEED", "1"),
)
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


def placed_alone(mapper, record, images):
    """The samples of a mapper that reads these (H, W, C) images in place of a record's."""
    samples = []
    for image in images:
        np.random.seed(3)
        samples.append(mapper(record, np.ascontiguousarray(image))["image"])
    return samples


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("INPUT.RANDOM_ROTATION", "20.0", "INPUT.SQUASH", "(40, 56)", "INPUT.CROP.ENABLED", "False"),
        ("INPUT.RANDOM_ROTATION", "20.0", "INPUT.RESAMPLING", "opencv"),
    ],
    ids=["plain", "squashed", "opencv"],
)
def test_a_segmentation_sees_each_channel_as_if_it_were_alone(tmp_path, options):
    write_fields(tmp_path / "fields", count=4)
    (tmp_path / "fields/labels").rename(tmp_path / "labels")
    crop = ("INPUT.CROP.SIZE", "[48, 48]", "INPUT.RANDOM_SCALE", "(0.4, 0.6)", "SOLVER.IMS_PER_BATCH", "4")
    name = f"masks:{tmp_path}/fields:{tmp_path}/labels"
    mapper = build_mapper(decided("own_images/segmentation.yaml", name, "SEED", "1", *crop, *options), is_train=True)
    record = get_records(name)[0]
    image = mapper.read(record)
    fill = mapper._fill
    (whole,) = placed_alone(mapper, record, [image])
    for place in range(5):
        mapper._fill = fill[place : place + 1]
        (alone,) = placed_alone(mapper, record, [image[..., [place]]])
        assert torch.equal(whole[[place]], alone)
    assert (whole[:, -1, -1] == fill).all() or options


def test_depth_is_finetuned_on_channels(tmp_path):
    write_fields(tmp_path / "fields", count=4, channels=4)
    folder = tmp_path / "fields"
    records = [
        {"file_name": f"{folder}/{n}.tif", "image_id": str(n), "depth_file_name": f"{folder}/depth/{n}.npy"}
        for n in range(4)
    ]
    DatasetCatalog.register(str(tmp_path), lambda: records)
    MetadataCatalog.get(str(tmp_path)).set(evaluator_type="depth")
    try:
        cfg = decided("configs/toy/depth.yaml", str(tmp_path), *DEPTH, "OUTPUT_DIR", str(tmp_path / "run"))
        trainer = run(cfg, trainer_class=FinetuneTrainer)
    finally:
        DatasetCatalog.remove(str(tmp_path))
        MetadataCatalog.remove(str(tmp_path))
    assert trainer.model.backbone.stem.conv1.weight.shape[1] == 4
    assert np.isfinite(trainer.storage.latest()["total_loss"][0])


def test_weights_of_a_range_are_refused_where_images_have_none():
    cfg = make_config("own_images/detection.yaml", [])
    flags = flags_of(cfg, None) | {"INPUT.RANGE": [[-1000.0, 3000.0]], "INPUT.NODATA": -3000}
    refused(r"INPUT.RANGE is None here and \[\[-1000.0, 3000.0\]\] there", check_flags, flags, cfg, None, "ct.pth")
    cfg.INPUT.RANGE = "-1000 3000"
    check_flags(flags, cfg, None, "ct.pth")


def test_copies_are_found_by_all_channels(tmp_path):
    write_fields(tmp_path / "fields", count=4)
    values = tifffile.imread(tmp_path / "fields/0.tif")
    np.save(tmp_path / "copy.npy", values + 20)
    values[..., :3] = np.random.default_rng(1).uniform(100, 2000, (*SHAPE, 3))
    np.save(tmp_path / "other.npy", values)
    learned = [{"file_name": f"{tmp_path}/fields/{n}.tif"} for n in range(4)]
    tested = [{"file_name": f"{tmp_path}/{name}.npy"} for name in ("copy", "other")]
    assert alike_images(learned, tested, format_of({}, learned)) == ([(tested[0], learned[0])], 2)
