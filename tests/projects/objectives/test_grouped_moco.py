"""Steps and runs of the methods with groups: what the queue knows of its rows, what they refuse, how they resume."""

import pytest
import torch
from commands import TINY, documented, run
from runs import assert_numbers_are_explained, assert_resumes, dry_recipe, load, train
from tiny import OBJECTS, freeze_batch_norm, random_objects, random_views, step, tiny_config, tiny_model
from trees import refusal, write

from projects.Objectives.grouped_losses import RULES, Cycle, Groups, grouped_losses, mine
from projects.Objectives.image_groups import group_number
from revisit.checkpoint.flags import flags_of, write_flags
from revisit.checkpoint.metrics_file import read_metrics
from revisit.data.sources.catalog import get_records
from revisit.keys import is_read, network_of
from revisit.modeling.backbone.description import describe

BATCH = 8
METHOD = ("MODEL.META_ARCHITECTURE", "GroupedKNNMoCo")
OWN = (*METHOD, "NEIGHBORS.GROUPS", "self")


def views_of(seed: int, groups: torch.Tensor | None = None) -> dict:
    groups = torch.arange(BATCH) % 3 if groups is None else groups
    return random_views(BATCH, seed=seed) | {"group": groups}


def test_the_ring_of_groups_follows_the_queue_around():
    model = tiny_model(*OWN).train()
    assert model.group_of_row.tolist() == [-1] * 50
    for n in range(7):  # 56 keys, 6 more than the queue has rows
        step(model, views_of(n, torch.arange(BATCH) + BATCH * n))
        model.enqueue_pending_keys()
    assert model.group_of_row.tolist() == [*range(50, 56), *range(6, 50)]
    assert model.queue.num_enqueued == 56 and "group_of_row" in model.state_dict()


