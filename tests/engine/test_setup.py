"""Before any process starts: what would be silently wrong is refused in a line, what merely does less is noted.

And environment.json says what code a run was made with, and needs no git for it.
"""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import yaml
from commands import ROOT, TINY, one_line_error, run
from hypothesis import given
from hypothesis import strategies as st
from trees import refusal, refused

from projects.Labels import truth
from revisit import keys, plugins
from revisit.compat.moved import EVALUATIONS, warn_once
from revisit.config import ELSEWHERE, add_revisit_config
from revisit.data.sources.catalog import get_records
from revisit.engine import launch, machine
from revisit.engine.data_checks import inspect_evaluation, inspect_training
from revisit.engine.environment import describe_environment, git_state, record_environment
from revisit.engine.setup import Plan, make_config, plan
from revisit.errors import UserError, typed_list
from revisit.evaluation.classifiers import NearestNeighbors
from revisit.files import make_folder
from revisit.keys import (
    KEYS,
    OF_DETECTRON2,
    Facts,
    check_values,
    declare,
    dotted_keys,
    integer,
    list_of,
    number,
    resolve_auto_values,
)
from revisit.keys.reference import reference

from detectron2.config import CfgNode, get_cfg

BASE = f"{ROOT}/configs/Base-Pretrain.yaml"
TESTED = ("DATASETS.TEST", "('toy_objects_heldout',)")
DENSECL = ("MODEL.META_ARCHITECTURE", "DenseCL", "VIEWS.NUM_SMALL", 0)


def load(*opts: object, config_file: str = BASE, num_gpus: int = 1, resume: bool = False):
    return make_config(config_file, [str(option) for option in opts], num_processes=num_gpus, resume=resume)


RULED = [key for key in (*KEYS.values(), *OF_DETECTRON2) if key.rule]


@pytest.mark.parametrize("key", RULED, ids=lambda k: k.name)
def test_a_rule_says_in_words_what_it_expects_and_holds_for_the_default(key):
    assert key.rule.expected
    assert key.owner == "detectron2" or (key.rule.holds(key.default) and key.meaning.endswith((".", ")")))


def test_a_key_is_declared_by_one_module_alone():
    with pytest.raises(AssertionError, match="MOCO.TEMPERATURE"):
        declare("MOCO.TEMPERATURE", 0.2, "Again.")


def test_the_reference_page_is_the_one_that_the_declarations_make():
    add_revisit_config(get_cfg())  # imports all that declares keys, plug-ins too
    rooms = ("revisit.", *(f"projects.{path.parent.name}." for path in ROOT.glob("projects/*/plugin.py")))
    scripts = {script.removesuffix(".py").replace("/", ".") for script in EVALUATIONS.values()}
    page = reference(key for key in KEYS.values() if key.owner.startswith(rooms) and key.owner not in scripts)
    assert (ROOT / "docs/config.md").read_text() == page, "python -m revisit.config > docs/config.md"


