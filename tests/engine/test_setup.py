"""Every impossible recipe is refused with one line before any process starts."""

from argparse import Namespace

import pytest
import torch
import yaml

from revisit.engine.setup import check_evaluation_data, count_images, load_config
from revisit.errors import UserError

DENSECL = ("MODEL.META_ARCHITECTURE", "DenseCL", "VIEWS.NUM_SMALL", 0)


def arguments(*opts: object, config_file: str = "configs/Base-Pretrain.yaml", num_gpus: int = 1, resume: bool = False):
    return Namespace(
        config_file=config_file, opts=[str(o) for o in opts], num_gpus=num_gpus, num_machines=1, resume=resume
    )


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (("VIEWS.POLICY", "fancy"), "VIEWS.POLICY is 'fancy', expected one of standard, autoaugment"),
        (("KNN_MOCO.MINING", "sideways"), "KNN_MOCO.MINING is 'sideways'"),
        (("MODEL.RESNETS.STEM_TYPE", "deep"), "MODEL.RESNETS.STEM_TYPE is 'deep'"),
        (("MOCO.QUEUE_SIZE", 255), "MOCO.QUEUE_SIZE 255 is smaller than the global batch of 256"),
        (("KNN_MOCO.NUM_NEIGHBORS", 70000), r"KNN_MOCO.NUM_NEIGHBORS 70000 does not lie in 1..MOCO.QUEUE_SIZE"),
        (("KNN_MOCO.NUM_NEIGHBORS", 0), "KNN_MOCO.NUM_NEIGHBORS 0"),
        (("MOCO.BN_SPLITS", 3), "MOCO.BN_SPLITS 3 does not divide the 256 images"),
        (("MOCO.TEMPERATURE", 0.0), "MOCO.TEMPERATURE"),
        (("MOCO.MOMENTUM", 1.0), "MOCO.MOMENTUM"),
        (("VIEWS.SMALL_SCALE", "(0.2,0.1)"), "VIEWS.SMALL_SCALE"),
        (("VIEWS.MIN_OVERLAP", 1.5), "VIEWS.MIN_OVERLAP"),
        (("VIEWS.MAX_IOU", -0.1), "VIEWS.MAX_IOU"),
        (("SOLVER.AMP.DTYPE", "float8"), "SOLVER.AMP.DTYPE is 'float8', expected one of bfloat16, float16"),
        (("SOLVER.ACCUMULATION_STEPS", 3), "SOLVER.ACCUMULATION_STEPS 3 does not divide the 256 images"),
        (("SOLVER.ACCUMULATION_STEPS", 0), "SOLVER.ACCUMULATION_STEPS 0"),
        (("SOLVER.ACCUMULATION_STEPS", 64, "MOCO.BN_SPLITS", 8), "MOCO.BN_SPLITS 8 does not divide the 4 images"),
        (("SOLVER.ACCUMULATION_STEPS", 2, "KNN_MOCO.ENQUEUE_FIRST", True), "expected SOLVER.ACCUMULATION_STEPS 1"),
        (("TEST.PRECISE_BN.ENABLED", True), "TEST.PRECISE_BN.ENABLED True: it is for finetuning"),
        (("INPUT.FORMAT", "BGR"), "INPUT.FORMAT BGR"),
        (("SOLVER.CHECKPOINTS_KEPT", -1), "SOLVER.CHECKPOINTS_KEPT -1: expected 0 or more"),
        (("MOCO.TEMPRATURE", 0.1), "unknown config key MOCO.TEMPRATURE; did you mean MOCO.TEMPERATURE"),
        (("MOCO.QUEUE_SIZE", "many"), "MOCO.QUEUE_SIZE"),
        (("MOCO.QUEUE_SIZE",), "pairs KEY VALUE"),
        (("MODEL.WEIGHTS", "nowhere.pth"), "MODEL.WEIGHTS nowhere.pth not found"),
        ((*DENSECL, "VIEWS.NUM_SMALL", 4), "VIEWS.NUM_SMALL 4: DenseCL has one positive"),
        ((*DENSECL, "DENSECL.WEIGHT", 1.5), r"DENSECL.WEIGHT 1.5 does not lie in \[0, 1\]"),
        ((*DENSECL, "DENSECL.GRID", -1), "DENSECL.GRID -1: expected 0"),
    ],
)
def test_impossible_recipes_are_refused_by_name(opts, message):
    with pytest.raises(UserError, match=message) as caught:
        load_config(arguments(*opts))
    assert "\n" not in str(caught.value)


