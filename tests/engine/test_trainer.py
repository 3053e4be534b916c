"""What checkpoints and metrics of a run hold; and a resumed run ends as one that was never stopped."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import launch_forks
from runs import assert_resumes, assert_same, load, run, run_config, train, train_for_module
from trees import refused

from projects.Reports.collapse import CollapseAlarm
from projects.Reports.throughput import Throughput
from revisit.checkpoint.metrics_file import read_metrics
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.hooks import ReadErrors
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.setup import make_config
from revisit.engine.train_step import TrainStep
from revisit.engine.trainer import RevisitTrainer
from revisit.engine.writers import Writers
from revisit.errors import UserError
from revisit.keys import Facts, resolve_auto_values, with_values
from revisit.modeling.distributed import unwrap

from detectron2.utils import comm
from detectron2.utils.events import CommonMetricPrinter, EventStorage, get_event_storage

OPTIONS = ("SOLVER.MAX_ITER", 10, "SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.CHECKPOINTS_KEPT", 0)
OPTIONS += ("NEIGHBORS.WARMUP_EPOCHS", 1, "DATASETS.TEST", ("toy_objects_heldout",))
OPTIONS += ("KNN_EVAL.BANK", "toy_objects_train", "KNN_EVAL.IMAGE_SIZE", 32)


@pytest.fixture(scope="module")
def whole(toy_root, tmp_path_factory) -> Path:
    """A run of 10 iterations, 7 an epoch, with all of its checkpoints."""
    return train_for_module(toy_root, tmp_path_factory.mktemp("whole"), *OPTIONS)


@pytest.mark.parametrize(
    ("words", "raised"), [("Predicted boxes contain Inf/NaN.", UserError), ("x", FloatingPointError)]
)
def test_a_detector_that_diverges_ends_in_one_line(words, raised, toy_datasets, tmp_path, monkeypatch):
    take_step = TrainStep.run_step

    def forward(step: TrainStep) -> None:
        if get_event_storage().iter:
            raise FloatingPointError(words)
        take_step(step)

    monkeypatch.setattr(TrainStep, "run_step", forward)
    with pytest.raises(raised, match=words):
        train(tmp_path)


def test_a_checkpoint_holds_one_moment(whole):
    saved = [load(whole / f"model_{i:07d}.pth")["model"] for i in range(4)]
    for i, state in enumerate(saved[:3]):
        assert state["queue.num_enqueued"] == 8 * (i + 1)
        stays = [torch.equal(*rows) for rows in zip(state["queue.keys"], saved[i + 1]["queue.keys"], strict=True)]
        assert stays == [not 8 * (i + 1) <= row < 8 * (i + 2) for row in range(50)]
    for before, after in zip(saved, saved[1:], strict=False):
        name = "res5.1.conv2.weight"
        expected = 0.995 * before[f"momentum_backbone.{name}"] + 0.005 * after[f"backbone.{name}"]
        assert torch.allclose(after[f"momentum_backbone.{name}"], expected, atol=1e-7)


def test_a_run_has_flags_seed_and_documented_metrics(whole):
    checkpoint = load(whole / "model_final.pth")  # without unpickling
    assert checkpoint["flags"]["MODEL.RESNETS.DEPTH"] == 18 and checkpoint["trainer"]["config"]["SEED"] == 7
    assert "optimizer" in checkpoint["trainer"]["_trainer"]
    assert read_metrics(whole / "metrics.json").keys() >= {
        *("total_loss", "loss_inst", "loss_nn", "loss_nn_raw", "contrast_top1", "knn_top1", "lr", "data_time", "time"),
        *("images_per_second", "data_wait_share", "read_failures", "crop_fallbacks"),
    }
    assert list(whole.glob("events.out.tfevents*"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_ends_bit_identical(toy_datasets, whole, tmp_path, workers):
    """Interrupted inside an epoch, and with another number of workers than the whole run."""
    resumed = assert_resumes(whole, tmp_path / "parts", 4, *OPTIONS, "DATALOADER.NUM_WORKERS", workers)
    assert [iteration for _, iteration in resumed.storage.history("loss_nn").values()] == [7, 8, 9]
    last = {name: history.latest() for name, history in resumed.storage.histories().items()}
    assert last["loss_nn"] == pytest.approx(0.4 * last["loss_nn_raw"], rel=1e-5)
    assert last["total_loss"] == pytest.approx(last["loss_inst"] + last["loss_nn"], rel=1e-5)


SWITCHES = ("SOLVER.AMP.ENABLED", True, "SOLVER.ACCUMULATION_STEPS", 2, "MODEL.CHANNELS_LAST", True)
SWITCHES += ("VIEWS.SMALL_SIZE", 24)  # larger than bfloat16 on the CPU refuses
DENSECL = ("MODEL.META_ARCHITECTURE", "DenseCL", "VIEWS.NUM_SMALL", 0)


@pytest.mark.parametrize("options", [SWITCHES, DENSECL])
def test_another_run_ends_bit_identical_too(toy_datasets, tmp_path, options):
    options = ("SOLVER.MAX_ITER", 4, "SOLVER.CHECKPOINT_PERIOD", 2, *options)
    train(tmp_path / "whole", *options)
    assert_resumes(tmp_path / "whole", tmp_path / "parts", 1, *options)


FINETUNING = {
    "detection": "INPUT.MIN_SIZE_TRAIN (64,80) INPUT.MAX_SIZE_TRAIN 100 TEST.PRECISE_BN.ENABLED False",
    "segmentation_voc": "INPUT.CROP.SIZE [65,65] TEST.PRECISE_BN.ENABLED True",  # after iterations 1, 3 and 4
    "depth": "INPUT.CROP.SIZE [65,65]",
    "retinanet_fpn": "INPUT.MIN_SIZE_TRAIN (64,80) MODEL.FPN.OUT_CHANNELS 8 MODEL.RETINANET.NUM_CONVS 1",
}
ON_PROCESSES = "MODEL.RESNETS.NORM naiveSyncBN MODEL.FPN.NORM naiveSyncBN"


def finetune(output: Path, task: str, workers: int, more: str = "", period: int = 2, **how: object) -> RevisitTrainer:
    options = (
        f"OUTPUT_DIR {output} SEED 5 SOLVER.IMS_PER_BATCH 4 SOLVER.MAX_ITER 5 SOLVER.CHECKPOINT_PERIOD 3 "
        f"MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 MODEL.DEVICE cpu {FINETUNING[task]} "
        f"DATALOADER.NUM_WORKERS {workers} DATASETS.TEST () TEST.PRECISE_BN.NUM_ITER 2 "
    )
    cfg = make_config(f"configs/toy/{task}.yaml", (options + more).split(), num_processes=comm.get_world_size())
    resolve_auto_values(cfg, Facts(images=60, processes=comm.get_world_size()))
    cfg = with_values(cfg, {"TEST.EVAL_PERIOD": period})  # of no data set it is resolved to 0
    return run(cfg, trainer_class=FinetuneTrainer, **how)


@pytest.mark.parametrize("task", FINETUNING)
def test_a_resumed_finetuning_ends_bit_identical(toy_datasets, tmp_path, task):
    """Batches, how they are scaled and flipped, sampled regions, dropout, batches of precise BN, a RetinaNet's running
    mean."""
    finetune(tmp_path / "whole", task, 0)
    assert_resumes(tmp_path / "whole", tmp_path / "parts", 2, task, 2, train=finetune)


def running_mean(output: Path, resume: bool) -> float:
    """A RetinaNet's, in this process, at the end of a run."""
    return unwrap(finetune(output, "retinanet_fpn", 0, ON_PROCESSES, resume=resume).model).loss_normalizer


