"""A resumed run continues its experiment: a key of its config that has changed is refused or applied.

``make fuzz`` resumes a run for every key that is not refused, and looks whether that was right.
"""

import logging
import os
import shutil
from argparse import Namespace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from runs import assert_same, load, run, run_config, train, train_for_module
from tiny import tiny_config
from trees import logged, refusal, refused

from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import changes, equal_images, fingerprint
from revisit.engine.config_checks import check_start
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.merging import merged_config, read_stated
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.same_experiment import (
    check_same_experiment,
    check_stated,
    may_change,
    plain_config,
    unused_overrides,
)
from revisit.engine.setup import make_config, plan
from revisit.engine.trainer import RevisitTrainer
from revisit.errors import UserError
from revisit.keys import RUN, Facts, declaration, resolve_auto_values, with_values

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

OWN_RULES = ("DATASETS.TRAIN",)  # compared by images
OPTIONS = ("SOLVER.MAX_ITER", 6, "SOLVER.CHECKPOINT_PERIOD", 3, "SOLVER.WARMUP_ITERS", 4)
IMAGES = fingerprint([{"file_name": "/data/a.jpg"}, {"file_name": "/data/b.jpg"}])
SMALL = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 MODEL.DEVICE cpu SEED 5 DATASETS.TEST () "
FINETUNING = {
    "detection": "INPUT.MIN_SIZE_TRAIN (64,80) INPUT.MAX_SIZE_TRAIN 100 TEST.PRECISE_BN.ENABLED False",
    "segmentation_voc": "INPUT.CROP.SIZE [65,65] TEST.PRECISE_BN.ENABLED False",
    "depth": "INPUT.CROP.SIZE [65,65]",
}


@cache
def config(kind: str) -> CfgNode:
    """Of a method of pretraining, or of a recipe of finetuning."""
    if kind not in FINETUNING:
        views = ("VIEWS.NUM_SMALL", 0 if kind == "DenseCL" else 2)
        return tiny_config("MODEL.META_ARCHITECTURE", kind, "DATASETS.TRAIN", ("toy_scenes_train",), *views, *OPTIONS)
    options = f"{SMALL} SOLVER.IMS_PER_BATCH 4 {FINETUNING[kind]}".split() + [str(option) for option in OPTIONS]
    return make_config(f"configs/toy/{kind}.yaml", options)