@pytest.mark.parametrize("mining", ["before_head", "after_head"])
@pytest.mark.parametrize("cycle", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_has_the_losses_of_its_encoded_views_and_of_the_queue_before_it(rule, cycle, mining):
    options = ("NEIGHBORS.GROUP_RULE", rule, "NEIGHBORS.CYCLE", cycle, "NEIGHBORS.MINING", mining)
    model = freeze_batch_norm(tiny_model(*OWN, *options).double().train())
    for n in range(2):
        step(model, views_of(n))
        model.enqueue_pending_keys()
    views = views_of(2)
    losses, storage = step(model, views)
    encoded, keys = model.encode_positives(views), model.start_keys(views["anchor"])()
    ring = "features" if mining == "before_head" else "keys"
    rows = encoded.positives_g if mining == "before_head" else encoded.positives
    groups = Groups(views["group"].repeat_interleave(5), model.group_of_row, RULES[rule])
    back = Cycle(keys[ring], torch.arange(BATCH).repeat_interleave(5)) if cycle else None
    mined = mine(rows.flatten(0, 1), getattr(model.queue, ring), 5, groups, back)
    expected = grouped_losses(
        encoded.positives, keys["keys"], model.queue.keys, groups, mined, temperature=model.temperature
    )
    assert losses["loss_inst"].item() == pytest.approx(expected["loss_inst"].item(), rel=1e-9)
    assert losses["loss_nn"].item() == pytest.approx(0.4 * expected["loss_nn"].item(), rel=1e-9)
    if cycle:
        assert storage.history("cycle_kept").latest() == pytest.approx(100 * mined.counts.double().mean().item())
    else:
        assert "cycle_kept" not in storage.histories()
    plain = mine(rows[:, 0], getattr(model.queue, ring), 5)
    same = model.group_of_row[plain.rows] == views["group"][:, None]
    assert storage.history("group_purity").latest() == pytest.approx(100 * same.double().mean().item())


@pytest.mark.parametrize("options", [(), ("NEIGHBORS.GROUPS", "self")])
@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_without_groups_or_with_groups_that_do_not_repeat_a_step_is_knn_mocos(options, weight):
    grouped = tiny_model(*METHOD, *options, "NEIGHBORS.WEIGHT", weight).train()
    plain = tiny_model("MODEL.META_ARCHITECTURE", "KNNMoCo", "NEIGHBORS.WEIGHT", weight).train()
    for n in range(3):
        views = views_of(n, torch.arange(BATCH) + BATCH * n)
        losses, expected = step(grouped, views)[0], step(plain, views)[0]
        assert losses.keys() == expected.keys()
        assert all(torch.equal(losses[name], expected[name]) for name in losses)
        grouped.enqueue_pending_keys()
        plain.enqueue_pending_keys()


def test_a_row_of_the_own_image_is_no_neighbour_and_no_negative():
    """What it is without groups, an epoch later."""
    plain, grouped = (freeze_batch_norm(tiny_model(*METHOD, *more).train()) for more in ((), OWN[2:]))
    views = views_of(0, torch.arange(BATCH))
    for model in (plain, grouped):
        for name in ("backbone", "projection_head"):
            own, momentum = (getattr(model, f"{prefix}{name}") for prefix in ("", "momentum_"))
            momentum.load_state_dict(own.state_dict())
        step(model, views | {"positive": views["anchor"]})
        model.enqueue_pending_keys()
    losses = [step(model, views | {"positive": views["anchor"]})[0]["loss_inst"].item() for model in (plain, grouped)]
    assert losses[1] < losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("NEIGHBORS.GROUPS", "self", "NEIGHBORS.ENQUEUE_FIRST", True), "ENQUEUE_FIRST .*: expected False"),
        (("NEIGHBORS.CYCLE", True, "NEIGHBORS.ENQUEUE_FIRST", True), "ENQUEUE_FIRST .*: expected False"),
        (("NEIGHBORS.CYCLE", True, "SOLVER.ACCUMULATION_STEPS", 2), "expected SOLVER.ACCUMULATION_STEPS 1, not 2"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    cfg = tiny_config(*METHOD, *options)
    line = refusal(network_of(cfg).check, cfg, BATCH)
    assert message.partition(" .*")[0] in line and message.rpartition(".*")[2] in line


@pytest.mark.parametrize(
    ("options", "is_warned"),
    [
        (("NEIGHBORS.CYCLE", True), True),
        (("NEIGHBORS.GROUPS", "self", "NEIGHBORS.GROUP_RULE", "across"), True),
        (("NEIGHBORS.GROUPS", "self", "NEIGHBORS.GROUP_RULE", "exclude"), False),
        (("NEIGHBORS.CYCLE", True, "NEIGHBORS.WEIGHT", 0.4), False),
    ],
)
def test_what_changes_nothing_without_neighbours_is_warned_of(options, is_warned, caplog):
    cfg = tiny_config(*METHOD, "NEIGHBORS.WEIGHT", 0.0, *options)
    network_of(cfg).warn(cfg, 800, BATCH)
    assert ("NEIGHBORS.CYCLE and the rule across change nothing" in caplog.text) == is_warned


@pytest.mark.parametrize("cycle", [False, True])
def test_the_purity_of_neighbours_that_count_leaves_the_others_out(cycle):
    model = freeze_batch_norm(tiny_model(*OWN, "NEIGHBORS.CYCLE", cycle).double().train())
    labels = torch.arange(BATCH) % 2
    for n in range(3):
        step(model, views_of(n) | {"label": labels})
        model.enqueue_pending_keys()
    views = views_of(3)
    _, storage = step(model, views | {"label": labels})
    rows, anchors = model.encode_positives(views).positives_g[:, 0], model.start_keys(views["anchor"])()["features"]
    queue, right, counted = model.queue, 0, 0
    for image in range(BATCH):
        others = [n for n in range(50) if model.group_of_row[n] != views["group"][image]]
        nearest = sorted(others, key=lambda n: -(queue.features[n] @ rows[image]).item())[:5]
        back = [n for n in nearest if not cycle or (anchors @ queue.features[n]).argmax() == image]
        counted += len(back)
        right += sum(queue.labels[n] == labels[image] for n in back)
    assert counted and storage.history("counted_purity").latest() == pytest.approx(100 * int(right) / counted)


def test_objects_have_the_groups_of_their_images():
    options = (*OBJECTS, "MODEL.META_ARCHITECTURE", "GroupedObjectMoCo", "NEIGHBORS.GROUPS", "self")
    model = tiny_model(*options, "NEIGHBORS.CYCLE", True).train()
    views = random_views(4, large=64, small=32, num_small=2) | random_objects(4) | {"group": torch.arange(4) + 7}
    for _ in range(2):
        losses, storage = step(model, views)
        sum(losses.values()).backward()
        model.enqueue_pending_keys()
    assert model.group_of_row[:20].tolist() == [7 + n // 5 for n in range(20)]
    assert {"group_purity", "cycle_kept", "objects_seen"} <= storage.histories().keys()
    views["positive_objects"][:] = torch.nan
    assert "group_purity" not in step(model, views)[1].histories()  # of objects that no positive shows
    cfg = tiny_config(*options, "OBJECTS.IMAGE_WEIGHT", 1.0)
    assert "OBJECTS.IMAGE_WEIGHT 1.0: groups are of one queue: expected 0.0" in refusal(network_of(cfg).check, cfg, 4)


def test_objects_without_groups_have_the_losses_of_objects():
    views = random_views(4, large=64, small=32, num_small=2) | random_objects(4)
    grouped = tiny_model(*OBJECTS, "MODEL.META_ARCHITECTURE", "GroupedObjectMoCo").train()
    losses, expected = step(grouped, views)[0], step(tiny_model(*OBJECTS).train(), views)[0]
    assert losses == expected and expected["loss_nn"] > 0


def test_the_purity_of_objects_is_by_the_class_of_their_image():
    options = (*OBJECTS, "MODEL.META_ARCHITECTURE", "GroupedObjectMoCo", "NEIGHBORS.GROUPS", "self")
    model = freeze_batch_norm(tiny_model(*options).double().train())
    labels = {"label": torch.arange(4) % 2, "group": torch.arange(4) + 7}
    for n in range(3):
        views = random_views(4, large=64, small=32, num_small=2, seed=n) | random_objects(4, seed=n) | labels
        _, storage = step(model, views)
        queue, groups = {name: ring.clone() for name, ring in model.queue.named_buffers()}, model.group_of_row.clone()
        model.enqueue_pending_keys()
    encoded, is_right, num_left_out = model.encode_positives(views), [], 0
    for n, row in enumerate(encoded.positives_g[:, 0]):
        image = n // 5
        others = [m for m in range(50) if groups[m] != labels["group"][image]]
        nearest = sorted(others, key=lambda m: -(queue["features"][m] @ row).item())[:5]
        if encoded.positives[n].any():
            is_right += [(queue["labels"][m] == labels["label"][image]).item() for m in nearest]
        else:
            num_left_out += 1
    expected = 100 * sum(is_right) / len(is_right)
    assert num_left_out and 0 < expected < 100
    assert storage.history("counted_purity").latest() == pytest.approx(expected)


def write_groups(path, dataset: str = "toy_scenes_train") -> str:
    names = [record["file_name"] for record in get_records(dataset)]
    write(path, ["file_name,group", *(f"{name},plate {n % 4}" for n, name in enumerate(names))])
    return str(path)


@pytest.mark.parametrize("rule", ["attract", "across"])
def test_a_run_resumes_bit_identical_and_explains_its_numbers(rule, toy_datasets, tmp_path):
    path = write_groups(tmp_path / "groups.csv")
    options = (*METHOD, "NEIGHBORS.GROUPS", path, "NEIGHBORS.GROUP_RULE", rule, "NEIGHBORS.CYCLE", True)
    options += ("SOLVER.MAX_ITER", 6, "SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.CHECKPOINTS_KEPT", 0)
    train(tmp_path / "whole", *options)
    assert_numbers_are_explained(tmp_path / "whole")
    metrics = read_metrics(tmp_path / "whole/metrics.json")
    assert {"cycle_kept", "group_purity"} <= metrics.keys()
    groups = load(tmp_path / "whole/model_final.pth")["model"]["group_of_row"]
    assert set(groups.tolist()) == {-1, *(group_number(f"plate {n}") for n in range(4))}
    assert_resumes(tmp_path / "whole", tmp_path / "parts", 2, *options)


def test_a_dry_run_counts_a_step(tmp_path, toy_datasets):
    recipe = dry_recipe(tmp_path, *OWN, "NEIGHBORS.CYCLE", True)
    assert recipe["architecture"] == "GroupedKNNMoCo" and recipe["keys"]["NEIGHBORS.GROUPS"] == "self"


@pytest.mark.docs
def test_the_readmes_command_trains(toy_root, tmp_path):
    command, *_ = documented("projects/Objectives/groups.md")
    run(f"{command} {TINY} NEIGHBORS.NUM_NEIGHBORS 5 SOLVER.MAX_ITER 3 OUTPUT_DIR {tmp_path}", toy_root)
    metrics = read_metrics(tmp_path / "metrics.json")
    assert {"cycle_kept", "group_purity", "loss_nn"} <= metrics.keys()


def test_knn_moco_itself_reads_no_groups():
    assert not is_read(tiny_config(), "NEIGHBORS.GROUPS") and is_read(tiny_config(*METHOD), "NEIGHBORS.GROUPS")


def test_a_continued_run_has_groups_too(tmp_path):
    backbone = tiny_model().backbone
    torch.save({"model": backbone.state_dict()}, tmp_path / "start.pth")
    write_flags(tmp_path / "start.pth", flags_of(tiny_config(), describe(tiny_model())), "a test")
    options = ("MODEL.META_ARCHITECTURE", "ContinuedGroupedKNNMoCo", "MODEL.WEIGHTS", str(tmp_path / "start.pth"))
    model = tiny_model(*options, *OWN[2:], "KEEP.WEIGHT", 1.0).train()
    losses, storage = step(model, views_of(0))
    assert {"loss_inst", "loss_nn", "loss_keep"} == losses.keys() and "group_purity" in storage.histories()