def test_each_process_resumes_with_the_running_mean_that_it_had(toy_datasets, tmp_path):
    whole, path = launch_forks(running_mean, 2, tmp_path, False), tmp_path / "model_final.pth"
    final = load(path)["model"]
    path.unlink()
    assert launch_forks(running_mean, 2, tmp_path, True) == whole and whole[0] != whole[1]
    assert_same(final, load(path)["model"])


def test_evaluations_on_the_way_change_nothing_that_a_retinanet_learns(toy_datasets, tmp_path):
    """Its running mean is what it divides losses by, and precise batch norm runs it in training mode."""
    more = "TEST.PRECISE_BN.ENABLED True MODEL.RESNETS.NORM BN"
    runs = [finetune(tmp_path / str(n), "retinanet_fpn", 0, more, period=n) for n in (1, 0)]
    often, rarely = (unwrap(trainer.model).loss_normalizer for trainer in runs)
    assert often == rarely


def test_a_retinanet_resumes_from_a_checkpoint_without_its_running_mean(toy_datasets, tmp_path):
    finetune(tmp_path, "retinanet_fpn", 0)
    (tmp_path / "model_final.pth").unlink()
    checkpoint = load(tmp_path / "model_0000002.pth")
    (means,) = checkpoint["trainer"]["hooks"].pop("LossNormalizers")["of_processes"]
    assert means.keys() == {""} and means[""] not in (0, 100)  # 100: where it begins
    torch.save(checkpoint, tmp_path / "model_0000002.pth")
    assert finetune(tmp_path, "retinanet_fpn", 0, resume=True).start_iter == 3


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("MOCO.QUEUE_SIZE", 40, r"queue.features: \(50, 64\) there, \(40, 64\) here"),
        ("MODEL.RESNETS.RES2_OUT_CHANNELS", 16, "RES2_OUT_CHANNELS is 16 here and 8 there"),
        ("MODEL.META_ARCHITECTURE", "MoCo", "queue.features"),
    ],
)
def test_an_accepted_tensor_of_another_shape_is_refused(toy_datasets, whole, key, value, message):
    trainer = PretrainTrainer(run_config(whole, *OPTIONS, key, value))
    refused(message, trainer.resume_or_load, accepted=[key])


