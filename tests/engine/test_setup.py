"""Before any process starts: IMPORTS are brought in, every impossible recipe is refused with one line.

And environment.json says what code a run was made with, and needs no git for it.
"""

import json
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import yaml
from commands import ROOT
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_config
from trees import refusal

from revisit import keys
from revisit.engine import environment
from revisit.engine.config_checks import check_schedule
from revisit.engine.environment import describe_environment, git_state, record_environment
from revisit.engine.setup import check_evaluation_data, count_images, load_config
from revisit.engine.solver import resolve_schedule
from revisit.errors import UserError
from revisit.files import make_folder
from revisit.keys import KEYS, each, real, whole

BASE = f"{ROOT}/configs/Base-Pretrain.yaml"
TESTED = ("DATASETS.TEST", "('toy_objects_heldout',)")
DENSECL = ("MODEL.META_ARCHITECTURE", "DenseCL", "VIEWS.NUM_SMALL", 0)


def load(*opts: object, config_file: str = BASE, num_gpus: int = 1, resume: bool = False):
    opts = [str(option) for option in opts]
    return load_config(Namespace(config_file=config_file, opts=opts, num_gpus=num_gpus, num_machines=1, resume=resume))


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (("VIEWS.POLICY", "fancy"), "VIEWS.POLICY is 'fancy': expected one of standard, autoaugment"),
        (("KNN_MOCO.MINING", "sideways"), "KNN_MOCO.MINING is 'sideways'"),
        (("MODEL.RESNETS.STEM_TYPE", "deep"), "MODEL.RESNETS.STEM_TYPE is 'deep'"),
        (("MOCO.QUEUE_SIZE", 255), "MOCO.QUEUE_SIZE 255 is smaller than the global batch of 256"),
        (("KNN_MOCO.NUM_NEIGHBORS", 70000), "KNN_MOCO.NUM_NEIGHBORS 70000 is more than MOCO.QUEUE_SIZE 65536 holds"),
        (("KNN_MOCO.NUM_NEIGHBORS", 0), "KNN_MOCO.NUM_NEIGHBORS is 0: expected a whole number of at least 1"),
        (("MOCO.BN_GROUP", 100), "MOCO.BN_GROUP 100, but the process runs 256 images at a time: .* MOCO.BN_GROUP 128;"),
        (("MOCO.BN_GROUP", -1), "MOCO.BN_GROUP is -1: expected a whole number of at least 0 images"),
        (("MOCO.BN_GROUP", "many"), "MOCO.BN_GROUP is 'many': expected a whole number of at least 0 images"),
        (
            ("MOCO.BN_GROUP", 1, "VIEWS.SMALL_SIZE", 16, "VIEWS.NUM_SMALL", 1),
            "leaves batch normalisation a single",
        ),
        (("MODEL.RESNETS.NORM", "nnSyncBN"), "MODEL.RESNETS.NORM is 'nnSyncBN': expected BN; MOCO.BN_GROUP says who"),
        (
            ("SOLVER.IMS_PER_BATCH", 32),
            "BN_GROUP 128, but the process runs 32 images .*, such as MOCO.BN_GROUP 16;",
        ),
        (("SOLVER.ACCUMULATION_STEPS", 4), "the process runs 64 images at a time: .*, such as MOCO.BN_GROUP 32;"),
        (("MOCO.TEMPERATURE", 0.0), "MOCO.TEMPERATURE"),
        (("MOCO.MOMENTUM", 1.0), "MOCO.MOMENTUM"),
        (("VIEWS.SMALL_SCALE", "(0.2,0.1)"), "VIEWS.SMALL_SCALE"),
        (("VIEWS.MIN_OVERLAP", 1.5), "VIEWS.MIN_OVERLAP"),
        (("VIEWS.MAX_IOU", -0.1), "VIEWS.MAX_IOU"),
        (("SOLVER.AMP.DTYPE", "float8"), "SOLVER.AMP.DTYPE is 'float8': expected one of bfloat16, float16"),
        (("SOLVER.ACCUMULATION_STEPS", 3), "SOLVER.ACCUMULATION_STEPS 3 does not divide the 256 images"),
        (("SOLVER.ACCUMULATION_STEPS", 0), "SOLVER.ACCUMULATION_STEPS is 0"),
        (("SOLVER.ACCUMULATION_STEPS", 2, "KNN_MOCO.ENQUEUE_FIRST", True), "expected SOLVER.ACCUMULATION_STEPS 1"),
        (("TEST.PRECISE_BN.ENABLED", True), "TEST.PRECISE_BN.ENABLED True: it is for finetuning"),
        (("INPUT.FORMAT", "BGR"), "INPUT.FORMAT BGR"),
        (("SOLVER.CHECKPOINTS_KEPT", -1), "SOLVER.CHECKPOINTS_KEPT is -1: expected a whole number of at least 0"),
        (("MOCO.TEMPRATURE", 0.1), "unknown config key MOCO.TEMPRATURE; did you mean MOCO.TEMPERATURE"),
        (("MOCO.QUEUE_SIZE", "many"), "MOCO.QUEUE_SIZE"),
        (("MOCO.QUEUE_SIZE",), "pairs KEY VALUE"),
        (("MODEL.WEIGHTS", "nowhere.pth"), "MODEL.WEIGHTS nowhere.pth not found"),
        (("SOLVER.BASE_LR", 0.1, "--resume"), "--resume comes after KEY VALUE: options go before"),
        (("SOLVER.BASE_LR", -1), "SOLVER.BASE_LR is -1.0: expected a number above 0"),
        (("SOLVER.BASE_LR", "1e999"), "SOLVER.BASE_LR is inf"),
        (("SOLVER.NESTEROV", True, "SOLVER.MOMENTUM", 0), "NESTEROV True, but SOLVER.MOMENTUM 0: expected more than 0"),
        (("SOLVER.MAX_ITER", 0), "SOLVER.MAX_ITER is 0: expected at least 1 iteration, or SOLVER.EPOCHS with it"),
        (("SOLVER.MAX_ITER", -3), "SOLVER.MAX_ITER is -3"),
        (("MODEL.PIXEL_MEAN", "[0.485,0.456,0.406]"), "MODEL.PIXEL_MEAN .*: expected 3 numbers on the scale of grey"),
        (("MODEL.RESNETS.DEPTH", 20), "MODEL.RESNETS.DEPTH is 20: expected one of 18, 34, 50, 101, 152"),
        (("MODEL.RESNETS.NORM", "FrozenBN"), "MODEL.RESNETS.NORM is 'FrozenBN': pretraining trains batch normalis"),
        (("MODEL.RESNETS.NORM", "GN"), "MODEL.RESNETS.NORM is 'GN': pretraining trains batch normalisation"),
        (("MODEL.RESNETS.NORM", "BatchNorm"), "MODEL.RESNETS.NORM is 'BatchNorm': expected one of '', BN"),
        (("MODEL.BACKBONE.FREEZE_AT", 2), "MODEL.BACKBONE.FREEZE_AT is 2: random layers would stay"),
        (("MODEL.BACKBONE.NAME", "vit"), "MODEL.BACKBONE.NAME is 'vit': expected one of build_resnet_backbone"),
        (("MODEL.META_ARCHITECTURE", "MoCov3"), "MODEL.META_ARCHITECTURE is 'MoCov3': expected one of .*KNNMoCo"),
        (("DATASETS.TRAIN", "folder:/x"), r"DATASETS.TRAIN is 'folder:/x': .* mean \"\('folder:/x',\)\""),
        (("DATASETS.TRAIN", "/x"), r"DATASETS.TRAIN is '/x': .* mean \"\('folder:/x',\)\""),
        (("DATASETS.TRAIN", "('folder:/x','folder:/y/../x/')"), "DATASETS.TRAIN has folder:/x more than once"),
        (TESTED, "DATASETS.TEST is .* and KNN_EVAL.BANK is '': expected images to classify and a bank"),
        (("KNN_EVAL.BANK", "toy_objects_train"), r"DATASETS.TEST is \(\) and KNN_EVAL.BANK is 'toy_objects_train'"),
        (("TEST.EVAL_PERIOD", 5), "TEST.EVAL_PERIOD is 5, but DATASETS.TEST is empty"),
        ((*DENSECL, "VIEWS.NUM_SMALL", 4), "VIEWS.NUM_SMALL 4: DenseCL has one positive"),
        ((*DENSECL, "DENSECL.WEIGHT", 1.5), "DENSECL.WEIGHT is 1.5: expected a number of at least 0, and at most 1"),
        ((*DENSECL, "DENSECL.GRID", -1), "DENSECL.GRID is -1: expected a whole number from 0 to 64"),
        (("IMPORTS", "('no_method',)"), r"IMPORTS: cannot import 'no_method' \(No module named 'no_method'\): "),
        (("IMPORTS", "('projects.No.one',)"), r"cannot import 'projects.No.one' \(No module named 'projects.No'\)"),
        (("IMPORTS", "('my_method.py',)"), "cannot import 'my_method.py' .*expected a module's dotted name"),
        (("IMPORTS", "('projects/ToyScenes',)"), "cannot import 'projects/ToyScenes' .*no module can have this name"),
        (("IMPORTS", "(3,)"), "cannot import 3"),
        (("IMPORTS", "('',)"), "cannot import ''"),
        (
            ("IMPORTS", "('projects.ToyScenes')"),
            r"command line: IMPORTS is 'projects.ToyScenes': .* mean \"\('projects.ToyScenes',\)",
        ),
    ],
)
def test_impossible_recipes_are_refused_by_name(opts, message):
    with pytest.raises(UserError, match=message) as caught:
        load(*opts)
    assert "\n" not in str(caught.value)


