"""Two gloo processes against one on the same global batch, and what processes exchange for it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from commands import launch_forks
from tiny import random_views, tiny_config, tiny_model
from true_steps import take_steps

from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.sources.catalog import get_records
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.evaluation.features import CenterCropDataset, Features, features_of
from revisit.modeling.distributed import gather_rows
from revisit.modeling.shuffle_bn import scatter_shuffled

from detectron2.utils import comm
from detectron2.utils.events import EventStorage

BATCH = 8
DENSE = ("MODEL.META_ARCHITECTURE", "DenseCL", "VIEWS.NUM_SMALL", 0, "VIEWS.LARGE_SIZE", 96)
RUNS = {  # options of the model, form of the views, parts of the two processes' batches
    "KNNMoCo": ((), {}, 1),
    "KNNMoCo in parts": ((), {}, 2),
    "DenseCL": (DENSE, {"large": 96, "num_small": 0}, 1),  # 3 x 3 cells
}


def train(name: str, steps: int = 3, **how: object) -> dict:
    """Steps of a model whose momentum encoder is another than its encoder."""
    options, form, parts = RUNS[name]
    model = tiny_model(*options).double()  # a cell's nearest cell must not hang on rounding
    assert model.shuffle_bn == (comm.get_world_size() > 1)
    for parameter in model.momentum_backbone.parameters():
        parameter.mul_(1.1)
    labels = torch.arange(steps * BATCH).chunk(steps)
    batches = [{**random_views(BATCH, seed=n, **form), "label": labels[n]} for n in range(steps)]
    return take_steps(
        model, tiny_config(*options), batches, accumulation_steps=parts if comm.get_world_size() > 1 else 1, **how
    )


def scatter() -> dict[str, list[int]]:
    rows = torch.arange(8, dtype=torch.uint8).chunk(2)[comm.get_rank()][:, None]
    permutation = np.array([5, 0, 7, 2, 1, 6, 3, 4])
    shuffled = scatter_shuffled(rows, permutation)
    back = gather_rows(shuffled)[permutation.argsort()]
    return {"shuffled": shuffled.flatten().tolist(), "back": back.flatten().tolist()}


def do_all(output: Path) -> dict:
    runs = {name: train(name) for name in RUNS} | {"long": train("KNNMoCo", 20, frozen_bn=False)}
    found = {"scattered": scatter(), "sent": count_steps(), "features": features_of_one_image(), **runs}
    return found | {"evaluated": evaluate_random_init(output)}


@pytest.fixture(scope="module")
def two(toy_root, tmp_path_factory) -> list[dict]:
    """What each of two processes has at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DETECTRON2_DATASETS", str(toy_root))
        return launch_forks(do_all, 2, tmp_path_factory.mktemp("two"))


def queue_of(run: dict) -> dict[str, torch.Tensor]:
    return {name: value for name, value in run["model"].items() if "queue." in name}


@pytest.mark.parametrize("name", RUNS)
def test_losses_gradients_and_queues_of_two_processes_equal_one_process(two, name):
    one, both = train(name), two[0][name]
    assert both["losses"] == pytest.approx(one["losses"], rel=1e-5)
    for a, b in zip(one["gradients"], both["gradients"], strict=True):
        assert (a - b).norm() < 1e-4 * a.norm()
    assert one["model"]["queue.num_enqueued"] == 3 * BATCH
    for name, ring in queue_of(one).items():
        assert torch.allclose(ring.float(), both["model"][name].float(), atol=1e-5), name


# 160 keys wrap around the queue of 50.
@pytest.mark.parametrize(("run", "enqueued"), [("long", 160), *((name, 3 * BATCH) for name in RUNS)])
def test_queues_are_bit_identical_on_both_processes(two, run, enqueued):
    first, second = (queue_of(process[run]) for process in two)
    assert first["queue.num_enqueued"] == enqueued
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_shuffle_bn_sends_each_row_to_its_place_and_the_gather_undoes_it(two):
    assert [process["scattered"]["shuffled"] for process in two] == [[5, 0, 7, 2], [1, 6, 3, 4]]
    assert [process["scattered"]["back"] for process in two] == [list(range(8))] * 2