# What would run and be wrong without a word, by the key that the message names.
REFUSED = [
    (("MOCO.QUEUE_SIZE", 255), "MOCO.QUEUE_SIZE"),
    (("MOCO.QUEUE_SIZE", "many"), "MOCO.QUEUE_SIZE"),
    (("MOCO.QUEUE_SIZE",), "MOCO.QUEUE_SIZE"),
    (("MOCO.BN_GROUP", 100), "MOCO.BN_GROUP"),
    (("SOLVER.IMS_PER_BATCH", 32), "MOCO.BN_GROUP"),
    (("SOLVER.ACCUMULATION_STEPS", 3), "SOLVER.ACCUMULATION_STEPS"),
    (("SOLVER.ACCUMULATION_STEPS", 2, "NEIGHBORS.ENQUEUE_FIRST", True), "NEIGHBORS.ENQUEUE_FIRST"),
    (("NEIGHBORS.NUM_NEIGHBORS", 65537), "NEIGHBORS.NUM_NEIGHBORS"),
    (("MOCO.TEMPRATURE", 0.1), "MOCO.TEMPERATURE"),
    (("INPUT.FORMAT", "BGR"), "INPUT.FORMAT"),
    (("MODEL.WEIGHTS", "nowhere.pth"), "MODEL.WEIGHTS nowhere.pth not found"),
    (("MODEL.WEIGHTS", "configs"), "MODEL.WEIGHTS configs is a folder"),
    (("SOLVER.BASE_LR", 0.1, "--resume"), "--resume"),
    (("SOLVER.BASE_LR", "1e999"), "SOLVER.BASE_LR"),
    *(
        ((f"SOLVER.{key}", -0.1), f"SOLVER.{key}")  # a rate, a decay or gradients with the wrong sign
        for key in ("GAMMA", "WARMUP_FACTOR", "BIAS_LR_FACTOR", "WEIGHT_DECAY_NORM", "WEIGHT_DECAY_BIAS")
    ),
    (("SOLVER.CLIP_GRADIENTS.CLIP_VALUE", -1.0), "SOLVER.CLIP_GRADIENTS.CLIP_VALUE"),
    (("TEST.PRECISE_BN.NUM_ITER", 0), "TEST.PRECISE_BN.NUM_ITER"),
    (("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 0), "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE is 0: expected a whole number"),
    (("INPUT.MIN_SIZE_TEST", 10**400), "a whole number from 0 to 1000000000 px"),
    (("MODEL.ROI_BOX_HEAD.NUM_FC", 10**9), "a whole number from 0 to 99 layers"),
    (("MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA", "1e999"), "SMOOTH_L1_BETA"),  # inf: a loss of 0
    (("DATASETS.TRAIN", "folder:/x"), r"\('folder:/x',\)"),
    (("DATASETS.TRAIN", "/x"), r"\('folder:/x',\)"),
    (("DATASETS.TRAIN", "(folder:/x, /y,)"), r"\('folder:/x', 'folder:/y'\)"),
    (("DATASETS.TRAIN", '("folder:/x",'), r"\('folder:/x',\)"),
    (("DATASETS.TRAIN", "files:folder:/x:{}_D.TIF,{}_F.TIF"), r"\('files:folder:/x:\{\}_D.TIF,\{\}_F.TIF',\)"),
    (("KNN_EVAL.BANK", "('folder:/x',)"), "expected text; did you mean 'folder:/x'"),
    (("INPUT.MIN_SIZE_TRAIN", 640), r"\(640,\)"),
    (("SOLVER.PRECISION", "fp16"), "SOLVER.PRECISION is 'fp16': expected one of '', auto"),
    (("SOLVER.IMS_PER_BATCH", 0, "SOLVER.REFERENCE_BATCH", 256), "SOLVER.IMS_PER_BATCH is 0"),
    (("MODEL.DEVICE", "gpu"), "MODEL.DEVICE is 'gpu': expected cpu, cuda"),
    ((*DENSECL, "VIEWS.NUM_SMALL", 4), "VIEWS.NUM_SMALL"),
    (("IMPORTS", "('no_method',)"), "IMPORTS"),
    (("IMPORTS", "('my_method.py',)"), "my_method.py"),
    (("IMPORTS", "('projects.ToyScenes')"), "IMPORTS"),
    (("IMPORTS", "(7,)"), "cannot import 7"),
]


@pytest.mark.parametrize(("opts", "named"), REFUSED)
def test_what_would_be_silently_wrong_is_refused_by_name(opts, named):
    refused(named, load, *opts)


def test_a_queue_may_hold_just_a_batch_and_all_its_rows_may_be_neighbours():
    assert load("MOCO.QUEUE_SIZE", 256, "NEIGHBORS.NUM_NEIGHBORS", 256).SOLVER.IMS_PER_BATCH == 256


def test_what_several_processes_cannot_share_is_refused_by_name():
    refused("SOLVER.IMS_PER_BATCH", load, num_gpus=3)
    refused("MOCO.BN_GROUP", load, "MOCO.BN_GROUP", 96, num_gpus=8)


def test_a_recipe_that_is_not_there_is_answered_with_those_like_it_and_none_with_an_example(tmp_path):
    refused("knn_moco not found.* did you mean .*own_images/knn_moco.yaml", load, config_file="knn_moco")
    refused("did you mean own_images/pretrain.yaml", load, config_file="configs/own_images/pretran.yaml")
    nothing = Namespace(config_file="", opts=[], resume=False, dry_run=False, eval_only=False)
    refused("no recipe is given: .* such as own_images/pretrain.yaml", plan, nothing, 1)


def plan_of(recipe: str, *opts: object, output: Path, **options: bool) -> Plan:
    words = ["OUTPUT_DIR", str(output), "DATALOADER.NUM_WORKERS", "0", *map(str, opts)]
    switches = {"resume": False, "dry_run": False, "eval_only": False} | options
    return plan(Namespace(config_file=f"{ROOT}/configs/{recipe}.yaml", opts=words, accept=(), **switches), 1)


def test_fewer_images_than_a_batch_are_the_batch_where_the_method_can_do_with_it(tmp_path, write_pictures):
    write_pictures(tmp_path / "images", 5)
    options = ("DATASETS.TRAIN", f"('folder:{tmp_path}/images',)", "SOLVER.MAX_ITER", 2)
    own = plan_of("own_images/pretrain", *options, output=tmp_path)
    assert own.cfg.SOLVER.IMS_PER_BATCH == 5
    assert any("SOLVER.IMS_PER_BATCH 5: 5 images are fewer than a batch of 128" in record.msg for record in own.log)
    groups = ("MOCO.BN_GROUP", 128)  # which five images are not
    refused("5 images, fewer than one batch of 256", plan_of, "pretrain/moco", *options, *groups, output=tmp_path)


@pytest.mark.parametrize(("recipe", "keys"), [("knn_moco", 1), ("objects", 8)])
def test_queue_and_neighbours_of_no_stated_number_follow_from_the_images(tmp_path, write_pictures, recipe, keys):
    write_pictures(tmp_path / "images", 23)
    options = ("DATASETS.TRAIN", f"('folder:{tmp_path}/images',)", "SOLVER.IMS_PER_BATCH", 4)
    cfg = plan_of(f"own_images/{recipe}", *options, output=tmp_path).cfg
    assert (cfg.MOCO.QUEUE_SIZE, cfg.NEIGHBORS.NUM_NEIGHBORS) == (8 * keys, 1)
    many = (*options, "NEIGHBORS.NUM_NEIGHBORS", 8 * keys + 1)
    expected = f"NEIGHBORS.NUM_NEIGHBORS {8 * keys + 1} is more than MOCO.QUEUE_SIZE {8 * keys} holds"
    refused(expected, plan_of, f"own_images/{recipe}", *many, output=tmp_path)


@pytest.mark.parametrize(
    ("recipe", "opts", "named"),
    [
        ("toy/byol", ("SOLVER.IMS_PER_BATCH", 12, "SOLVER.MAX_ITER", 10), "SOLVER.WARMUP_ITERS"),
        ("toy/pretrain", ("SOLVER.IMS_PER_BATCH", 12, "DATASETS.TEST", "()"), "DATASETS.TEST"),
        ("toy/pretrain", ("SOLVER.IMS_PER_BATCH", 12, "KNN_EVAL.BANK", ""), "KNN_EVAL.BANK"),
        ("toy/pretrain", ("SOLVER.IMS_PER_BATCH", 12, "TEST.PATIENCE", 3), "TEST.PATIENCE"),
        ("toy/detection", ("SOLVER.MAX_ITER", 10), "SOLVER.STEPS"),
        ("toy/detection", ("SOLVER.MAX_ITER", 10, "DATASETS.TEST", "()", "TEST.EVAL_PERIOD", 5), "DATASETS.TEST"),
        ("toy/detection", ("TEST.KEEP_BEST", True, "TEST.EVAL_PERIOD", 0), "TEST.KEEP_BEST"),
        ("toy/detection", ("MOCO.TEMPERATURE", 0.1), "MOCO.TEMPERATURE"),
        ("toy/detection", ("TEST.AUG.ENABLED", True), "TEST.AUG.ENABLED"),
    ],
)
def test_what_merely_does_less_runs_and_is_noted(toy_datasets, tmp_path, monkeypatch, recipe, opts, named):
    monkeypatch.setattr(truth, "check_voc_truth", lambda *_: None)  # of a tree that another test has named
    log = plan_of(recipe, *opts, output=tmp_path).log
    assert any(record.levelno == logging.WARNING and named in record.msg for record in log), log


def test_an_evaluation_of_nothing_is_refused_where_it_is_all_that_is_asked_for(toy_datasets, tmp_path):
    refused("DATASETS.TEST", plan_of, "toy/detection", "DATASETS.TEST", "()", output=tmp_path, eval_only=True)


def test_whole_numbers_are_taken_where_floats_are_meant(tmp_path):
    (tmp_path / "mine.yaml").write_text(f"_BASE_: {BASE}\nSOLVER:\n  WEIGHT_DECAY: 0\n")
    solver = load("SOLVER.BASE_LR", 1, config_file=str(tmp_path / "mine.yaml")).SOLVER
    assert [(type(value), value) for value in (solver.BASE_LR, solver.WEIGHT_DECAY)] == [(float, 1.0), (float, 0.0)]


@pytest.mark.parametrize("name", ["2024_11_30", "1.5", "007"])
def test_a_name_that_reads_as_a_number_stays_a_name(name):
    assert load("OUTPUT_DIR", name).OUTPUT_DIR == name


@pytest.mark.parametrize("name", ["file", "file/below", "a\0b", "x" * 300])
def test_an_output_folder_that_cannot_be_is_refused(tmp_path, name):
    (tmp_path / "file").touch()
    refused("OUTPUT_DIR .* cannot be a folder", make_folder, tmp_path / name, "OUTPUT_DIR")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=2),
)