def test_an_optimiser_without_momentum_does_not_ask_for_one():
    assert load("SOLVER.NESTEROV", True, "SOLVER.MOMENTUM", 0, "SOLVER.OPTIMIZER", "AdamW").SOLVER.NESTEROV


def test_impossible_options_are_refused():
    with pytest.raises(UserError, match="SOLVER.IMS_PER_BATCH 256 does not divide by 3 processes"):
        load(num_gpus=3)
    with pytest.raises(UserError, match="BN_GROUP 96, but each of 8 processes runs 32 .*, such as MOCO.BN_GROUP 64;"):
        load("MOCO.BN_GROUP", 96, num_gpus=8)
    with pytest.raises(UserError, match="nowhere.yaml not found"):
        load(config_file="nowhere.yaml")


def test_whole_numbers_are_taken_where_floats_are_meant_and_iterations_by_epochs_if_both_are_typed(tmp_path):
    (tmp_path / "mine.yaml").write_text(f"_BASE_: {BASE}\nSOLVER:\n  WEIGHT_DECAY: 0\n")
    solver = load("SOLVER.BASE_LR", 1, config_file=str(tmp_path / "mine.yaml")).SOLVER
    assert [(type(value), value) for value in (solver.BASE_LR, solver.WEIGHT_DECAY)] == [(float, 1.0), (float, 0.0)]
    assert load("SOLVER.MAX_ITER", 0, "SOLVER.EPOCHS", 3).SOLVER.EPOCHS == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("SOLVER.WARMUP_ITERS", 11), "SOLVER.WARMUP_ITERS 11 is longer than the run of 10 iterations"),
        (("KNN_MOCO.WARMUP_EPOCHS", 2), "KNN_MOCO.WARMUP_EPOCHS 2, 10 iterations, do not end before .*, so L_nn never"),
        (("SOLVER.STEPS", (3, 10)), r"SOLVER.STEPS \(3, 10\): iterations \[10\] come after the end of the run"),
        (("SOLVER.STEP_EPOCHS", (1, 2)), r"SOLVER.STEP_EPOCHS \(1, 2\): iterations \[10\] come after"),
    ],
)
def test_what_would_never_happen_in_a_run_is_refused(options, message):
    steps = ("SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR", "SOLVER.STEPS", (9,))
    check_schedule(resolved(), 40)
    check_schedule(resolved(*steps, "KNN_MOCO.WARMUP_EPOCHS", 1), 40)
    check_schedule(resolved("KNN_MOCO.WEIGHT", 0.0, "KNN_MOCO.WARMUP_EPOCHS", 5), 40)
    with pytest.raises(UserError, match=message):
        check_schedule(resolved(*steps, *options), 40)