def another(value: object) -> object:
    """A value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "another" if isinstance(value, str | None) else [*value, 1]


@pytest.mark.parametrize("kind", ["KNNMoCo", "MoCo", "DenseCL", *FINETUNING])
@given(data=st.data())
def test_whatever_differs_is_refused_unless_every_key_of_the_experiment_is_accepted(kind, data):
    cfg = config(kind)
    plain = plain_config(cfg)
    changed = data.draw(st.lists(st.sampled_from(sorted(plain.keys() - set(OWN_RULES))), unique=True, max_size=12))
    saved = {"config": plain | {key: another(plain[key]) for key in changed}, "images": IMAGES}
    refused = [key for key in changed if not may_change(cfg, key)]
    if refused:
        with pytest.raises(UserError) as caught:
            check_same_experiment(cfg, IMAGES, saved, accepted=refused[1:])
        assert str(caught.value).endswith(f"--accept {refused[0]}")
        assert all(f" {key} (" in str(caught.value) for key in refused)
    check_same_experiment(cfg, IMAGES, saved, accepted=refused)


def test_other_weights_to_begin_with_have_no_effect_on_a_run_that_has_begun(caplog):
    cfg = config("KNNMoCo")
    saved = {"config": plain_config(cfg) | {"MODEL.WEIGHTS": "start.pth"}, "images": IMAGES}
    with caplog.at_level(logging.INFO):
        check_same_experiment(cfg, IMAGES, saved)
    assert "MODEL.WEIGHTS '' has no effect: the run continues from its own checkpoint" in caplog.text
    assert "apply from here on" not in caplog.text
    caplog.clear()
    other = with_values(cfg, {"MODEL.WEIGHTS": "other.pth"})
    check_start(other, ["MODEL.WEIGHTS"], begins=False)
    assert not caplog.text
    check_start(other, ["MODEL.WEIGHTS"])
    assert "is for random weights, and can spoil those of MODEL.WEIGHTS" in caplog.text


def test_a_length_in_time_decides_what_its_own_run_may_have_otherwise():
    stated = read_stated("configs/toy/pretrain.yaml", ["SOLVER.MINUTES", "5"])
    measured = plain_config(merged_config(stated)) | {"NEIGHBORS.WARMUP_EPOCHS": 0, "SOLVER.MAX_ITER": 7}
    check_stated(merged_config(stated), measured)


def test_a_checkpoint_with_a_removed_key_resumes_with_a_warning(caplog):
    cfg = config("KNNMoCo")
    saved = {"config": plain_config(cfg) | {"VIEWS.REDUCED_IMAGES": True}, "images": IMAGES}
    check_same_experiment(cfg, IMAGES, saved)
    assert "had VIEWS.REDUCED_IMAGES True, which was removed" in caplog.text


@pytest.mark.parametrize(
    ("kind", "key", "may"),
    [
        ("KNNMoCo", "MOCO.TEMPERATURE", False),
        ("KNNMoCo", "MOCO.MAX_SCORES", True),
        ("DenseCL", "MOCO.TEMPERATURE", False),
        ("detection", "MOCO.TEMPERATURE", True),
        ("KNNMoCo", "MODEL.RPN.NMS_THRESH", True),
        ("detection", "MODEL.RPN.NMS_THRESH", False),
        ("detection", "MODEL.FPN.OUT_CHANNELS", False),
        ("KNNMoCo", "VIEWS.RESAMPLING", False),
        ("detection", "INPUT.MIN_SIZE_TEST", True),
        ("segmentation_voc", "INPUT.SQUASH", False),
        ("detection", "INPUT.SQUASH", True),
        ("KNNMoCo", "MONITOR.IMAGES", True),
        ("KNNMoCo", "A.KEY.THAT_IS_NEW", False),
    ],
)
def test_what_a_key_means_depends_on_the_network(kind, key, may):
    assert may_change(config(kind), key) == may


@pytest.mark.parametrize(
    ("kind", "idle"),
    [
        ("MoCo", "NEIGHBORS.WEIGHT, NEIGHBORS.QUEUE_SIZE"),
        ("KNNMoCo", "NEIGHBORS.QUEUE_SIZE"),
        ("BYOL", "MOCO.MOMENTUM"),
        ("detection", "MOCO.MOMENTUM, NEIGHBORS.WEIGHT, NEIGHBORS.QUEUE_SIZE, KNN_EVAL.BANK"),
    ],
)
def test_keys_that_are_typed_and_never_read_are_named(kind, idle):
    read = ("OUTPUT_DIR", "SOLVER.BASE_LR", "MODEL.WEIGHTS", "SEED", "DATASETS.TEST", "IMPORTS", "TEST.EVAL_EPOCHS")
    opts = [*read, "MOCO.MOMENTUM", "NEIGHBORS.WEIGHT", "NEIGHBORS.QUEUE_SIZE", "KNN_EVAL.BANK", "TEST.AUG.ENABLED"]
    cfg = config(kind)
    said = f"typed, but without effect: {cfg.MODEL.META_ARCHITECTURE} never reads {idle}, TEST.AUG.ENABLED"
    assert logged(unused_overrides, cfg, opts) == [(logging.WARNING, said)]
    assert unused_overrides(cfg, read) == []


def test_images_are_the_same_wherever_their_folder_lies():
    def images(*names: str, **more: object) -> list[dict]:
        return fingerprint([{"file_name": name, **more} for name in names])

    assert images("/data/a.jpg", "/data/b.jpg") == images("/mnt/x/a.jpg", "/mnt/x/b.jpg") == IMAGES
    assert images("/data/x/a1.jpg", "/data/x/a2.jpg") == images("a1.jpg", "a2.jpg")
    assert images("s3://one/0.tar", offset=512) == images("/data/0.tar", offset=512) != images("/data/0.tar", offset=0)
    assert images("/data/a.jpg") == images("/mnt/a.jpg") != images("/mnt/b.jpg")
    for other in (("/data/b.jpg", "/data/a.jpg"), ("/data/a.jpg", "/data/c.jpg"), ("/data/a.jpg", "/data/x/b.jpg")):
        assert images(*other) != IMAGES


@pytest.mark.parametrize(("count", "what"), [(2, "names"), (3, "number")])
def test_other_images_are_refused_and_a_moved_folder_is_not(count, what):
    cfg = config("KNNMoCo")
    saved = {"config": plain_config(cfg) | {"DATASETS.TRAIN": ["folder:/old"]}, "images": IMAGES}
    others = fingerprint([{"file_name": f"/new/{n}.jpg"} for n in range(count)])
    expected = rf"folder:/old: 2 images -> .*: {count} images, other {what}\).* --accept DATASETS.TRAIN$"
    refused(expected, check_same_experiment, cfg, others, saved)
    check_same_experiment(cfg, IMAGES, saved)


def test_a_fingerprint_names_what_changed_of_images_and_labels(tmp_path):
    image, mask = tmp_path / "a.bmp", tmp_path / "a.png"
    box = {"bbox": [1, 2, 3, 4], "category_id": 0}
    record = {"file_name": str(image), "sem_seg_file_name": str(mask), "annotations": [box]}
    for file in (image, mask):
        file.write_bytes(b"some")
    before = fingerprint([record])
    assert changes(before, fingerprint([record])) == []
    box["category_id"] = 1
    assert changes(before, fingerprint([record])) == ["labels"]
    assert changes(*(fingerprint([{**record, "annotations": boxes}], labels=False) for boxes in ([], [box]))) == []
    box["category_id"] = 0
    renamed = [fingerprint([record], classes=names) for names in (["owl", "kite"], ["kite", "owl"])]
    assert changes(*renamed) == ["names of classes"]
    assert changes(before, renamed[0]) == []  # a checkpoint of version 0.1.0 has none
    mask.write_bytes(b"else")
    assert changes(before, fingerprint([record])) == ["labels"]
    mask.write_bytes(b"some")
    os.utime(image, ns=(1, 1))
    assert changes(before, fingerprint([record])) == ["files' times"]
    assert changes(before, fingerprint([record]), times=False) == []
    image.write_bytes(b"longer")
    assert "files' sizes" in changes(before, fingerprint([record]))


def test_a_fingerprint_is_of_the_files_of_all_channels(tmp_path):
    files = [tmp_path / f"a_{channel}.npy" for channel in "DFR"]
    for file in files:
        file.write_bytes(b"some")
    whole = {"file_name": str(files[0])}
    record = whole | {"channel_files": [str(file) for file in files[:2]]}
    before = fingerprint([record])
    assert changes(before, fingerprint([record])) == []
    other = whole | {"channel_files": [str(file) for file in (files[0], files[2])]}
    assert "names" in changes(before, fingerprint([other]))
    one = {"file_name": "/data/a.npy", "channel_files": ["/data/a.npy"]}
    assert fingerprint([one])[0]["names"] == fingerprint([{"file_name": "/data/a.npy"}])[0]["names"]
    os.utime(files[1], ns=(1, 1))
    assert changes(before, fingerprint([record])) == ["files' times"]
    files[1].write_bytes(b"longer")
    assert "files' sizes" in changes(before, fingerprint([record]))
    alike = {"file_name": str(files[2]), "channel_files": [str(files[2])] * 2}
    assert equal_images([record, alike]) == [] and equal_images([whole, {"file_name": str(files[2])}]) != []


def test_files_that_only_have_other_times_are_warned_of(caplog):
    cfg = config("KNNMoCo")
    saved = {"config": plain_config(cfg), "images": [IMAGES[0] | {"times": "other"}]}
    check_same_experiment(cfg, IMAGES, saved)
    assert "files' times" in caplog.text


def test_norms_that_were_resolved_for_other_processes_are_the_same(caplog):
    cfg = config("KNNMoCo")
    saved = {"config": plain_config(cfg) | {"MODEL.RESNETS.NORM": "SyncBN"}, "images": IMAGES}
    refused(r"MODEL.RESNETS.NORM \(SyncBN -> BN\)", check_same_experiment, cfg, IMAGES, saved)
    check_same_experiment(cfg, IMAGES, saved, other_processes=True)
    saved["config"]["MODEL.RESNETS.NORM"] = "GN"
    refused(r"GN -> BN", check_same_experiment, cfg, IMAGES, saved, other_processes=True)


@pytest.fixture(scope="module")
def detector(tmp_path_factory) -> Path:
    """A checkpoint, without tensors, of a toy detector with its own anchors and classes, trained by two processes."""
    cfg = config("detection").clone()
    own = ("MODEL.ANCHOR_GENERATOR.SIZES", [[16, 32]], "MODEL.ROI_HEADS.NUM_CLASSES", 3, "TEST.EVAL_PERIOD", 5)
    cfg.merge_from_list([*own, "MODEL.RESNETS.NORM", "naiveSyncBN"])
    path = tmp_path_factory.mktemp("detector") / "model_final.pth"
    torch.save(
        {"model": {}, "iteration": 9, "trainer": {"config": plain_config(cfg)}, "classes": ["a", "b", "c"]}, path
    )
    return path


def use(weights: object, words: str = "", config_file: str = "") -> CfgNode:
    return make_config(config_file, ["MODEL.WEIGHTS", str(weights), *words.split()], trained=True)


def test_whoever_uses_a_network_needs_no_recipe_and_may_test_it_otherwise(detector):
    trained = torch.load(detector)["trainer"]["config"]
    otherwise = {
        "MODEL.ROI_HEADS.SCORE_THRESH_TEST": 0.3,
        "MODEL.ROI_HEADS.NMS_THRESH_TEST": 0.4,
        "MODEL.RPN.NMS_THRESH": 0.6,
        "MODEL.RPN.LOSS_WEIGHT": 3.0,
        "INPUT.MIN_SIZE_TEST": 320,
        "TEST.DETECTIONS_PER_IMAGE": 7,
        "MODEL.RETINANET.NUM_CONVS": 7,
    }
    for words, changed in (("", {}), (" ".join(f"{key} {value}" for key, value in otherwise.items()), otherwise)):
        cfg = plain_config(use(detector, words))
        assert {key: cfg[key] for key in cfg if declaration(key).scope != RUN} == {
            key: value for key, value in (trained | changed).items() if declaration(key).scope != RUN
        }


@pytest.mark.parametrize(
    "words",
    [
        "MODEL.ANCHOR_GENERATOR.SIZES [[24,48,80]]",
        "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS [[1.0]]",
        "MODEL.RPN.BBOX_REG_WEIGHTS (2.0,2.0,1.0,1.0)",
        "MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS (1.0,1.0,1.0,1.0)",
        "MODEL.ROI_HEADS.NUM_CLASSES 2",
        "MODEL.RESNETS.NORM GN",
        "MODEL.PIXEL_STD [50.0,50.0,50.0]",
        "INPUT.FORMAT BGR",
        "MODEL.META_ARCHITECTURE RetinaNet",
    ],
)
def test_whoever_uses_a_network_makes_no_other_of_it_by(words, detector):
    with pytest.raises(UserError, match=words.split()[0]) as caught:
        use(detector, words)
    assert str(caught.value).count(" here and ") == 1


def test_a_recipe_may_disagree_with_a_checkpoint_in_nothing_that_makes_the_network(detector):
    with pytest.raises(UserError) as caught:
        use(detector, config_file="configs/toy/detection.yaml")
    for found in ("SIZES is [[24, 48, 80]] here and [[16, 32]] there", "NUM_CLASSES is 10 here and 3 there"):
        assert found in str(caught.value)
    assert "NORM" not in str(caught.value)
    assert use(detector, config_file="configs/toy/pretrain.yaml").MODEL.META_ARCHITECTURE == "KNNMoCo"  # its backbone


def test_a_file_leaves_classes_alone_to_the_checkpoint(detector, tmp_path):
    """What a file switches off by another key, as EPOCHS does MAX_ITER, stays off."""
    assert torch.load(detector)["trainer"]["config"]["SOLVER.MAX_ITER"] > 0
    file = tmp_path / "own.yaml"
    file.write_text("MODEL: {ROI_HEADS: {NUM_CLASSES: 0}}\nSOLVER: {EPOCHS: 4}\n")
    cfg = use(detector, config_file=str(file))
    assert (cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.SOLVER.EPOCHS, cfg.SOLVER.MAX_ITER) == (3, 4, 0)


@pytest.mark.parametrize(("names", "found"), [("c a b", [2, 0]), ("c b", [2, 1]), ("c zebra", "only .* has zebra")])
def test_boxes_are_scored_by_the_names_that_the_checkpoint_has(names, found, detector, tmp_path):
    Image.new("RGB", (100, 100)).save(tmp_path / "1.jpg")
    (tmp_path / "1.txt").write_text("0 0.3 0.3 0.2 0.2\n1 0.6 0.6 0.2 0.2\n")
    (tmp_path / "names").write_text("\n".join(names.split()))
    data = f"yolo:{tmp_path}:{tmp_path}:{tmp_path}/names"
    opts = ["MODEL.WEIGHTS", str(detector), "DATASETS.TEST", f"('{data}',)", "OUTPUT_DIR", str(tmp_path / "out")]
    args = Namespace(config_file="", opts=opts, resume=False, dry_run=False, eval_only=True)
    if isinstance(found, str):
        refused(found, plan, args, 1)
        return
    assert not [record for record in plan(args, 1).log if "names no classes" in record.msg]
    assert [box["category_id"] for box in get_records(data)[0]["annotations"]] == found
    assert MetadataCatalog.get(data).thing_classes == ["a", "b", "c"]
    torch.save(torch.load(detector) | {"classes": []}, tmp_path / "unnamed.pth")
    opts[1] = str(tmp_path / "unnamed.pth")
    if len(names.split()) == 3:
        assert any("unnamed.pth names no classes" in record.msg for record in plan(args, 1).log)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": {}}, "holds no config: .* or --config-file"),
        ({"trainer": {"config": [1]}}, "no config"),
        ({"trainer": {"config": {"SEED": "x"}}}, "SEED is 'x'"),
        ({"trainer": {"config": {"SEED": 1}}, "classes": [1]}, "no names"),
        (b"torn", "not a whole checkpoint"),
        (None, "no weights are given"),
    ],
)
def test_weights_that_say_no_network_are_refused_where_no_recipe_does(content, message, tmp_path):
    path = tmp_path / "a.pth"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    refused(message, use, path if content else "''")


@pytest.fixture(scope="module")
def begun(toy_root, tmp_path_factory) -> Path:
    """A run of 6 iterations with its checkpoint of iteration 2."""
    return train_for_module(toy_root, tmp_path_factory.mktemp("begun"), *OPTIONS)


def trainer_of(begun: Path, output: Path, *options: object) -> PretrainTrainer:
    shutil.copy(begun / "model_0000002.pth", output)
    return PretrainTrainer(run_config(output, *OPTIONS, *options))


def hyperparameters(trainer: RevisitTrainer) -> list[dict]:
    """Of every parameter, in the order of the model."""
    found = {}
    for group in trainer.optimizer.param_groups:
        found |= dict.fromkeys(group["params"], {name: value for name, value in group.items() if name != "params"})
    return [found[parameter] for parameter in trainer.model.parameters() if parameter in found]


@pytest.mark.parametrize(
    "options",
    [
        ("SOLVER.BASE_LR", 0.01),
        ("SOLVER.WEIGHT_DECAY_NORM", 0.02, "SOLVER.WEIGHT_DECAY_BIAS", 0.5),  # other groups
        ("SOLVER.BIAS_LR_FACTOR", 2.0, "SOLVER.WARMUP_ITERS", 5),
        ("SOLVER.MAX_ITER", 9, "SOLVER.LR_SCHEDULER_NAME", "PolynomialLR", "SOLVER.POLY_POWER", 0.5),
        ("SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR", "SOLVER.STEPS", (2,), "SOLVER.GAMMA", 0.5),
    ],
)
def test_rates_and_decays_of_the_next_iteration_are_the_configs(toy_datasets, begun, tmp_path, caplog, options):
    trainer = trainer_of(begun, tmp_path, *options)
    with caplog.at_level(logging.INFO):
        trainer.resume_or_load()
    assert all(f"{key} (" in caplog.text.partition("apply from here on")[2] for key in options[::2])
    fresh = PretrainTrainer(run_config(tmp_path, *OPTIONS, *options))
    for _ in range(3):
        fresh.scheduler._step_count = 2  # torch warns of a scheduler without its optimiser
        fresh.scheduler.step()
    assert hyperparameters(trainer) == hyperparameters(fresh)
    before = PretrainTrainer(run_config(tmp_path, *OPTIONS))
    before.resume_or_load()
    assert hyperparameters(before) != hyperparameters(trainer)
    for mine, theirs in zip(trainer.model.parameters(), before.model.parameters(), strict=True):
        assert_same(trainer.optimizer.state.get(mine, {}), before.optimizer.state.get(theirs, {}))


def test_another_optimiser_is_refused_and_begins_without_a_state_where_it_is_accepted(toy_datasets, begun, tmp_path):
    trainer = trainer_of(begun, tmp_path, "SOLVER.OPTIMIZER", "Adam", "SOLVER.BASE_LR", 0.001)
    refused(r"SOLVER.OPTIMIZER \(SGD -> Adam\)\. .* --accept SOLVER.OPTIMIZER$", trainer.resume_or_load)
    trainer = trainer_of(begun, tmp_path, "SOLVER.OPTIMIZER", "Adam", "SOLVER.BASE_LR", 0.001)
    trainer.resume_or_load(accepted=["SOLVER.OPTIMIZER"])
    assert not trainer.optimizer.state
    trainer.train()
    train(tmp_path, *OPTIONS, "SOLVER.OPTIMIZER", "Adam", "SOLVER.BASE_LR", 0.001, resume=True)  # is this one now


def test_what_gives_tensors_other_shapes_is_not_advised_to_be_accepted(toy_datasets, begun, tmp_path):
    options = ("MOCO.QUEUE_SIZE", 72, "MOCO.TEMPERATURE", 0.3)
    message = refusal(trainer_of(begun, tmp_path, *options).resume_or_load)
    assert "MOCO.QUEUE_SIZE (" in message and "--accept" not in message
    assert message.endswith("or start again in another OUTPUT_DIR: its tensors have other shapes")
    refused(
        "the first queue.features: .* there, ", trainer_of(begun, tmp_path, *options).resume_or_load, True, options[::2]
    )


def test_where_a_batch_that_is_accepted_counts_other_epochs_a_line_names_what_goes_by_them(
    toy_datasets, begun, tmp_path, caplog
):
    options = ("SOLVER.IMS_PER_BATCH", 30, "NEIGHBORS.WARMUP_EPOCHS", 2)
    trainer = trainer_of(begun, tmp_path, *options)
    trainer.resume_or_load(accepted=options[::2])
    assert "the 3 iterations that are done count as 1 epochs of 2, no longer as 0 of 7" in caplog.text
    assert "NEIGHBORS.WARMUP_EPOCHS 2" in caplog.text
    caplog.clear()
    trainer_of(begun, tmp_path).resume_or_load()
    assert "iterations that are done" not in caplog.text


ALL = "FUZZ_CASES" in os.environ
RATES = ("SOLVER.BASE_LR", "SOLVER.BIAS_LR_FACTOR", "SOLVER.WEIGHT_DECAY", "SOLVER.WEIGHT_DECAY_NORM")
RATES += ("SOLVER.WEIGHT_DECAY_BIAS", "SOLVER.LR_SCHEDULER_NAME", "SOLVER.WARMUP_FACTOR", "SOLVER.WARMUP_ITERS")
RATES += ("SOLVER.WARMUP_METHOD", "SOLVER.MAX_ITER", "SOLVER.STEPS", "SOLVER.GAMMA", "SOLVER.POLY_POWER")
ROUNDED = ("MODEL.CHANNELS_LAST", "DATALOADER.AUGMENT_ON_DEVICE")  # alike but for rounding, which grows
ELSEWHERE = ("MODEL.DEVICE", "MODEL.COMPILE")
VALUES = {
    "SOLVER.BASE_LR": 0.01, "SOLVER.WEIGHT_DECAY_BIAS": 0.1, "SOLVER.LR_SCHEDULER_NAME": "PolynomialLR",
    "SOLVER.WARMUP_METHOD": "constant", "KNN_EVAL.BANK": "", "DATASETS.TEST": (), "SOLVER.STEPS": (1,),
    "MONITOR.IMAGES": "toy_objects_train", "IMPORTS": ("json",), "TEST.EXPECTED_RESULTS": [],
}  # fmt: skip


def with_value(cfg: CfgNode, key: str, value: object) -> CfgNode:
    cfg = cfg.clone()
    cfg.defrost()
    *nodes, name = key.split(".")
    node = cfg
    for part in nodes:
        node = node[part]
    node[name] = value
    return cfg


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", ["KNNMoCo", "DenseCL", *FINETUNING] if ALL else ["KNNMoCo", "depth"])
def test_no_key_that_may_change_makes_another_experiment(toy_datasets, tmp_path, kind):
    """Each changed once and resumed with: but for rates, the weights of the next iterations are alike bit for bit.

    ``make fuzz`` takes all kinds and keys, ``make test`` every 40th key of two.
    """
    base = with_value(config(kind), "OUTPUT_DIR", str(tmp_path / "whole"))
    resolve_auto_values(base, Facts(images=60))
    trainer_class = FinetuneTrainer if kind in FINETUNING else PretrainTrainer
    run(base, trainer_class=trainer_class)
    end = load(tmp_path / "whole/model_final.pth")["model"]
    wrong, plain = [], plain_config(base)
    keys = [key for key in plain if key not in (*OWN_RULES, *ELSEWHERE) and may_change(base, key)]
    for key in keys if ALL else keys[::40]:
        output = tmp_path / key
        output.mkdir()
        shutil.copy(tmp_path / "whole/model_0000002.pth", output)
        cfg = with_value(with_value(base, key, VALUES.get(key, another(plain[key]))), "OUTPUT_DIR", str(output))
        run(cfg, trainer_class=trainer_class, resume=True)
        tensors = load(output / "model_final.pth")["model"]
        same = key in RATES + ROUNDED or all(torch.equal(tensor, end[name]) for name, tensor in tensors.items())
        wrong += [] if same else [key]
        shutil.rmtree(output)
    assert not wrong


def test_what_a_checkpoint_names_at_a_url_is_not_fetched_unless_the_user_names_it_too(detector, tmp_path, caplog):
    url = "('coco:http://127.0.0.1:9/photos:boxes.json',)"
    content = torch.load(detector)
    content["trainer"]["config"]["DATASETS.TEST"] = [url.strip("(',)")]
    torch.save(content, tmp_path / "model_final.pth")
    assert use(tmp_path / "model_final.pth").DATASETS.TEST == ()
    assert "names DATASETS.TEST" in caplog.text and "give the key to use it" in caplog.text
    assert use(tmp_path / "model_final.pth", f"DATASETS.TEST {url}").DATASETS.TEST == (url.strip("(',)"),)


@pytest.mark.parametrize("recipe", sorted(Path("configs").rglob("*.yaml")), ids=str)
def test_before_it_is_resolved_a_config_is_compared_by_what_nothing_else_decides(recipe):
    """So that its own run is never another experiment."""
    options = ["MODEL.WEIGHTS", "", "DISTILLATION.TEACHER", "timm:resnet18"]
    resolved = make_config(str(recipe), options, for_here=False, seed=3)
    check_stated(merged_config(read_stated(str(recipe), options)), plain_config(resolved))
