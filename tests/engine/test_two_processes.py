"""Two gloo processes against one on the same global batch."""

from pathlib import Path

import pytest
import torch
from commands import launch_forks
from tiny import freeze_batch_norm, random_views, tiny_config, tiny_model
from true_steps import take_steps

from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.errors import UserError
from revisit.modeling.distributed import gather_rows
from revisit.modeling.shuffle_bn import scatter_shuffled

from detectron2.utils import comm

METHODS = {
    "KNNMoCo": ((), {}),
    "DenseCL": (("VIEWS.NUM_SMALL", 0, "VIEWS.LARGE_SIZE", 96), {"large": 96, "num_small": 0}),  # 3 x 3 cells
}


def train(method: str, steps: int, frozen_bn: bool, output: Path) -> None:
    """Steps of a model whose momentum encoder is another than its encoder."""
    options, views = METHODS[method]
    model = tiny_model("MODEL.META_ARCHITECTURE", method, "MOCO.QUEUE_SIZE", 50, *options).train()
    assert model.shuffle_bn == (comm.get_world_size() > 1)
    for parameter in model.momentum_backbone.parameters():
        parameter.mul_(1.1)
    if frozen_bn:
        freeze_batch_norm(model)
    output.mkdir(exist_ok=True)
    take_steps(model, lambda iteration: random_views(8, seed=iteration, **views), steps, output)


def train_all(output: Path) -> None:
    for method in METHODS:
        train(method, 3, True, output / method)
    train("KNNMoCo", 20, False, output / "long")


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("two")
    launch_forks(train_all, 2, output)
    return output


@pytest.mark.parametrize("method", METHODS)
def test_losses_gradients_and_queues_of_two_processes_equal_one_process(two, tmp_path, method):
    train(method, 3, True, tmp_path)
    one, both = torch.load(tmp_path / "0.pth"), torch.load(two / method / "0.pth")
    for a, b in zip(one["history"], both["history"], strict=True):
        assert torch.allclose(a["losses"], b["losses"], rtol=1e-5, atol=0)
        assert (a["gradient"] - b["gradient"]).norm() < 1e-4 * a["gradient"].norm()
    assert one["queue"]["num_enqueued"] == both["queue"]["num_enqueued"] == 24
    for name, ring in one["queue"].items():
        assert torch.allclose(ring.float(), both["queue"][name].float(), atol=1e-5), name


@pytest.mark.parametrize(("run", "enqueued"), [("long", 160), ("DenseCL", 24)])  # 160 rows wrap around 50 three times
def test_queues_are_bit_identical_on_both_processes(two, run, enqueued):
    first, second = (torch.load(two / run / f"{rank}.pth")["queue"] for rank in range(2))
    assert first["num_enqueued"] == enqueued
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
    launch_forks(scatter_and_save, 2, tmp_path)
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
        launch_forks(evaluate_random_init, processes, output)
        results.append((output / "evaluation.json").read_text())
    assert results[0] == results[1]


def fail_on_one_rank() -> None:
    if comm.get_rank() == 1:
        raise UserError("rank 1 cannot read its images")
    comm.synchronize()  # would wait forever


def test_a_users_mistake_seen_by_one_rank_ends_all_with_its_message():
    with pytest.raises(UserError, match="rank 1 cannot read its images"):
        launch_forks(fail_on_one_rank, 2)