def resolved(*options: object):
    """A run of 10 iterations, 5 an epoch."""
    cfg = tiny_config(*options)
    resolve_schedule(cfg, 40)
    return cfg


@pytest.mark.parametrize("name", ["file", "file/below", "a\0b", "x" * 300])
def test_an_output_folder_that_cannot_be_is_refused(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="OUTPUT_DIR .* cannot be a folder") as caught:
        make_folder(tmp_path / name, "OUTPUT_DIR")
    assert "\n" not in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=2),
)


@given(VALUES)
def test_a_rule_tells_yes_from_no_whatever_the_value(value):
    for key in KEYS.values():
        assert key.rule is None or key.rule.holds(value) in (True, False), key.name


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-99, 99) | st.floats())
def test_ranges_hold_what_lies_inside(low, high, value):
    inside = low <= value <= high
    assert real(low, high).holds(value) == inside
    assert real(low, high, open_low=True).holds(value) == (inside and value != low)
    assert whole(low, high).holds(value) == (inside and isinstance(value, int))
    assert each(whole(low, high), rising=True).holds([value, value + 1]) == (
        inside and isinstance(value, int) and value < high
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SOLVER:\n  BASE_LRR: 0.1\n", "unknown config key SOLVER.BASE_LRR; did you mean SOLVER.BASE_LR"),
        ("_BASE_: mine.yaml\n", "_BASE_ leads back to the file itself"),
        ("OUTPUT_DIR: !!python/object/apply:os.mkdir ['{}/owned']\n", ".*could not determine a constructor"),
        *((text, "") for text in ("", "- 1\n", "_BASE_: missing.yaml\n", "_BASE_: 5\n", "SOLVER: 3\n", "a: [\n")),
    ],
)
def test_a_file_that_is_no_config_is_named(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text.replace("{}", str(tmp_path)))
    with pytest.raises(UserError, match=f"mine.yaml: {message}"):
        load(config_file=str(tmp_path / "mine.yaml"))
    assert not (tmp_path / "owned").exists()  # by code in the file


