from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from runs import assert_same, load, run_config, train

from revisit.engine.checkpointing import Checkpoints
from revisit.engine.hooks import Evaluation, MomentumUpdate, QueueUpdate
from revisit.engine.trainer import PretrainTrainer
from revisit.errors import UserError
from revisit.modeling.meta_arch.moco import MoCo

from detectron2.engine import hooks as d2_hooks


def metrics(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "metrics.json").read_text().splitlines()]


def test_momentum_and_queue_hooks_sit_directly_behind_the_lr_scheduler(toy_datasets, tmp_path):
    kinds = [type(hook) for hook in PretrainTrainer(run_config(tmp_path))._hooks]
    place = kinds.index(d2_hooks.LRScheduler)
    assert kinds[place + 1 : place + 3] == [MomentumUpdate, QueueUpdate]
    assert place + 2 < kinds.index(Checkpoints) < kinds.index(Evaluation)


def test_checkpoint_of_step_i_holds_the_keys_and_momentum_encoder_of_step_i(toy_datasets, tmp_path, monkeypatch):
    keys = []
    enqueue = MoCo.enqueue_pending_keys

    def spy(model):
        keys.append(model.pending_keys[0]["keys"].clone())
        enqueue(model)

    monkeypatch.setattr(MoCo, "enqueue_pending_keys", spy)
    train(tmp_path, "SOLVER.MAX_ITER", 3, "SOLVER.CHECKPOINT_PERIOD", 1)
    saved = [load(tmp_path / f"model_{i:07d}.pth")["model"] for i in range(3)]
    for i, state in enumerate(saved):
        assert state["queue.num_enqueued"] == 8 * (i + 1)
        assert torch.equal(state["queue.keys"][8 * i : 8 * (i + 1)], keys[i])
    for before, after in zip(saved, saved[1:], strict=False):
        name = "res5.1.conv2.weight"
        expected = 0.995 * before[f"momentum_backbone.{name}"] + 0.005 * after[f"backbone.{name}"]
        assert torch.allclose(after[f"momentum_backbone.{name}"], expected, atol=1e-7)


def test_checkpoint_loads_without_unpickling_and_knows_its_flags_and_seed(toy_datasets, tmp_path):
    train(tmp_path, "SOLVER.MAX_ITER", 2)
    checkpoint = load(tmp_path / "model_final.pth")
    assert checkpoint["flags"]["MODEL.RESNETS.DEPTH"] == 18
    assert checkpoint["trainer"]["seed"] == 7
    assert "optimizer" in checkpoint["trainer"]["_trainer"]


SWITCHES = (
    *("SOLVER.AMP.ENABLED", True, "SOLVER.ACCUMULATION_STEPS", 2, "MODEL.CHANNELS_LAST", True),
    *("VIEWS.SMALL_SIZE", 24),  # larger than bfloat16 on the CPU refuses
)


@pytest.mark.parametrize(("workers", "switches"), [(0, ()), (2, ()), (0, SWITCHES)])
def test_a_resumed_run_ends_bit_identical(toy_datasets, tmp_path, workers, switches):
    """Interrupted inside an epoch (7 iterations each), with another number of workers than the whole run."""
    options = ("SOLVER.MAX_ITER", 10, "SOLVER.CHECKPOINT_PERIOD", 5, "KNN_MOCO.WARMUP_EPOCHS", 1, *switches)
    train(tmp_path / "whole", *options)
    train(tmp_path / "parts", *options, "DATALOADER.NUM_WORKERS", workers, stop_after=5)
    train(tmp_path / "parts", *options, "DATALOADER.NUM_WORKERS", workers, resume=True)
    whole, parts = (load(tmp_path / name / "model_final.pth") for name in ("whole", "parts"))
    for part in ("model", "trainer"):
        assert_same(whole[part], parts[part])