@given(st.sampled_from(RULED), VALUES.filter(lambda value: not isinstance(value, dict)))
def test_a_value_against_the_rule_of_its_key_is_refused_by_name(key, value):
    """What the rules are stands in docs/config.md, which is compared above."""
    tree = value
    for part in reversed(key.name.split(".")):
        tree = {part: tree}
    if key.rule.holds(value):
        check_values(CfgNode(tree))
    else:
        assert refusal(check_values, CfgNode(tree)).startswith(f"{key.name} is ")


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-99, 99) | st.floats())
def test_ranges_hold_what_lies_inside(low, high, value):
    inside = low <= value <= high
    assert number(low, high).holds(value) == inside
    assert number(low, high, open_low=True).holds(value) == (inside and value != low)
    assert integer(low, high).holds(value) == (inside and isinstance(value, int))
    assert list_of(integer(low, high), rising=True).holds([value, value + 1]) == (
        inside and isinstance(value, int) and value < high
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SOLVER:\n  BASE_LRR: 0.1\n", "unknown config key SOLVER.BASE_LRR; did you mean SOLVER.BASE_LR"),
        ("SOLVER:\n  BATCH_SIZE: 8\n", "unknown config key SOLVER.BATCH_SIZE; did you mean SOLVER.IMS_PER_BATCH"),
        ("MODEL:\n  ROI_HEADS:\n    BATCH_SIZE: 8\n", ".*did you mean MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE"),
        ("VIEWS:\n  REDUCED_IMAGES: true\n", "unknown config key VIEWS.REDUCED_IMAGES: it was removed; make smaller"),
        ("_BASE_: mine.yaml\n", ".*leads to more than 30 files, or back to itself"),
        ("OUTPUT_DIR: !!python/object/apply:os.mkdir ['{}/owned']\n", ".*could not determine a constructor"),
        *((text, "") for text in ("", "- 1\n", "_BASE_: missing.yaml\n", "_BASE_: 5\n", "SOLVER: 3\n", "a: [\n")),
    ],
)
def test_a_file_that_is_no_config_is_named(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text.replace("{}", str(tmp_path)))
    refused(f"mine.yaml: {message}", load, config_file=str(tmp_path / "mine.yaml"))
    assert not (tmp_path / "owned").exists()  # by code in the file