def test_missing_data_has_its_published_size_in_a_dry_run_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    cfg = load(config_file="configs/pretrain/knn_moco.yaml")
    with pytest.raises(UserError, match=f"{tmp_path}/coco/train2017"):
        count_images(cfg)
    assert count_images(cfg, assume_missing=True) == 118287


@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        ("DATASETS.TRAIN", "('folder:{}',)", "no images in {}"),
        ("DATASETS.TRAIN", "('nowhere',)", "unknown data set 'nowhere'"),
        ("DATASETS.TRAIN", "('{}',)", "unknown data set '{0}': .* write .*'folder:{0}',"),
        ("KNN_EVAL.BANK", "class_folders:{}/birds", "birds not found"),
        ("KNN_EVAL.BANK", "toy_scenes_train", "KNN_EVAL.BANK toy_scenes_train has fewer than two classes"),
    ],
)
def test_data_that_is_missing_unknown_or_without_classes_is_refused(toy_datasets, tmp_path, key, name, message):
    cfg = load(key, name.format(tmp_path), *(TESTED if key == "KNN_EVAL.BANK" else ()))
    with pytest.raises(UserError, match=message.format(tmp_path)):
        count_images(cfg) if key == "DATASETS.TRAIN" else check_evaluation_data(cfg)


@pytest.mark.parametrize("name", ["toy_scenes_train", "folder:{}/toy_scenes"])
def test_images_without_a_class_are_refused_where_a_bank_is_to_classify_them(toy_datasets, name):
    name = name.format(toy_datasets)
    cfg = load("KNN_EVAL.BANK", "toy_objects_train", "DATASETS.TEST", f"('{name}',)")
    message = f"DATASETS.TEST: images of {name} have no class .* expected a labelled data set; MONITOR.IMAGES takes"
    assert re.search(message, refusal(check_evaluation_data, cfg))
    check_evaluation_data(load("MONITOR.IMAGES", name))


