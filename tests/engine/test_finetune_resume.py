"""Finetuning resumes exactly, too: batches, how they are scaled and flipped, sampled regions, dropout."""

from pathlib import Path

import pytest
from runs import assert_same, load, run

from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.setup import make_config
from revisit.engine.solver import resolve_schedule

SMALL = {
    "detection": "INPUT.MIN_SIZE_TRAIN (64,80) INPUT.MAX_SIZE_TRAIN 100",
    "segmentation_voc": "INPUT.CROP.SIZE [65,65]",
    "depth": "INPUT.CROP.SIZE [65,65]",
}


def config(task: str, output: Path, workers: int, precise_bn: bool = False):
    options = (
        f"OUTPUT_DIR {output} SEED 5 SOLVER.IMS_PER_BATCH 4 SOLVER.MAX_ITER 5 SOLVER.CHECKPOINT_PERIOD 3 "
        f"MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 MODEL.DEVICE cpu {SMALL[task]} "
        f"DATALOADER.NUM_WORKERS {workers} DATASETS.TEST () TEST.PRECISE_BN.ENABLED {precise_bn} "
        "TEST.PRECISE_BN.NUM_ITER 2 TEST.EVAL_PERIOD 2"
    )
    file = f"configs/toy/{task}.yaml"
    cfg = make_config(file, options.split())
    resolve_schedule(cfg, 60)
    cfg.freeze()
    return cfg


@pytest.mark.parametrize("task", SMALL)
def test_a_resumed_finetuning_ends_bit_identical(toy_datasets, tmp_path, task):
    """Stopped after iteration 2, and with another number of workers."""
    run(config(task, tmp_path / "whole", 0), trainer_class=FinetuneTrainer)
    run(config(task, tmp_path / "parts", 0), trainer_class=FinetuneTrainer, stop_after=3)
    (tmp_path / "parts/model_final.pth").unlink()
    run(config(task, tmp_path / "parts", 2), trainer_class=FinetuneTrainer, resume=True)
    whole, parts = (load(tmp_path / name / "model_final.pth") for name in ("whole", "parts"))
    for part in ("model", "trainer"):
        assert_same(whole[part], parts[part])


def test_precise_bn_sees_the_same_batches_after_a_resume(toy_datasets, tmp_path):
    """It runs after iterations 1, 3 and 4; the run is resumed at 3."""
    whole = run(config("segmentation_voc", tmp_path / "whole", 0, True), trainer_class=FinetuneTrainer)
    cfg = config("segmentation_voc", tmp_path / "parts", 0, True)
    (tmp_path / "parts").mkdir()
    (tmp_path / "whole/model_0000002.pth").rename(tmp_path / "parts/model_0000002.pth")
    parts = run(cfg, trainer_class=FinetuneTrainer, resume=True)
    assert parts.start_iter == 3
    assert_same(whole.model.state_dict(), parts.model.state_dict())