def test_other_libraries_names_of_keys_lead_to_keys_that_there_are():
    assert set(ELSEWHERE.values()) <= dotted_keys(load()).keys()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("OUTPUT_DIR my nice runs", "OUTPUT_DIR 'my nice runs'?"),
        ("DATASETS.TRAIN folder:/my nice photos SEED 1", """DATASETS.TRAIN "('folder:/my nice photos',)"?"""),
        ("SEED 1 SEEDD 2", "SEED?"),
    ],
)
def test_an_even_number_of_words_that_are_no_pairs_is_answered_with_the_value_that_was_meant(words, meant):
    with pytest.raises(UserError, match="command line: unknown config key (nice|SEEDD); did you mean") as caught:
        load(*words.split())
    assert str(caught.value).endswith(f"did you mean {meant}")


def test_a_folder_typed_alone_is_answered_with_the_name_that_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    named = "did you mean \"\\('folder:photos',\\)\"\\?"
    for typed in ("photos", "folder:photos", "\"('folder:photos',)\""):
        refused(f"DATASETS.TRAIN is .*{named}", load, "DATASETS.TRAIN", typed)


def test_a_name_with_an_apostrophe_is_proposed_in_marks_that_a_shell_takes(tmp_path):
    (tmp_path / "Karl's").mkdir()
    name = f"folder:{tmp_path}/Karl's"
    for typed in (name, f"('{name}',)"):
        with pytest.raises(UserError) as caught:
            load("DATASETS.TRAIN", typed)
        (proposed,) = shlex.split(str(caught.value).partition("did you mean ")[2].removesuffix("?"))
        assert load("DATASETS.TRAIN", proposed).DATASETS.TRAIN == (name,)
    words = typed_list([name])
    refused(re.escape(f"for a folder of images write {words}"), get_records, f"{tmp_path}/Karl's")