def test_l_nn_joins_after_the_warm_up_epochs(toy_datasets, tmp_path):
    from detectron2.engine import HookBase

    class Record(HookBase):
        weights: list = []

        def after_step(self):
            storage = self.trainer.storage
            self.weights.append("loss_nn" in storage.histories())

    cfg = run_config(tmp_path, "SOLVER.MAX_ITER", 10, "KNN_MOCO.WARMUP_EPOCHS", 1)
    trainer = PretrainTrainer(cfg)
    trainer.register_hooks([Record()])
    trainer.train()
    assert Record.weights == [False] * 7 + [True] * 3


def test_metrics_have_the_documented_keys(toy_datasets, tmp_path):
    options = ("DATASETS.TEST", ("toy_objects_heldout",), "KNN_EVAL.BANK", "toy_objects_train")
    train(tmp_path, *options, "KNN_EVAL.IMAGE_SIZE", 32, "SOLVER.MAX_ITER", 20)
    last = {key: value for line in metrics(tmp_path) for key, value in line.items()}
    for key in [
        *("total_loss", "loss_inst", "loss_nn", "loss_nn_raw", "contrast_top1", "knn_top1", "lr", "data_time", "time"),
        *("images_per_second", "data_wait_share", "read_failures", "crop_fallbacks"),
    ]:
        assert key in last, key
    assert list(tmp_path.glob("events.out.tfevents*"))


def test_the_logged_l_nn_is_weighted_and_the_raw_one_is_not(toy_datasets, tmp_path):
    train(tmp_path, "SOLVER.MAX_ITER", 1)
    (line,) = metrics(tmp_path)
    assert line["loss_nn"] == pytest.approx(0.4 * line["loss_nn_raw"], rel=1e-5)
    assert line["total_loss"] == pytest.approx(line["loss_inst"] + line["loss_nn"], rel=1e-5)


def test_a_lone_loss_is_logged_by_its_name(toy_datasets, tmp_path):
    train(tmp_path, "SOLVER.MAX_ITER", 1, "MODEL.META_ARCHITECTURE", "MoCo")
    (line,) = metrics(tmp_path)
    assert line["loss_inst"] == line["total_loss"]


def test_learning_rate_follows_a_cosine_to_zero_without_warm_up(toy_datasets, tmp_path):
    trainer = PretrainTrainer(run_config(tmp_path, "SOLVER.MAX_ITER", 100, "SOLVER.BASE_LR", 0.3))
    scheduler = trainer.scheduler
    for iteration in range(100):
        expected = 0.15 * (1 + torch.cos(torch.tensor(torch.pi * iteration / 100))).item()
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(expected, abs=1e-6)
        trainer.optimizer.step()
        scheduler.step()


def test_weight_decay_reaches_bn_and_biases_too(toy_datasets, tmp_path):
    trainer = PretrainTrainer(run_config(tmp_path))
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {1e-4}
    optimised = {p for group in trainer.optimizer.param_groups for p in group["params"]}
    assert optimised == {p for p in trainer.model.parameters() if p.requires_grad}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("MOCO.QUEUE_SIZE", 40), r"queue.features: \(50, 64\) there, \(40, 64\) here"),
        (("MODEL.RESNETS.RES2_OUT_CHANNELS", 16), "RES2_OUT_CHANNELS is 16 here and 8 there"),
        (("MODEL.META_ARCHITECTURE", "MoCo"), "queue.features"),
        (("SEED", 8), "SEED is 7"),
    ],
)
def test_resuming_another_recipe_is_refused_by_name(toy_datasets, tmp_path, options, message):
    train(tmp_path, "SOLVER.MAX_ITER", 1)
    trainer = PretrainTrainer(run_config(tmp_path, "SOLVER.MAX_ITER", 2, *options))
    with pytest.raises(UserError, match=message):
        trainer.resume_or_load(resume=True)


def test_resuming_a_finished_run_trains_nothing(toy_datasets, tmp_path):
    train(tmp_path, "SOLVER.MAX_ITER", 2)
    before = (tmp_path / "model_final.pth").read_bytes()
    trainer = train(tmp_path, "SOLVER.MAX_ITER", 2, resume=True)
    assert trainer.start_iter == 2
    assert (tmp_path / "model_final.pth").read_bytes() == before