def test_a_drawn_seed_is_kept_by_a_resumed_run(tmp_path):
    first = load("OUTPUT_DIR", tmp_path)
    assert first.SEED >= 0
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"SEED": first.SEED}))
    assert load("OUTPUT_DIR", tmp_path, resume=True).SEED == first.SEED
    assert load("OUTPUT_DIR", tmp_path).SEED != first.SEED


@pytest.mark.parametrize(("processes", "norm"), [(1, "BN"), (2, "naiveSyncBN")])
def test_sync_bn_becomes_what_the_cpu_has(processes, norm):
    cfg = load("MODEL.DEVICE", "cpu", config_file="configs/toy/segmentation_voc.yaml", num_gpus=processes)
    assert cfg.MODEL.RESNETS.NORM == norm


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU does both")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("VIEWS.SMALL_SIZE", 16), "views of 16 px reach res5 as a single place"),
        (("SOLVER.AMP.DTYPE", "float16"), "float16 needs a GPU: expected bfloat16"),
    ],
)
def test_what_the_cpu_cannot_do_in_16_bits_is_refused(option, message):
    load("SOLVER.AMP.ENABLED", True, "VIEWS.SMALL_SIZE", 17)
    load("SOLVER.AMP.ENABLED", True, "VIEWS.SMALL_SIZE", 16, "VIEWS.NUM_SMALL", 0)
    with pytest.raises(UserError, match=message):
        load("SOLVER.AMP.ENABLED", True, *option)


MODULE = """
from revisit.keys import declare

declare("MOCO.MINE", 0.5, "A key of my own.")
"""


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Write a module into the working directory, a folder where only IMPORTS finds it; returns the value of that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(keys, "KEYS", dict(keys.KEYS))

    def write(name: str, text: str = MODULE) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return f"('{name}',)"

    return write


def test_a_module_in_the_working_directory_adds_keys_before_the_config_is_merged(write_module):
    names = write_module("my_keys")
    assert load("MOCO.MINE", "0.25", "IMPORTS", names).MOCO.MINE == 0.25
    assert load("IMPORTS", names).MOCO.MINE == 0.5  # a second config starts from the defaults
    assert load().IMPORTS == ()


@pytest.mark.parametrize("value", ["('my_tuple',)", "[my_list]", "('json', 'my_second')"])
def test_a_config_file_inherits_imports_from_its_base_and_the_command_line_wins(value, write_module, tmp_path):
    write_module(re.search(r"my_\w+", value)[0])
    (tmp_path / "base.yaml").write_text(f"_BASE_: {BASE}\nIMPORTS: {value}\n")
    (tmp_path / "mine.yaml").write_text("_BASE_: base.yaml\nMOCO:\n  MINE: 2.0\n")
    assert load(config_file="mine.yaml").MOCO.MINE == 2.0
    assert load("IMPORTS", "('math',)", "MOCO.MINE", 3.0, config_file="mine.yaml").IMPORTS == ("math",)


@pytest.mark.parametrize(
    ("text", "error"),
    [("import no_such_package", ModuleNotFoundError), ("1 / 0", ZeroDivisionError), ("def f(:", SyntaxError)],
)
def test_what_a_modules_own_code_raises_stays_its_own(text, error, write_module):
    with pytest.raises(error):
        load("IMPORTS", write_module("my_broken", text))


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_repository_of_its_own_has_a_commit_and_no_or_a_slow_git_is_no_error(tmp_path, monkeypatch):
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

    def hang(command: list[str], timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(environment.subprocess, "run", hang)
        assert git_state(source) == unknown
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(source) == unknown


@pytest.mark.parametrize("starts", [(False, True, True), (False, True, False)])
def test_a_run_that_goes_on_adds_a_line_and_a_new_one_starts_over(tmp_path, starts):
    for again in starts:
        record_environment(tmp_path, again=again)
    written = [json.loads(line) for line in (tmp_path / "environment.json").read_text().splitlines()]
    assert written == [describe_environment()] * (3 if all(starts[1:]) else 1)
    assert written[0]["torch"] == torch.__version__ and written[0].keys() >= {"commit", "dirty", "python", "detectron2"}