def test_missing_data_has_its_published_size_in_a_dry_run_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    cfg = load(config_file="configs/pretrain/knn_moco.yaml")
    ways_out = ".*DETECTRON2_DATASETS.*projects/ToyScenes/make_toy_scenes.py"
    refused(f"{tmp_path}/coco/train2017{ways_out}", plan_of, "pretrain/knn_moco", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert inspect_training(cfg, assume_missing=True) == 118287


@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        ("DATASETS.TRAIN", "('folder:{}',)", "no images in {}"),
        (
            "DATASETS.TRAIN",
            "('nowhere',)",
            "unknown data set 'nowhere', and no folder of that name is there: exp",
        ),
        ("DATASETS.TRAIN", "('folder:',)", "data set 'folder:' has nothing after its colon: expected KIND:PATH"),
        ("DATASETS.TRAIN", "('folder:{}/photo.jpg',)", "{}/photo.jpg is a file: expected a folder of images, or list:"),
        ("DATASETS.TRAIN", "('{}',)", "unknown data set '{0}': .* write .*'folder:{0}',"),
        ("DATASETS.TRAIN", "('{}/none',)", "unknown data set '{0}/none', which is not there: expected a folder"),
        ("KNN_EVAL.BANK", "class_folders:{}/birds", "birds not found"),
        ("KNN_EVAL.BANK", "toy_scenes_train", "KNN_EVAL.BANK toy_scenes_train has fewer than two classes"),
        ("DATASETS.TEST", "('folder:{}/toy_scenes',)", "have no class .* MONITOR.IMAGES takes one without labels"),
    ],
)
def test_data_that_is_missing_unknown_or_without_classes_is_refused(toy_datasets, tmp_path, key, name, message):
    root = toy_datasets if key == "DATASETS.TEST" else tmp_path
    if "photo" in name:
        (tmp_path / "photo.jpg").touch()
    cfg = load("KNN_EVAL.BANK", "toy_objects_train", *TESTED, key, name.format(root))
    refused(message.format(tmp_path), inspect_training if key == "DATASETS.TRAIN" else inspect_evaluation, cfg)


def test_a_bank_of_which_some_images_have_no_class_is_refused(toy_datasets):
    cfg, records = load(*TESTED), [{"file_name": f"{n}.jpg", "label": label} for n, label in enumerate((0, 1, -1))]
    NearestNeighbors.check(cfg, {cfg.KNN_EVAL.BANK: records[:2]})
    refused("some of its images have no class", NearestNeighbors.check, cfg, {cfg.KNN_EVAL.BANK: records})
    refused("fewer than two classes", NearestNeighbors.check, cfg, {cfg.KNN_EVAL.BANK: records[1:]})


def test_weights_may_lie_below_the_home_folder_in_a_file_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "start.pth").touch()
    (tmp_path / "mine.yaml").write_text(f"_BASE_: {BASE}\nMODEL:\n  WEIGHTS: ~/start.pth\n")
    assert load(config_file=str(tmp_path / "mine.yaml")).MODEL.WEIGHTS == f"{tmp_path}/start.pth"


