"""Methods whose views, keys and losses docs/extending.md shows: by direct evaluations."""

from importlib import import_module
from itertools import islice

import numpy as np
import pytest
import torch
from runs import assert_resumes, dry_recipe, load, run_config, train
from tiny import direct_losses, loss_inputs, tiny_model
from trees import refused

from projects.Pictures import pretraining_sheets
from revisit.checkpoint.metrics_file import read_metrics
from revisit.data.loading.sampler import EpochBatchSampler
from revisit.data.views.mapper import training_mapper
from revisit.modeling.meta_arch.moco import Encoded

from detectron2.utils.events import EventStorage

pytestmark = pytest.mark.usefixtures("examples_found")


def test_a_third_large_view_is_drawn_planned_and_learned(toy_datasets, tmp_path, make_picture):
    third_view = import_module("third_view")
    method, picture = ("MODEL.META_ARCHITECTURE", "ThreeLarge"), make_picture(120, 160)
    mapper, plain = (training_mapper(run_config(tmp_path, *more)) for more in (method, ()))
    views, without = mapper(picture, 2, 3), plain(picture, 2, 3)
    assert isinstance(mapper, third_view.ThreeLargeMapper) and views["third"].shape == (32, 32, 3)
    assert all(np.array_equal(views[name], without[name]) for name in ("anchor", "positive", "small"))
    assert np.array_equal(views["third"], mapper(picture, 2, 3)["third"])
    assert not np.array_equal(views["third"], views["positive"])
    recipe = dry_recipe(tmp_path, *method)
    assert recipe["shapes"]["third"] == [8, 3, 32, 32] and recipe["crops"]["large"]["count"] == 3
    assert recipe["shapes"]["projection_head"] == [[16, 16], [32, 16]]
    train(tmp_path, "SOLVER.MAX_ITER", 2, *method)
    assert len(read_metrics(tmp_path / "metrics.json")["total_loss"]) > 0


def test_a_third_view_is_in_the_sheet(toy_datasets, tmp_path, monkeypatch):
    import_module("third_view")
    headers = []
    monkeypatch.setattr(pretraining_sheets, "save_sheet", lambda path, rows, texts, **more: headers.extend(texts))
    cfg = run_config(tmp_path, "MODEL.META_ARCHITECTURE", "ThreeLarge", "VIEWS.NUM_SMALL", 2)
    pretraining_sheets.save_view_sheet(cfg, tmp_path / "views.png")
    assert headers == ["image", "anchor", "positive", "small", "small", "third"]


def test_two_that_replace_the_mapper_are_refused(tmp_path):
    import_module("third_view")
    import_module("projects.LargeData.plugin")
    cfg = run_config(tmp_path, "MODEL.META_ARCHITECTURE", "ThreeLarge", "DATALOADER.AUGMENT_ON_DEVICE", True)
    refused("MapperWithoutLooks.*ThreeLargeMapper.*replace the mapper of views: expected one", training_mapper, cfg)


def assert_means(step_losses: dict, expected: list[tuple[float, float]], weight: float) -> None:
    """The losses of a step are the means of L_inst and of L_nn, the latter times lambda."""
    inst, nearest = np.mean(expected, axis=0)
    assert step_losses["loss_inst"].item() == pytest.approx(inst, rel=1e-9)
    assert step_losses["loss_nn"].item() == pytest.approx(weight * nearest, rel=1e-9)


def encoded_of(model: torch.nn.Module, kind: type[Encoded], **more: torch.Tensor) -> tuple[Encoded, dict]:
    """What the encoders might have made in float64, in whose queue the rows of ``loss_inputs`` are; and these."""
    found = loss_inputs(3, queue_size=50)
    model.queue.keys, model.queue.features = found["queue"], found["queue_g"]
    encoded = kind(found["positives"], found["positives_g"], found["anchors"], **more)
    return encoded, {name: value.numpy() for name, value in found.items()}


def rows_of(found: dict, i: slice, j: slice, queue: object = slice(None)) -> tuple[np.ndarray, ...]:
    """The arguments of ``direct_losses`` for some images, positives and rows of the queue."""
    p, a, p_g = found["positives"][i, j], found["anchors"][i], found["positives_g"][i, j]
    return p, a, found["queue"][queue], p_g, found["queue_g"][queue]


def test_a_method_from_outside_has_a_temperature_per_view():
    import_module("view_temperatures")
    temperatures = (0.25, 0.0625, 0.125)
    method = ("MODEL.META_ARCHITECTURE", "ViewTemperatures", "VIEWS.NUM_SMALL", 2)
    model = tiny_model(*method, "VIEW_TEMPERATURES", temperatures)
    encoded, found = encoded_of(model, Encoded)
    model.temperature = model.temperature.double()
    with EventStorage():
        losses = model.losses(encoded)
    parts = [rows_of(found, slice(None), slice(j, j + 1)) for j in range(3)]
    expected = [direct_losses(*part, k=5, tau=tau) for part, tau in zip(parts, temperatures, strict=True)]
    assert_means(losses, expected, 0.4)


def test_a_key_that_an_extending_method_does_not_read_is_not_in_its_plan(toy_datasets, tmp_path):
    import_module("view_temperatures")
    keys = [dry_recipe(tmp_path, "MODEL.META_ARCHITECTURE", name)["keys"] for name in ("KNNMoCo", "ViewTemperatures")]
    assert keys[0].keys() - keys[1].keys() == {"MOCO.TEMPERATURE"}
    assert keys[1].keys() - keys[0].keys() == {"VIEW_TEMPERATURES"}


def test_a_method_from_outside_leaves_an_images_own_rows_out():
    other_images = import_module("other_images")
    model = tiny_model("MODEL.META_ARCHITECTURE", "OtherImages")
    model.image_of_row = torch.arange(50) % 9 - 1  # nine rows of each of six images, random ones, and of others
    encoded, found = encoded_of(model, other_images.EncodedImages, index=torch.arange(6))
    with EventStorage():
        losses = model.losses(encoded)
    others = [np.flatnonzero(model.image_of_row.numpy() != i) for i in range(6)]
    parts = [rows_of(found, slice(i, i + 1), slice(None), rows) for i, rows in enumerate(others)]
    assert_means(losses, [direct_losses(*part, k=5, tau=0.2) for part in parts], 0.4)


def test_an_outside_methods_buffer_is_resumed(toy_datasets, tmp_path):
    import_module("other_images")
    method = ("MODEL.META_ARCHITECTURE", "OtherImages", "SOLVER.ACCUMULATION_STEPS", 2)
    options = (*method, "SOLVER.MAX_ITER", 8, "SOLVER.CHECKPOINT_PERIOD", 4, "MOCO.QUEUE_SIZE", 50)
    trainer = train(tmp_path / "whole", *options)
    assert_resumes(tmp_path / "whole", tmp_path / "parts", 3, *options)
    keys = EpochBatchSampler(60, 8, trainer.cfg.SEED, start_iteration=0)
    batches = [[index for _, index in batch] for batch in islice(keys, 8)]
    rows = load(tmp_path / "whole/model_final.pth")["model"]["image_of_row"].tolist()
    expected = [index for batch in batches for index in batch]  # 64 rows, of which the last 14 replaced the first
    assert rows == expected[50:] + expected[14:50]
