"""INPUT.BIT_DEPTH from images to weights and from weights to what uses them."""

import json
import logging

import numpy as np
import pytest
import torch
from commands import TINY, one_line_error, run
from deep import DEPTHS, photograph, shallow_picture, write_at
from PIL import Image
from tiny import tiny_config
from trees import refusal

from revisit.checkpoint.flags import check_flags, flags_of, flags_to_config, write_flags
from revisit.data.finetuning.pixel_mapper import PixelMapper
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import require_record
from revisit.data.loading.loader import ResumableLoader
from revisit.engine.data_checks import inspect_training
from revisit.engine.finetune_trainer import build_mapper
from revisit.engine.setup import make_config
from revisit.keys import Facts, resolve_auto_values

from detectron2.utils.env import seed_all_rng

SIZES = ("VIEWS.LARGE_SIZE", 32, "VIEWS.SMALL_SIZE", 16, "SOLVER.IMS_PER_BATCH", 2, "VIEWS.POLICY", "standard")


def folder_at(depth, path, count=2):
    for n in range(count):
        write_at(depth, path / f"{n}", photograph(n))
    return f"folder:{path}"


@pytest.mark.parametrize("depth", DEPTHS)
def test_pretraining_sees_one_photograph_at_every_depth(tmp_path, depth, caplog):
    caplog.set_level(logging.INFO)
    batches = []
    for name in ("8", depth):
        cfg = tiny_config("DATASETS.TRAIN", (folder_at(name, tmp_path / name),), *SIZES)
        assert inspect_training(cfg) == 2
        assert pixel_format(cfg).bits == (None if name == "8" else DEPTHS[name])
        batches.append(ResumableLoader(cfg).batch_of(0))
    assert ("INPUT.BIT_DEPTH" in caplog.text) == (depth != "8")
    for view in ("anchor", "positive", "small"):
        assert (batches[0][view].int() - batches[1][view].int()).abs().max() <= 2, view


@pytest.mark.parametrize("use", ["pixels in training", "pixels in a test", "a detector", "a picture to draw on"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_whatever_reads_images_sees_one_photograph_at_every_depth(tmp_path, depth, use):
    np.save(tmp_path / "depth.npy", np.ones((48, 64)))
    options = ("INPUT.CROP.ENABLED", True, "INPUT.CROP.TYPE", "absolute", "INPUT.CROP.SIZE", [24, 32])
    if use == "a detector":
        options = ("INPUT.MIN_SIZE_TEST", 48, "INPUT.MAX_SIZE_TEST", 64, "MODEL.META_ARCHITECTURE", "GeneralizedRCNN")
    samples = []
    for name in ("8", depth):
        path = write_at(name, tmp_path / name, photograph())
        record = {"file_name": str(path), "depth_file_name": str(tmp_path / "depth.npy"), "height": 48, "width": 64}
        if use == "a picture to draw on":
            samples.append(torch.as_tensor(require_record(record, PixelFormat(DEPTHS[name])).astype(int)))
            continue
        cfg = tiny_config("INPUT.BIT_DEPTH", DEPTHS[name], "INPUT.FORMAT", "RGB", *options)
        seed_all_rng(3)
        mapper = build_mapper if use == "a detector" else PixelMapper
        samples.append(mapper(cfg, use == "pixels in training")(record)["image"].int())
    assert (samples[0] - samples[1]).abs().max() <= 2


def records_at(depth, path):
    return [{"file_name": str(write_at(depth, path, photograph()))}]


def resolve_bit_depth(cfg, records):
    resolve_auto_values(cfg, Facts(records=records))


def test_the_depth_of_the_weights_wins_over_that_of_the_images(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    weights = tmp_path / "backbone.pth"
    torch.save({}, weights)
    write_flags(weights, {"INPUT.BIT_DEPTH": 14}, source="a test")
    cfg = tiny_config("MODEL.WEIGHTS", str(weights))
    resolve_bit_depth(cfg, records_at("8", tmp_path / "shallow"))
    assert pixel_format(cfg).bits is None
    cfg.freeze()
    resolve_bit_depth(cfg, records_at("12", tmp_path / "deep"))
    assert pixel_format(cfg).bits == 14 and cfg.is_frozen() and "backbone.pth was trained" in caplog.text
    for depth in ("16", "float"):
        message = refusal(resolve_bit_depth, tiny_config("MODEL.WEIGHTS", str(weights)), records_at(depth, weights))
        assert f"ask for INPUT.BIT_DEPTH {DEPTHS[depth]}, but {weights} was trained with 14" in message


def test_flags_of_shallow_images_are_as_they_were_and_a_depth_travels_with_the_others():
    plain, deep = flags_of(tiny_config(), None), flags_of(tiny_config("INPUT.BIT_DEPTH", 12), None)
    assert "INPUT.BIT_DEPTH" not in plain and deep == {**plain, "INPUT.BIT_DEPTH": 12}
    assert pixel_format(flags_to_config(deep)).bits == 12
    check_flags(plain, tiny_config("INPUT.BIT_DEPTH", 12), None, "old.pth")
    check_flags(deep, tiny_config(), None, "deep.pth")
    message = refusal(check_flags, deep, tiny_config("INPUT.BIT_DEPTH", 14), None, "deep.pth")
    assert "INPUT.BIT_DEPTH is 14 here and 12 there" in message


@pytest.mark.parametrize("value", ["auto", "None", "12", "1"])
def test_the_key_takes_a_word_or_a_number(value):
    cfg = make_config("configs/toy/pretrain.yaml", ["INPUT.BIT_DEPTH", value])
    assert pixel_format(cfg).bits == (int(value) if value.isdigit() else None)


def test_a_run_on_12_bits_says_so_and_its_weights_ask_for_the_same(tmp_path):
    """And its dry run lists what cannot be read."""
    data, output = folder_at("12", tmp_path / "images", 8), tmp_path / "run"
    options = f"""{TINY} SOLVER.MAX_ITER 1 KNN_EVAL.LINEAR False KNN_EVAL.BANK '' DATASETS.TEST '()' OUTPUT_DIR {output}
        DATASETS.TRAIN "('{data}',)" """
    command = f"python tools/train_net.py --config-file configs/toy/pretrain.yaml {options}"
    Image.fromarray(shallow_picture()).save(tmp_path / "images/z.png")
    broken = tmp_path / "images/broken.png"
    broken.write_bytes((tmp_path / "images/z.png").read_bytes()[:200])
    dry_run = command.replace(" SOLVER", " --dry-run SOLVER", 1)
    assert f"10 of 10 images looked at, 1 cannot be read, such as {broken}" in one_line_error(dry_run, tmp_path)
    broken.unlink()
    said = run(dry_run, tmp_path)
    assert "INPUT.BIT_DEPTH 12: values of 0 to 4095 become 0 to 255, because 8 of 9 images looked at" in said
    found = json.loads((output / "dry_run.json").read_text())["data"]
    assert found["bit_depth"] == 12 and found["images_checked"] == 9 and found["unreadable"] == 0
    assert "iterations, INPUT.BIT_DEPTH 12" in run(command, tmp_path)
    run(f"python tools/convert_to_d2.py {output}/model_final.pth {tmp_path}/backbone.pth", tmp_path)
    assert "INPUT.BIT_DEPTH: 12" in (tmp_path / "backbone.yaml").read_text()