@pytest.mark.parametrize("size", ["[]", "[65]", "[65,65,65]", "['a',65]", "[65,0.5]", "[65,1e999]"])
def test_a_crop_of_pixels_has_height_and_width(size, tmp_path):
    crop = ("INPUT.CROP.ENABLED", True, "INPUT.CROP.SIZE", size)
    refused("INPUT.CROP of .* SIZE height and width, whole px", plan_of, "toy/segmentation_voc", *crop, output=tmp_path)


def test_a_drawn_seed_is_kept_by_a_resumed_run(tmp_path):
    first = load("OUTPUT_DIR", tmp_path)
    assert first.SEED >= 0
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"SEED": first.SEED}))
    assert load("OUTPUT_DIR", tmp_path, resume=True).SEED == first.SEED
    assert load("OUTPUT_DIR", tmp_path).SEED != first.SEED
    on_other_data = {"SEED": first.SEED, "DATASETS": {"TRAIN": ["folder:other"]}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(on_other_data))
    other = load("OUTPUT_DIR", tmp_path, "DATASETS.TRAIN", "('folder:mine',)", resume=True)
    assert other.SEED != first.SEED


OTHERS = [{"DATASETS": {"TRAIN": ["folder:other"]}}, {"MODEL": {"META_ARCHITECTURE": "MoCo"}}]


@pytest.mark.parametrize("stated", OTHERS, ids=str)
def test_without_a_checkpoint_nothing_is_kept_of_another_experiment(stated, tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"SEED": 2147483646, **stated}))
    assert load("OUTPUT_DIR", tmp_path, resume=True).SEED != 2147483646


def test_a_run_that_has_a_checkpoint_resumes_without_the_weights_that_it_began_from(tmp_path):
    gone = ("OUTPUT_DIR", tmp_path, "MODEL.WEIGHTS", "nowhere.pth")
    refused("MODEL.WEIGHTS nowhere.pth not found", load, *gone, resume=True)
    checkpoint = {"iteration": 3, "trainer": {"config": {"SEED": 1}}, "model": {}}
    torch.save(checkpoint, tmp_path / "model_0000003.pth")
    assert load(*gone, resume=True).MODEL.WEIGHTS == "nowhere.pth"
    refused("MODEL.WEIGHTS nowhere.pth not found", load, *gone)
    continued = ("MODEL.META_ARCHITECTURE", "ContinuedSimCLR")  # which reads them in every part of a run
    refused("MODEL.WEIGHTS nowhere.pth not found", load, *gone, *continued, resume=True)


def test_the_last_checkpoint_is_judged_where_there_is_one_whatever_weights_are_typed(toy_datasets, tmp_path):
    judged = {"output": tmp_path, "eval_only": True, "resume": True}
    refused("has none: give a run's folder, or --weights FILE", plan_of, "toy/pretrain", **judged)
    weights = tmp_path / "model_0000003.pth"
    torch.save({"iteration": 3, "trainer": {"config": {"SEED": 1}}, "model": {}}, weights)
    log = plan_of("toy/pretrain", "MODEL.WEIGHTS", weights, **judged).log
    assert any(f"MODEL.WEIGHTS {weights} has no effect" in record.getMessage() for record in log)


@pytest.mark.parametrize("left", ["metrics.json", "run.lock"])
def test_an_evaluation_leaves_the_settings_of_a_training_as_they_are(left, toy_root, tmp_path):
    (tmp_path / left).touch()
    (tmp_path / "config.yaml").write_text("SEED: 3\n")
    evaluate = "python tools/train_net.py --config-file configs/toy/pretrain.yaml --eval-only"
    run(f"{evaluate} OUTPUT_DIR {tmp_path} {TINY}", toy_root)
    assert (tmp_path / "config.yaml").read_text() == "SEED: 3\n"
    recipe = "projects/FrozenEvaluations/configs/linear/toy.yaml --weights random"
    study = f"python projects/FrozenEvaluations/linear.py --config-file {recipe}"
    line = one_line_error(f"{study} --output {tmp_path}", toy_root)
    assert "is the folder of a training: give another one" in line
    assert (tmp_path / "config.yaml").read_text() == "SEED: 3\n"


