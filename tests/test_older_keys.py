"""MOCO.BN_SPLITS in a command, a file or a checkpoint is MOCO.BN_GROUP now, and runs that had it continue."""

import logging
from pathlib import Path

import pytest
import torch
from commands import ROOT

from revisit.data.loader import fingerprint
from revisit.engine.same_experiment import check_same_experiment, plain_config
from revisit.engine.setup import make_config
from revisit.errors import UserError

IMAGES = fingerprint([{"file_name": "/data/a.jpg"}])
PAPER = "configs/pretrain/knn_moco.yaml"


def group_of(*opts: object, config_file: str = PAPER, **how: object) -> int:
    return make_config(str(config_file), [str(word) for word in opts], **how).MOCO.BN_GROUP


@pytest.fixture
def old_file(tmp_path) -> Path:
    """A config that was based on one of ours before groups were."""
    path = tmp_path / "mine.yaml"
    path.write_text(f"_BASE_: {ROOT}/configs/own_images/pretrain.yaml\nMOCO:\n  BN_SPLITS: 4\n")
    return path


def test_statistics_are_over_128_images_unless_something_is_stated():
    assert [group_of(num_processes=count) for count in (1, 2, 8)] == [128] * 3
    assert group_of("MOCO.BN_GROUP", 64) == 64


def test_an_older_key_is_the_group_that_it_meant_and_is_reported(old_file, caplog):
    assert group_of("MOCO.BN_SPLITS", 4) == 64
    assert group_of("MOCO.BN_SPLITS", 4, num_processes=2) == 32
    assert group_of("MOCO.BN_SPLITS", 2, "SOLVER.ACCUMULATION_STEPS", 2, num_processes=2) == 32
    assert group_of("MOCO.BN_SPLITS", 1) == 0
    caplog.clear()
    assert group_of(config_file=old_file) == 16
    assert caplog.messages == ["MOCO.BN_SPLITS 4 is an older key: it is taken as what it means now, MOCO.BN_GROUP 16"]
    assert group_of("MOCO.BN_GROUP", 32, config_file=old_file) == 32


def old_checkpoint(folder: Path, splits: int, processes: int) -> dict:
    """Of the paper's recipe by the version before groups; what a checkpoint holds of its settings."""
    values = plain_config(make_config(PAPER, ["SEED", "1"]))
    del values["MOCO.BN_GROUP"]
    state = {"config": values | {"MOCO.BN_SPLITS": splits}, "images": IMAGES, "world_size": processes, "seed": 1}
    torch.save({"iteration": 2, "trainer": state}, folder / "model_0000002.pth")
    return state


@pytest.mark.parametrize(("splits", "processes", "group"), [(1, 1, 0), (1, 2, 0), (2, 1, 128), (2, 4, 32)])
def test_an_old_run_resumes_with_the_statistics_it_began_with(tmp_path, caplog, splits, processes, group):
    old, here = old_checkpoint(tmp_path, splits, processes), ("OUTPUT_DIR", str(tmp_path))
    cfg = make_config(PAPER, here, num_processes=processes, resume=True)
    assert cfg.MOCO.BN_GROUP == group
    origin = f"MOCO.BN_SPLITS {splits}, an older key"
    assert caplog.messages == [f"MOCO.BN_GROUP {group}: nothing else is stated, and the run began with {origin}"]
    check_same_experiment(cfg, IMAGES, old)
    # Its next checkpoint has the new key.
    torch.save({"iteration": 5, "trainer": old | {"config": plain_config(cfg)}}, tmp_path / "model_0000005.pth")
    assert group_of(*here, num_processes=processes, resume=True) == group
    assert group_of(*here, num_processes=processes) == 128


def test_a_group_that_is_stated_is_compared_with_what_the_older_key_meant(tmp_path):
    old, here = old_checkpoint(tmp_path, 2, 2), ("OUTPUT_DIR", str(tmp_path), "MOCO.BN_GROUP")
    check_same_experiment(make_config(PAPER, [*here, "64"], resume=True), IMAGES, old)
    with pytest.raises(UserError, match=r"MOCO.BN_GROUP \(64 -> 128\).* --accept MOCO.BN_GROUP$"):
        check_same_experiment(make_config(PAPER, [*here, "128"], resume=True), IMAGES, old)


def test_a_run_that_began_before_images_were_reduced_is_not_resumed_with_reduced_ones():
    cfg = make_config(PAPER, ["SEED", "1"])
    saved = {"config": plain_config(cfg), "images": IMAGES}
    del saved["config"]["VIEWS.REDUCED_IMAGES"]
    check_same_experiment(cfg, IMAGES, saved)
    cfg.VIEWS.REDUCED_IMAGES = True
    with pytest.raises(UserError, match=r"VIEWS.REDUCED_IMAGES \(False -> True\).* --accept VIEWS.REDUCED_IMAGES$"):
        check_same_experiment(cfg, IMAGES, saved)


def test_finetuning_never_read_it(caplog):
    cfg = make_config("configs/toy/depth.yaml", ["SEED", "1"])
    saved = {"config": plain_config(cfg) | {"MOCO.BN_SPLITS": 1}, "images": IMAGES}
    del saved["config"]["MOCO.BN_GROUP"]
    with caplog.at_level(logging.INFO):
        check_same_experiment(cfg, IMAGES, saved)
    assert "without effect on this resumed run: MOCO.BN_GROUP (0 -> 128)" in caplog.text
