"""What starts are called, which options a zoo's detector brings, and what of a whole detector is kept."""

import logging
from pathlib import Path

import pytest
import torch
from trees import refusal, refused

from projects.CompareStarts import probe_and_budget as choice
from projects.CompareStarts.comparison import preparation
from projects.CompareStarts.starts import RANDOM, OnTheseImages, read_starts
from projects.CompareStarts.task import read_task
from projects.CompareStarts.trial import Trial
from projects.Weights.zoo_options import zoo_options
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.flags import write_flags
from revisit.data.sources.catalog import get_records
from revisit.engine.setup import make_config

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.modeling import build_model

CONTINUE = "configs/toy/continue.yaml"
DETECTION = "configs/toy/faster_rcnn_fpn.yaml"
NARROW = [
    "MODEL.RESNETS.STEM_OUT_CHANNELS",
    "8",
    "MODEL.RESNETS.RES2_OUT_CHANNELS",
    "8",
    "MODEL.ROI_BOX_HEAD.FC_DIM",
    "8",
]


@pytest.fixture
def cfg(toy_datasets) -> CfgNode:
    return make_config(DETECTION, NARROW)


def titles(*words: str) -> list[str]:
    return list(read_starts(words, CfgNode(), ""))


def test_starts_are_called_by_the_ends_of_their_paths():
    assert titles("random", "x/half_{seed}.pth", "x/all{seed}.pth") == [RANDOM, "half", "all"]
    assert titles("x/half_{seed}.pth", "x/half.pth") == ["half_{seed}", "half"]
    assert titles("a/half_{seed}.pth", "b/half_{seed}.pth") == ["a/half", "b/half"]
    assert titles("run:output/detection", "run:other/detection/model_best.pth", "x.pth") == [
        "output/detection", "other/detection", f"{Path.cwd().name}/x",
    ]  # fmt: skip
    assert titles("run:x/r", "run:x/r/model_best.pth") == ["r", "model_best.pth"]
    assert titles("run:x/r", "x/r.pth", "y.pth") == ["r", "r.pth", "y.pth"]
    for twice in (["random", "random"], ["x/half.pth", "x/../x/half.pth"]):
        assert "one start twice" in refusal(read_starts, twice, CfgNode(), "")


def test_a_backbone_is_continued_without_labels_before_it_is_a_start(cfg, tmp_path):
    file = tmp_path / "backbone.pth"
    file.touch()
    assert "flags next to it" in refusal(read_starts, [f"continue:{file}"], cfg, CONTINUE)
    write_flags(file, {"MODEL.RESNETS.DEPTH": 18}, "a test")
    starts = read_starts(["random", f"continue:{file}"], cfg, CONTINUE)
    assert list(starts) == [RANDOM, "backbone, continued"]
    task = read_task(DETECTION, NARROW, frozen=False)
    job = Trial(task, "title", starts["backbone, continued"], 8, 2).job(tmp_path)
    (needed,) = job.needs
    command = " ".join(needed.commands[0])
    assert isinstance(starts["backbone, continued"].source, OnTheseImages)
    assert needed.commands[1][0] == "tools/convert_to_d2.py"
    assert all(part in command for part in (CONTINUE, f"MODEL.WEIGHTS {file}", "MODEL.RESNETS.DEPTH 18", "SEED 2"))
    assert "DATASETS.TRAIN ('toy_coco_train',)" in command and job.commands[0][-1] == str(needed.result)
    assert [job.result for job in preparation(starts, [2], tmp_path)] == [needed.result]
    needed.claim()
    file.write_bytes(b"other weights")
    same_names = Trial(task, "title", starts["backbone, continued"], 8, 2).job(tmp_path)
    assert same_names.facts != job.facts
    refused(r"made from other data \(backbone.pth\)", same_names.needs[0].claim)


def test_a_budget_runs_what_the_starts_of_a_later_seed_need(cfg, tmp_path, monkeypatch):
    starts = read_starts(["random", "pretrain:toy/demo.yaml"], cfg, CONTINUE)
    task = read_task(DETECTION, NARROW, frozen=False)
    jobs = [Trial(task, title, start, 8, 2).job(tmp_path) for title, start in starts.items()]
    ran = []
    monkeypatch.setattr(choice, "run_jobs", lambda jobs, *_: ran.extend(jobs))
    choice.run_claimed(jobs, 1)
    assert [job.result for job in ran] == [jobs[0].result, jobs[1].needs[0].result, jobs[1].result]


def test_a_detector_of_the_zoos_brings_its_pixels_strides_and_frozen_batch_norm(cfg, tmp_path):
    tensors = build_model(cfg).state_dict()
    file = tmp_path / "model_final.pth"
    torch.save({"model": tensors, "__author__": "somebody"}, file)
    words = zoo_options(file, cfg)  # batch norm as drawn is folded: means of 0, variances of 1
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["INPUT.FORMAT"] == "BGR" and options["MODEL.RESNETS.NORM"] == "FrozenBN"
    assert options["MODEL.PIXEL_STD"] == "[1.0, 1.0, 1.0]"
    tensors["backbone.bottom_up.stem.conv1.norm.running_mean"] += 1
    torch.save({"model": tensors}, file)
    assert zoo_options(file, cfg) == ()


@pytest.mark.parametrize("same_classes", [True, False])
def test_of_a_whole_detector_all_is_kept_but_the_predictor_of_other_classes(cfg, same_classes, tmp_path, caplog):
    cfg.OUTPUT_DIR = str(tmp_path)
    get_records("toy_coco_train")  # whose classes a checkpoint has
    model = build_model(cfg)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.uniform_(0.1, 0.9, generator=torch.Generator().manual_seed(1))
    RevisitCheckpointer(model, cfg).save("model_final")
    content = torch.load(tmp_path / "model_final.pth", weights_only=True)
    assert content["classes"] == MetadataCatalog.get("toy_coco_train").thing_classes
    if not same_classes:
        content["classes"] = [f"other {name}" for name in content["classes"]]
        torch.save(content, tmp_path / "model_final.pth")
    task = read_task(DETECTION, NARROW, frozen=False)
    with caplog.at_level(logging.INFO):
        loaded, _ = Trial(task, RANDOM, read_starts(["random"], cfg, CONTINUE)[RANDOM], 8, 1).network(
            tmp_path / "model_final.pth"
        )
    new = {key for key, value in loaded.state_dict().items() if not torch.equal(value, model.state_dict()[key])}
    assert all(key.startswith("roi_heads.box_predictor.") for key in new)
    assert len(new) == (0 if same_classes else 4)
    kept = (
        "roi_heads.box_predictor 4 of 4" if same_classes else "roi_heads.box_predictor 0 of 4; new: roi_heads.box_pred"
    )
    assert kept in caplog.text and "proposal_generator 6 of 6" in caplog.text