@pytest.mark.parametrize(("processes", "norm"), [(1, "BN"), (2, "naiveSyncBN")])
def test_sync_bn_becomes_what_the_cpu_has(processes, norm):
    cfg = load("MODEL.DEVICE", "cpu", config_file="configs/toy/segmentation_voc.yaml", num_gpus=processes)
    assert cfg.MODEL.RESNETS.NORM == norm


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("VIEWS.SMALL_SIZE", 16), "views of 16 px"),
        (("SOLVER.AMP.DTYPE", "float16"), "float16 needs a GPU"),
    ],
)
def test_what_the_cpu_cannot_do_in_16_bits_is_refused(option, message):
    load("SOLVER.AMP.ENABLED", True, "VIEWS.SMALL_SIZE", 17)
    load("SOLVER.AMP.ENABLED", True, "VIEWS.SMALL_SIZE", 16, "VIEWS.NUM_SMALL", 0)
    refused(message, load, "SOLVER.AMP.ENABLED", True, *option)


def test_a_gpu_that_torch_cannot_use_is_refused_unless_the_cpu_is_asked_for(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "glob", lambda _: ["/dev/nvidia0"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused("/dev/nvidia0, but torch .* or MODEL.DEVICE cpu", load)
    load("MODEL.DEVICE", "cpu")


@pytest.mark.parametrize(
    ("device", "processes", "why"), [("cuda:1", 2, "a GPU of its own"), ("cuda:5", 1, "has 2"), ("gpu", 1, "cpu, cuda")]
)
def test_a_device_by_number_is_one_that_a_single_process_has(monkeypatch, device, processes, why):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    refused(f"MODEL.DEVICE {device}.*{why}", launch.launch, Mock(), launch.Processes(processes), device=device)


MODULE = """
from revisit.keys import declare

declare("MOCO.MINE", 0.5, "A key of my own.")
"""


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Write a module into the working directory, a folder where only IMPORTS finds it; returns the value of that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    declared = dict(keys.KEYS)
    monkeypatch.setattr(keys.declarations, "KEYS", declared)
    monkeypatch.setattr(keys.auto, "KEYS", declared)

    def write(name: str, text: str = MODULE) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return f"('{name}',)"

    return write


def test_a_module_in_the_working_directory_adds_keys_before_the_config_is_merged(write_module):
    names = write_module("my_keys")
    assert load("MOCO.MINE", "0.25", "IMPORTS", names).MOCO.MINE == 0.25
    assert load("IMPORTS", names).MOCO.MINE == 0.5  # a second config starts from the defaults
    assert load().IMPORTS == ()


@pytest.mark.parametrize("imports", ["()", "('math', 'projects.ToyScenes')", "('no_such_module',)"])
def test_a_folder_from_elsewhere_is_searched_for_no_module_unless_it_alone_has_one_that_is_asked_for(
    imports, write_module, tmp_path
):
    for library in ("brotli", "math"):
        write_module(library, "raise SystemExit('ran')")
    try:
        load("IMPORTS", imports)
    except UserError as error:
        assert "no_such_module" in str(error)
    assert str(tmp_path) not in sys.path
    write_module("my_losses", "LOSS = 1")
    for name in ("my_losses", "my_plugin"):
        sys.modules.pop(name, None)
    load("IMPORTS", write_module("my_plugin", "import my_losses"))
    assert sys.path[-1] == str(tmp_path) and sys.modules["my_plugin"].my_losses.LOSS == 1


@pytest.mark.parametrize("value", ["('my_tuple',)", "[my_list]", "('json', 'my_second')"])
def test_a_config_file_inherits_imports_from_its_base_and_the_command_line_wins(value, write_module, tmp_path):
    write_module(re.search(r"my_\w+", value)[0])
    (tmp_path / "base.yaml").write_text(f"_BASE_: {BASE}\nIMPORTS: {value}\n")
    (tmp_path / "mine.yaml").write_text("_BASE_: base.yaml\nMOCO:\n  MINE: 2.0\n")
    assert load(config_file="mine.yaml").MOCO.MINE == 2.0
    assert load("IMPORTS", "('math',)", "MOCO.MINE", 3.0, config_file="mine.yaml").IMPORTS == ("math",)


def test_projects_that_had_to_be_named_until_they_plugged_in_warn_once(caplog):
    warn_once.cache_clear()
    for name in plugins.PLUGGED_IN:
        for _ in range(2):
            assert load("IMPORTS", f"('{name}',)").IMPORTS == (name,)
        assert caplog.text.count(f"IMPORTS names {name}, which needs no import any more: leave it out") == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [("import no_such_package", ModuleNotFoundError), ("1 / 0", ZeroDivisionError), ("def f(:", SyntaxError)],
)
def test_what_a_modules_own_code_raises_stays_its_own(text, error, write_module):
    with pytest.raises(error):
        load("IMPORTS", write_module("my_broken", text))


def git(folder: Path, *words: str) -> str:
    """Whatever repository and configuration the tests run in."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@b.c", *words]
    own["GIT_CONFIG_GLOBAL"] = os.devnull
    return subprocess.run(command, env=own, check=True, capture_output=True, text=True).stdout.strip()


def test_a_repository_of_its_own_has_a_commit_and_no_git_is_no_error(tmp_path, monkeypatch):
    source = tmp_path.resolve() / "source"
    (source / "site-packages").mkdir(parents=True)
    (source / "code.py").write_text("one")
    for words in (("init", "--quiet"), ("add", "code.py"), ("commit", "--quiet", "--message", "one")):
        git(source, *words)
    commit, unknown = git(source, "rev-parse", "HEAD"), {"commit": None, "dirty": None}
    (source / "notes.txt").write_text("untracked files are the user's own")
    assert git_state(source) == {"commit": commit, "dirty": False}
    (source / "code.py").write_text("two")
    assert git_state(source) == {"commit": commit, "dirty": True}
    assert git_state(source / "site-packages") == git_state(tmp_path) == unknown
    monkeypatch.setenv("GIT_DIR", str(source / ".git"))  # as in a hook of that repository
    assert git_state(tmp_path) == unknown

    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(source) == unknown


@pytest.mark.parametrize("starts", [(False, True, True), (False, True, False)])
def test_a_run_that_goes_on_adds_a_line_and_a_new_one_starts_over(tmp_path, starts):
    for again in starts:
        record_environment(tmp_path, again=again)
    written = [json.loads(line) for line in (tmp_path / "environment.json").read_text().splitlines()]
    assert written == [describe_environment()] * (3 if all(starts[1:]) else 1)
    assert written[0]["torch"] == torch.__version__ and written[0].keys() >= {"commit", "dirty", "python", "detectron2"}


@pytest.mark.parametrize(
    ("batch", "epochs", "done", "before", "images", "length"),
    [
        (16, 4, 14, (8, 28, 4), 60, 20),  # 2 epochs of 7, and 2 of 3
        (16, 4, 15, (16, 20, 4), 60, 20),  # resumed again
        (16, 5, 15, (16, 20, 4), 60, 23),  # and lengthened
        (8, 6, 14, (8, 28, 4), 60, 42),
        (16, 4, 28, (8, 28, 4), 60, 28),  # it had ended
        (16, 4, 0, (8, 28, 4), 0, 12),  # no checkpoint
        (8, 4, 6, (8, 12, 4), 24, 20),  # 2 epochs of 3, of fewer images, and 2 of 7
        (8, 4, 20, (8, 60, 4), 120, 39),  # of more images: 1.33 epochs of 15, and 2.67 of 7
        (8, 4, 10, (8, 20, 4), 60, 20),  # resumed again
    ],
)
def test_a_run_that_resumes_with_another_batch_or_other_images_has_its_epochs(
    batch, epochs, done, before, images, length
):
    cfg = load("SOLVER.IMS_PER_BATCH", batch, "SOLVER.EPOCHS", epochs, "MOCO.BN_GROUP", 0)
    settings = dict(zip(("SOLVER.IMS_PER_BATCH", "SOLVER.MAX_ITER", "SOLVER.EPOCHS"), before, strict=True))
    resolve_auto_values(cfg, Facts(images=60, before=settings, done=done, images_before=images))
    assert cfg.SOLVER.MAX_ITER == length