def test_a_trainer_opens_no_metrics_before_training(toy_datasets, tmp_path):
    PretrainTrainer(run_config(tmp_path))
    assert not (tmp_path / "metrics.json").exists()


def test_resuming_a_finished_run_trains_nothing(toy_datasets, whole):
    before = (whole / "model_final.pth").read_bytes()
    assert train(whole, *OPTIONS, resume=True).start_iter == 10
    assert (whole / "model_final.pth").read_bytes() == before


def test_a_finished_schedule_that_is_made_longer_jumps_which_is_said(toy_datasets, tmp_path, caplog):
    options = ("SOLVER.LR_SCHEDULER_NAME", "WarmupCosineLR", "SOLVER.WARMUP_ITERS", 0, "SOLVER.CHECKPOINT_PERIOD", 4)
    train(tmp_path, *options, "SOLVER.MAX_ITER", 8)
    train(tmp_path, *options, "SOLVER.MAX_ITER", 8, resume=True)
    assert "jumps" not in caplog.text
    train(tmp_path, *options, "SOLVER.MAX_ITER", 16, resume=True)
    assert caplog.text.count("the learning rate jumps from") == 1


@pytest.fixture
def storage():
    with EventStorage(0) as storage:
        yield storage


def test_too_many_unreadable_files_stop_a_run(storage, caplog):
    hook = ReadErrors(global_batch=500, iterations_per_epoch=20)
    hook.observe(["x.jpg: bad"] * 10)
    hook.observe([])  # 10 of 1010: less than one percent
    assert storage.history("read_failures").latest() == 10
    hook.observe(["x.jpg: bad"] * 20)  # not judged inside a window
    refused("30 of 2030 .* x.jpg: bad", hook.observe, [])
    assert caplog.text.count("x.jpg: bad") == 1
    small = ReadErrors(global_batch=20, iterations_per_epoch=3)  # judged once an epoch
    small.observe(["x.jpg: bad"])
    small.observe([])
    refused("1 of 61", small.observe, [])


def test_one_unreadable_file_of_more_than_a_hundred_stops_no_run_however_few_of_them_an_epoch_reads(storage):
    hook = ReadErrors(global_batch=40, iterations_per_epoch=2, images=119)
    for _ in range(30):
        hook.observe(["x.jpg: bad"])  # 1 of 80 reads, of 119 images
        hook.observe([])
    assert storage.history("read_failures").latest() == 30


@pytest.mark.parametrize(("waiting", "hints"), [(0.9, 1), (0.0, 0)])
def test_waiting_for_data_is_hinted_at_once(caplog, waiting, hints):
    hook = Throughput(global_batch=32, num_workers=1)
    with EventStorage(0) as storage, caplog.at_level(logging.WARNING):
        for iteration in range(60):
            storage.iter = iteration
            hook.trainer = SimpleNamespace(storage=storage, iter=iteration, start_iter=0)
            hook.before_step()
            storage.put_scalar("data_time", waiting)
            hook.after_step()
        assert storage.history("images_per_second").latest() > 0
    assert sum("DATALOADER.NUM_WORKERS" in record.message for record in caplog.records) == hints


@pytest.mark.parametrize(("spread", "warnings"), [(0.01, 1), (0.3, 0)])
def test_a_collapse_is_warned_of_once(storage, caplog, spread, warnings):
    hook = CollapseAlarm()
    for iteration in range(2 * CollapseAlarm.WINDOW):
        hook.trainer = SimpleNamespace(iter=iteration, start_iter=0, storage=storage)
        storage.put_scalar("embedding_std", spread)
        with caplog.at_level(logging.WARNING):
            hook.after_step()
    assert len([record for record in caplog.records if "collapse" in record.message]) == warnings


def test_progress_is_printed_early_and_every_20_steps(monkeypatch):
    lines = []
    monkeypatch.setattr(CommonMetricPrinter, "write", lambda printer: lines.append(hook.trainer.iter))
    hook = Writers([CommonMetricPrinter(100)])
    for iteration in range(18, 42):  # of a resumed run
        steps = {"iter": iteration, "start_iter": 18, "max_iter": 42}
        hook.trainer = SimpleNamespace(**steps, is_evaluated=True, is_last_step=iteration == 41)
        hook.after_step()
    assert lines == [18, 19, 22, 27, 39, 41]