def evaluate_random_init(output: Path) -> dict:
    cfg = tiny_config(
        *("DATASETS.TEST", ("toy_objects_train",), "KNN_EVAL.BANK", "toy_objects_train"),
        *("KNN_EVAL.IMAGE_SIZE", 32, "OUTPUT_DIR", str(output), "MONITOR.IMAGES", "toy_scenes_train"),
    )
    torch.manual_seed(comm.get_rank())  # as Detectron2 seeds its processes: differently
    PretrainTrainer.evaluate(cfg, resume=False)
    return json.loads((output / "evaluation.json").read_text()) if comm.is_main_process() else {}


def test_evaluation_of_two_processes_equals_one(two, toy_datasets, tmp_path):
    """A random init is another on each rank until one of them is taken for all."""
    one = evaluate_random_init(tmp_path)
    assert {"knn_top1", "rankme", "alignment", "uniformity"} <= one.keys()
    assert one == pytest.approx(two[0]["evaluated"], rel=1e-5)


def features_of_one_image() -> Features | None:
    images = CenterCropDataset(get_records("toy_objects_train")[:1], 32, PHOTOGRAPHS)
    return features_of(tiny_config(), tiny_model().eval(), images)


def test_features_of_fewer_images_than_processes_are_those_of_one_process(two, toy_datasets):
    (one, label), (other, same_label) = features_of_one_image(), two[0]["features"]
    assert one.shape[0] == other.shape[0] == 1 and torch.allclose(one, other, atol=1e-6) and label.equal(same_label)


def count_steps() -> list[dict]:
    """Forward passes; the bytes that this process sends to others, by collective and call, and a key's."""
    rank, world_size = comm.get_rank(), comm.get_world_size()
    mine = {name: value.chunk(world_size)[rank] for name, value in random_views(BATCH).items()}
    all_to_all, all_gather = dist.all_to_all_single, dist.all_gather

    def counted_all_to_all(outputs, inputs, output_splits, input_splits):
        rows = sum(count for to, count in enumerate(input_splits) if to != rank)
        sent["all_to_all"].append(rows * inputs[0].nbytes if len(inputs) else 0)
        return all_to_all(outputs, inputs, output_splits, input_splits)

    def counted_all_gather(outputs, inputs, async_op=False):
        sent["all_gather"].append((world_size - 1) * inputs.nbytes)
        return all_gather(outputs, inputs, async_op=async_op)

    counts = []
    for architecture in ("KNNMoCo", "MoCo"):
        model = tiny_model("MODEL.META_ARCHITECTURE", architecture).train()
        sent = {"all_to_all": [], "all_gather": []}
        dist.all_to_all_single, dist.all_gather = counted_all_to_all, counted_all_gather
        with EventStorage(0):
            model(mine)
        dist.all_to_all_single, dist.all_gather = all_to_all, all_gather
        key_bytes = 4 * (model.embedding_dim + (model.feature_dim if architecture == "KNNMoCo" else 0))
        keys = (world_size - 1) * len(mine["anchor"]) * key_bytes
        counts.append({**sent, "keys": keys, "pixels": mine["anchor"].numel()})
    return counts


@pytest.mark.parametrize("world_size", [2, 4])
def test_each_crop_travels_once_in_bytes_and_keys_in_one_collective(world_size, two):
    sent = [process["sent"] for process in two] if world_size == 2 else launch_forks(count_steps, world_size)
    for counts in zip(*sent, strict=True):
        for count in counts:
            (images,), (keys,) = count["all_to_all"], count["all_gather"]
            assert images <= count["pixels"]  # in uint8, and what stays here does not travel
            assert keys == count["keys"]  # every process needs every key: no collective sends less
        assert sum(count["all_to_all"][0] for count in counts) > 0
