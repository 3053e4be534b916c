"""Recipes by name, and a table of them that cannot go stale."""

from pathlib import Path

import pytest
from trees import refused

from revisit import model_zoo
from revisit.model_zoo.__main__ import table


def test_the_table_is_that_of_the_headers():
    """After a change of a header: python -m revisit.model_zoo > MODEL_ZOO.md"""
    assert Path("MODEL_ZOO.md").read_text() == table()


def test_the_table_has_every_recipe_with_its_scores_or_not_run():
    rows = [line for line in table().splitlines() if line.startswith("| [")]
    assert len(rows) == len(model_zoo.names()) > 40
    assert all(len(row.split(" | ")) == 6 and not row.endswith("|  |") for row in rows)
    paper = next(row for row in rows if "[pretrain/moco.yaml]" in row)
    assert "92,400 iterations" in paper and "VOC segmentation 66.2 mIoU" in paper
    for row in rows:  # the paper's numbers stand nowhere else than in its column
        paper, ours = row.removesuffix(" |").split(" | ")[-2:]
        assert "at this scale" not in row and (ours == "not run" or "/toy/" in row or not paper)


@pytest.mark.parametrize("name", ["own_images/continue.yaml", "toy/mask_rcnn_fpn.yaml", "pretrain/knn_moco.yaml"])
def test_a_config_by_name_is_that_of_the_file(name):
    cfg = model_zoo.get_config(name)
    assert Path(model_zoo.get_config_file(name)).samefile(f"configs/{name}")
    assert cfg.OUTPUT_DIR.startswith("output/") and cfg.MODEL.RESNETS.NORM in ("BN", "SyncBN")


def test_continuing_differs_from_pretraining_by_its_start():
    scratch, again = (model_zoo.get_config(f"own_images/{name}.yaml") for name in ("pretrain", "continue"))
    assert again.KEEP.WEIGHT > 0 and again.SOLVER.BASE_LR == pytest.approx(scratch.SOLVER.BASE_LR / 10)


@pytest.mark.parametrize("name", ["own_images/nothing.yaml", "Base-Pretrain.yaml"])
def test_a_name_that_there_is_not_is_refused(name):
    refused(f"{name}.*own_images/continue.yaml", model_zoo.get_config, name)
