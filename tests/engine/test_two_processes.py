"""Two gloo processes against one on the same global batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import freeze_batch_norm, random_views, tiny_config, tiny_model
from true_steps import take_steps

from revisit.engine.launch import Processes, launch
from revisit.engine.trainer import PretrainTrainer
from revisit.errors import UserError
from revisit.modeling.shuffle_bn import gather_rows, scatter_shuffled

from detectron2.utils import comm

OPTIONS = ("MOCO.QUEUE_SIZE", 50, "SOLVER.BASE_LR", 0.05)


def train(steps: int, batch: int, frozen_bn: bool, output: Path) -> None:
    model = tiny_model(*OPTIONS).train()
    if frozen_bn:
        freeze_batch_norm(model)
    take_steps(model, lambda iteration: random_views(batch, seed=iteration), steps, output)


@pytest.fixture(scope="module")
def frozen_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    launch(train, Processes(1), device="cpu", args=(3, 8, True, one))
    launch(train, Processes(2), device="cpu", args=(3, 8, True, two))
    return torch.load(one / "0.pth"), torch.load(two / "0.pth")


def test_losses_of_two_processes_equal_one_process(frozen_runs):
    for one, two in zip(*(run["history"] for run in frozen_runs), strict=True):
        assert torch.allclose(one["losses"], two["losses"], rtol=1e-5, atol=0)


def test_gradients_of_two_processes_equal_one_process(frozen_runs):
    for one, two in zip(*(run["history"] for run in frozen_runs), strict=True):
        assert (one["gradient"] - two["gradient"]).norm() < 1e-4 * one["gradient"].norm()


def test_queues_of_two_processes_equal_one_process(frozen_runs):
    one, two = frozen_runs
    assert one["queue"]["num_enqueued"] == two["queue"]["num_enqueued"] == 24
    for ring in ("keys", "features"):
        assert torch.allclose(one["queue"][ring], two["queue"][ring], atol=1e-5)


def test_queues_are_bit_identical_on_both_ranks_after_20_steps(tmp_path):
    launch(train, Processes(2), device="cpu", args=(20, 8, False, tmp_path))
    first, second = (torch.load(tmp_path / f"{rank}.pth")["queue"] for rank in range(2))
    assert first["num_enqueued"] == 160  # wrapped three times around 50 rows
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def scatter_and_save(output: Path) -> None:
    rank = comm.get_rank()
    permutation = torch.tensor([5, 0, 7, 2, 1, 6, 3, 4])
    rows = torch.arange(8, dtype=torch.uint8)[rank * 4 : rank * 4 + 4, None]
    shuffled = scatter_shuffled(rows, permutation)
    back = gather_rows(shuffled)[permutation.argsort()]
    torch.save({"shuffled": shuffled, "back": back}, output / f"{rank}.pth")


def test_shuffle_bn_sends_each_row_to_its_place_and_the_gather_undoes_it(tmp_path):
    launch(scatter_and_save, Processes(2), device="cpu", args=(tmp_path,))
    parts = [torch.load(tmp_path / f"{rank}.pth") for rank in range(2)]
    assert parts[0]["shuffled"].flatten().tolist() == [5, 0, 7, 2]
    assert parts[1]["shuffled"].flatten().tolist() == [1, 6, 3, 4]
    for part in parts:
        assert part["back"].flatten().tolist() == list(range(8))


def evaluate_random_init(output: Path) -> None:
    cfg = tiny_config(
        *("DATASETS.TEST", ("toy_objects_train",), "KNN_EVAL.BANK", "toy_objects_train"),
        *("KNN_EVAL.IMAGE_SIZE", 32, "OUTPUT_DIR", str(output)),
    )
    torch.manual_seed(comm.get_rank())  # as Detectron2 seeds its processes: differently
    PretrainTrainer.evaluate(cfg, resume=False)


def test_evaluation_of_two_processes_equals_one(toy_datasets, tmp_path):
    """A random init is another on each rank until one of them is taken for all."""
    results = []
    for processes in (1, 2):
        output = tmp_path / str(processes)
        output.mkdir()
        launch(evaluate_random_init, Processes(processes), device="cpu", args=(output,))
        results.append((output / "evaluation.json").read_text())
    assert results[0] == results[1]


def fail_on_one_rank() -> None:
    if comm.get_rank() == 1:
        raise UserError("rank 1 cannot read its images")
    comm.synchronize()  # would wait forever


def test_a_users_mistake_seen_by_one_rank_ends_all_with_its_message():
    with pytest.raises(UserError, match="rank 1 cannot read its images"):
        launch(fail_on_one_rank, Processes(2), device="cpu")