def test_a_batch_that_does_not_divide_by_the_processes_is_refused():
    with pytest.raises(UserError, match="SOLVER.IMS_PER_BATCH 256 does not divide by 3 processes"):
        load_config(arguments(num_gpus=3))


def test_a_config_file_runs_no_code(tmp_path):
    (tmp_path / "mine.yaml").write_text(f"OUTPUT_DIR: !!python/object/apply:os.mkdir ['{tmp_path}/owned']\n")
    with pytest.raises(UserError, match="mine.yaml: .*could not determine a constructor"):
        load_config(arguments(config_file=str(tmp_path / "mine.yaml")))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SOLVER:\n  BASE_LRR: 0.1\n", "unknown config key SOLVER.BASE_LRR; did you mean SOLVER.BASE_LR"),
        ("_BASE_: mine.yaml\n", "_BASE_ leads back to the file itself"),
        *((text, "") for text in ("", "- 1\n", "_BASE_: missing.yaml\n", "_BASE_: 5\n", "SOLVER: 3\n", "a: [\n")),
    ],
)
def test_a_file_that_is_no_config_is_named(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=f"mine.yaml: {message}"):
        load_config(arguments(config_file=str(tmp_path / "mine.yaml")))


def test_a_missing_config_file_is_named():
    with pytest.raises(UserError, match="nowhere.yaml not found"):
        load_config(arguments(config_file="nowhere.yaml"))


def test_missing_data_names_the_folder_the_variable_and_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    cfg = load_config(arguments(config_file="configs/pretrain/knn_moco.yaml"))
    with pytest.raises(UserError, match="make_toy_scenes.py") as caught:
        count_images(cfg)
    assert str(tmp_path / "coco" / "train2017") in str(caught.value)
    assert "DETECTRON2_DATASETS" in str(caught.value)
    assert count_images(cfg, assume_missing=True) == 118287  # the published size, for a dry run


def test_an_empty_folder_and_an_unknown_data_set_are_refused(tmp_path):
    for name, message in (
        (f"folder:{tmp_path}", f"no images in {tmp_path}"),
        ("nowhere", "unknown data set 'nowhere'"),
    ):
        cfg = load_config(arguments("DATASETS.TRAIN", f"('{name}',)"))
        with pytest.raises(UserError, match=message):
            count_images(cfg)


def test_missing_evaluation_data_is_refused_before_training(tmp_path):
    cfg = load_config(arguments("KNN_EVAL.BANK", f"class_folders:{tmp_path / 'birds'}"))
    with pytest.raises(UserError, match="birds not found"):
        check_evaluation_data(cfg)


def test_a_bank_without_classes_is_refused_before_training(toy_datasets):
    cfg = load_config(arguments("KNN_EVAL.BANK", "toy_scenes_train"))
    with pytest.raises(UserError, match="KNN_EVAL.BANK toy_scenes_train has fewer than two classes"):
        check_evaluation_data(cfg)


def test_a_drawn_seed_is_kept_by_a_resumed_run(tmp_path):
    first = load_config(arguments("OUTPUT_DIR", tmp_path))
    assert first.SEED >= 0
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"SEED": first.SEED}))
    assert load_config(arguments("OUTPUT_DIR", tmp_path, resume=True)).SEED == first.SEED
    assert load_config(arguments("OUTPUT_DIR", tmp_path)).SEED != first.SEED


@pytest.mark.parametrize(("processes", "norm"), [(1, "BN"), (2, "naiveSyncBN")])
def test_sync_bn_becomes_what_the_cpu_has(processes, norm):
    cfg = load_config(arguments("MODEL.DEVICE", "cpu", "MODEL.RESNETS.NORM", "SyncBN", num_gpus=processes))
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
    load_config(arguments("SOLVER.AMP.ENABLED", True, "VIEWS.SMALL_SIZE", 17))
    load_config(arguments("SOLVER.AMP.ENABLED", True, "VIEWS.SMALL_SIZE", 16, "VIEWS.NUM_SMALL", 0))
    with pytest.raises(UserError, match=message):
        load_config(arguments("SOLVER.AMP.ENABLED", True, *option))
