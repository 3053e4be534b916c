"""A loss that is not finite ends the run in one line, with the inputs as pictures and every checkpoint as it was."""

from pathlib import Path

import cv2
import pytest
import torch
from commands import launch_forks
from runs import load, train
from tiny import random_views, tiny_model
from true_steps import sgd

from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.train_step import NonFiniteLossError, TrainStep, report_non_finite
from revisit.errors import UserError
from revisit.modeling.distributed import unwrap

from detectron2.engine import HookBase
from detectron2.utils import comm
from detectron2.utils.events import EventStorage


class Diverge(HookBase):
    """From one iteration on, the weights of one process's model are such that its loss is no number."""

    def __init__(self, iteration: int, rank: int = 0):
        self._iteration, self._rank = iteration, rank

    def before_step(self) -> None:
        if self.trainer.iter == self._iteration and comm.get_rank() == self._rank:
            torch.nn.init.constant_(next(unwrap(self.trainer.model).projection_head.parameters()), float("nan"))


@pytest.mark.parametrize(("iteration", "last", "period"), [(5, 8, 1), (4, 8, 100), (4, 6, 100)])
def test_the_run_stops_with_the_first_bad_iteration_and_leaves_views_names_and_checkpoints(
    toy_datasets, tmp_path, monkeypatch, iteration, last, period
):
    """Also where losses are read every few steps: before a checkpoint, or at the end."""
    monkeypatch.setattr(PretrainTrainer, "test", lambda *_: pytest.fail("evaluated"))
    options = ("SOLVER.MAX_ITER", last, "SOLVER.CHECKPOINT_PERIOD", 2, "SOLVER.METRICS_PERIOD", period)
    with pytest.raises(UserError, match=rf"loss of iteration {iteration} is not finite \(loss_inst nan") as error:
        train(tmp_path, *options, hook=Diverge(iteration))
    assert "\n" not in str(error.value) and str(tmp_path / "non_finite") in str(error.value)
    stem = tmp_path / f"non_finite/iteration_{iteration:07d}_process_0"
    sheet = cv2.imread(f"{stem}_1.png")
    assert sheet.shape == (8 * 170 + 22, 6 * 170 + 22, 3) and sheet.std() > 20  # eight images, six views each
    listed = stem.with_suffix(".txt").read_text().split()
    assert len(set(listed)) == 8 and all(Path(name).is_file() for name in listed)
    assert sorted(path.name for path in tmp_path.glob("model_*")) == ["model_0000001.pth", "model_0000003.pth"]
    assert all(value.isfinite().all() for value in load(tmp_path / "model_0000003.pth")["model"].values())


def train_two(output: Path) -> None:
    train(output, "SOLVER.MAX_ITER", 8, "SOLVER.CHECKPOINT_PERIOD", 2, hook=Diverge(3, rank=1))


def test_only_the_process_with_the_loss_shows_its_views_and_all_stop(toy_datasets, tmp_path):
    with pytest.raises(UserError, match="loss of iteration 3 is not finite"):
        launch_forks(train_two, 2, tmp_path)
    pictures = sorted(path.name for path in (tmp_path / "non_finite").iterdir())
    assert pictures == ["iteration_0000003_process_1.txt", "iteration_0000003_process_1_1.png"]
    assert [path.name for path in tmp_path.glob("model_*")] == ["model_0000001.pth"]


def test_nothing_changes_in_a_step_that_fails(monkeypatch):
    model = tiny_model().train()
    before = {name: value.clone() for name, value in model.named_parameters()}
    loss = model.projection_head[0].weight.sum() * float("inf")
    monkeypatch.setattr(type(model), "losses", lambda *_: {"loss_inst": loss})
    step = TrainStep(model, [random_views(8)], sgd(model))
    with EventStorage(4), pytest.raises(NonFiniteLossError, match="iteration 4"):
        step.run_step()
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_inputs_of_finetuning_are_shown_too(tmp_path):
    images = [torch.full((3, 20, 40), 90, dtype=torch.uint8), torch.full((3, 50, 30), 200, dtype=torch.uint8)]
    batch = [{"image": image, "file_name": f"{n}.jpg"} for n, image in enumerate(images)]
    error = NonFiniteLossError(12, {"loss_sem_seg": [float("inf")]})
    said = report_non_finite(error, str(tmp_path), batch, ["0.jpg", "1.jpg"])
    assert "loss_sem_seg inf" in str(said)
    assert cv2.imread(str(tmp_path / "non_finite/iteration_0000012_process_0_1.png")).shape == (2 * 170 + 22, 192, 3)
