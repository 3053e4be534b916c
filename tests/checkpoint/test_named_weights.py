"""Weights by a name: found by all that take weights, written once into the cache, and again where they are damaged."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from checkpoints import run_checkpoint, write_converted
from trees import refusal

from revisit.checkpoint.flags import read_flags, write_flags
from revisit.checkpoint.named_weights import NAMED_WEIGHTS_REGISTRY, cache_folder, kept_file, weights_file
from revisit.checkpoint.run_folder import trained_network
from revisit.checkpoint.start import start
from revisit.engine.setup import make_config
from revisit.plugins import load_plugins

RECIPE = "configs/toy/detection.yaml"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/revisit/weights"


class Writer:
    """Writes weights with their flags, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, path: Path) -> None:
        self.count += 1
        content = path.with_suffix(".new")
        torch.save({"res2.weight": torch.ones(2)}, content)
        write_flags(path, {"MODEL.RESNETS.DEPTH": 18}, "a test", file=content)
        content.rename(path)


@pytest.fixture
def writer(monkeypatch) -> Writer:
    """Behind every name ``test:NAME``."""
    writer = Writer()
    load_plugins()  # which register what stays
    kinds = dict(NAMED_WEIGHTS_REGISTRY._obj_map, test=lambda name: kept_file(f"test/{name}.pth", writer))
    monkeypatch.setattr(NAMED_WEIGHTS_REGISTRY, "_obj_map", kinds)
    return writer


def test_a_config_takes_the_file_of_a_name(toy_datasets, cache, writer):
    cfg = make_config(RECIPE, ["MODEL.WEIGHTS", "test:one"])
    assert cfg.MODEL.WEIGHTS == str(cache / "test/one.pth") and writer.count == 1
    cfg.MODEL.WEIGHTS = "test:one"
    assert trained_network(cfg).config == {}


def test_random_weights_are_a_start_in_any_config(toy_datasets):
    assert make_config(RECIPE, ["MODEL.WEIGHTS", "random"]).MODEL.WEIGHTS == ""
    assert start("random").file is None and start("random").keys == {}


def test_weights_say_their_network_by_the_flags_next_to_them_or_in_a_run(tmp_path, writer):
    for weights in ("test:one", str(tmp_path / "run.pth")):
        torch.save({"model": {}, "flags": {"MODEL.RESNETS.DEPTH": 18}}, tmp_path / "run.pth")
        assert start(weights).keys == {
            "MODEL.BACKBONE.NAME": "build_revisit_resnet_backbone",
            "MODEL.RESNETS.DEPTH": 18,
        }


def test_paths_and_unknown_words_stay_what_they_are(writer):
    assert weights_file("other:one") == Path("other:one")
    assert weights_file("~/x.pth") == Path("~/x.pth").expanduser()
    message = refusal(make_config, RECIPE, ["MODEL.WEIGHTS", "other:one"])
    assert "other:one not found: expected a file of weights or " in message and "test:NAME" in message


def test_weights_are_written_once_and_again_if_damaged(cache, writer):
    path = weights_file("test:one")
    weights_file("test:one")
    assert path == cache / "test/one.pth" and writer.count == 1
    path.write_bytes(path.read_bytes()[:-1])
    weights_file("test:one")
    assert writer.count == 2
    path.with_suffix(".yaml").unlink()
    weights_file("test:one")
    assert writer.count == 3


def test_of_several_at_once_one_writes(cache):
    started = threading.Barrier(4)
    writer = Writer()

    def take(_: int) -> Path:
        started.wait()
        return kept_file("one.pth", writer)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(take, range(4))) == {cache / "one.pth"}
    assert writer.count == 1


def test_cache_lies_in_home_unless_an_absolute_folder_is_set(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for stated in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", stated)
        assert cache_folder() == tmp_path / ".cache/revisit/weights"


def test_a_cache_that_cannot_be_written_is_refused_in_a_line(tmp_path, monkeypatch, writer):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "XDG_CACHE_HOME" in refusal(weights_file, "test:one")


def test_what_a_start_says_is_read_once_until_its_files_change(tmp_path, monkeypatch):
    weights = write_converted(run_checkpoint(), tmp_path / "backbone.pth")
    read = []
    monkeypatch.setattr("revisit.checkpoint.start.read_flags", lambda file: read.append(file) or read_flags(file))
    assert start(str(weights)).flags == start(str(weights)).flags and len(read) == 1
    write_flags(weights, {**start(str(weights)).flags, "MODEL.PIXEL_MEAN": [1.0, 2.0, 3.0]}, source="another")
    assert start(str(weights)).flags["MODEL.PIXEL_MEAN"] == [1.0, 2.0, 3.0] and len(read) == 2
