"""SOLVER.PRECISION by its rule, and what a run then computes in."""

from pathlib import Path

import pytest
import torch
from runs import train
from tiny import tiny_config
from trees import refused

from revisit.engine import launch, precision
from revisit.engine.setup import make_config
from revisit.keys import Facts, resolve_auto_values

from detectron2.config import CfgNode

OWN = "configs/own_images/pretrain.yaml"
BY_HAND = ("SOLVER.AMP.ENABLED", True, "MODEL.CHANNELS_LAST", True)
SHORT = ("SOLVER.MAX_ITER", 2)


def decision(cfg: CfgNode) -> tuple:
    return cfg.SOLVER.PRECISION, cfg.SOLVER.AMP.ENABLED, cfg.SOLVER.AMP.DTYPE, cfg.MODEL.CHANNELS_LAST


def settled(output: Path, *opts: str, resume: bool = False, config_file: str = OWN) -> tuple:
    return decision(make_config(config_file, ["OUTPUT_DIR", str(output), *opts], resume=resume))


RULE = [  # device, whether it computes bfloat16, recipe; AMP.ENABLED and CHANNELS_LAST
    ("cpu", True, "pretrain/knn_moco", False, False),
    ("cuda", True, "pretrain/knn_moco", True, True),
    ("cuda", False, "pretrain/knn_moco", False, True),
    ("cuda", True, "toy/detection", False, False),
    ("cpu", True, "own_images/pretrain", True, True),
    ("cpu", False, "own_images/pretrain", False, True),
]


@pytest.mark.parametrize(("device", "has_instructions", "recipe", "enabled", "channels_last"), RULE)
def test_auto_is_bfloat16_where_the_device_computes_it(
    monkeypatch, device, has_instructions, recipe, enabled, channels_last
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    monkeypatch.setattr(precision, "computes_bfloat16", lambda _: has_instructions)
    cfg = make_config(f"configs/{recipe}.yaml", ["MODEL.DEVICE", device])
    assert decision(cfg) == ("", enabled, cfg.SOLVER.AMP.DTYPE, channels_last)


@pytest.mark.parametrize(("flags", "has"), [("fma avx512_bf16", True), ("amx_bf16", True), ("avx512f", False)])
def test_a_cpu_says_by_its_flags_whether_it_computes_bfloat16(monkeypatch, tmp_path, flags, has):
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {flags} sse\n")
    monkeypatch.setattr(precision, "CPU_FLAGS", tmp_path / "cpuinfo")
    assert precision.computes_bfloat16("cpu") == has
    monkeypatch.setattr(precision, "CPU_FLAGS", tmp_path / "nowhere")
    assert not precision.computes_bfloat16("cpu")


def test_apples_gpu_computes_in_float32_in_one_process():
    assert not precision.computes_bfloat16("mps")
    refused(
        "MODEL.DEVICE mps computes in float32", precision.check_precision, tiny_config(*BY_HAND, "MODEL.DEVICE", "mps")
    )
    refused("MODEL.DEVICE mps, which one process", launch.launch, print, launch.Processes(2), device="mps")
    launch.launch(print, launch.Processes(1), device="mps")


def test_auto_is_float32_where_the_cpu_computes_bfloat16_wrong(monkeypatch, caplog):
    monkeypatch.setattr(precision, "computes_bfloat16", lambda _: True)
    cfg = tiny_config("SOLVER.PRECISION", "auto")
    with caplog.at_level("INFO"):
        resolve_auto_values(cfg, Facts())
    assert decision(cfg) == ("", False, "bfloat16", True) and "views of 16 px" in caplog.text


def test_a_resumed_run_keeps_what_its_checkpoint_or_its_config_says(monkeypatch, toy_datasets, tmp_path):
    monkeypatch.setattr(precision, "computes_bfloat16", lambda _: False)
    decided = settled(tmp_path)
    assert settled(tmp_path, resume=True) == decided == ("", False, "bfloat16", True)
    (tmp_path / "config.yaml").write_text(make_config(OWN, [*BY_HAND, "SOLVER.PRECISION", ""]).dump())
    assert settled(tmp_path, resume=True) == ("", True, "bfloat16", True)
    train(tmp_path, "MODEL.CHANNELS_LAST", False, *SHORT)
    assert settled(tmp_path, resume=True) == ("", False, "bfloat16", False)
    assert settled(tmp_path, "MODEL.CHANNELS_LAST", "True", resume=True) == ("", False, "bfloat16", True)
    assert settled(tmp_path) == decided  # another run


def test_what_is_typed_or_stated_wins_over_auto_of_the_recipe(tmp_path):
    assert settled(tmp_path, "SOLVER.AMP.ENABLED", "True") == ("", True, "bfloat16", False)
    assert settled(tmp_path, "SOLVER.AMP.ENABLED", "False") == ("", False, "bfloat16", False)
    assert settled(tmp_path, "SOLVER.PRECISION", "") == ("", False, "bfloat16", False)
    assert settled(tmp_path, "SOLVER.PRECISION", "float32") == ("", False, "bfloat16", False)
    assert settled(tmp_path, "SOLVER.PRECISION", "bfloat16") == ("", True, "bfloat16", False)
    (tmp_path / "by_hand.yaml").write_text(f"_BASE_: {Path(OWN).resolve()}\nSOLVER: {{AMP: {{ENABLED: True}}}}")
    (tmp_path / "silent.yaml").write_text("_BASE_: by_hand.yaml\nSEED: 1")
    for name in ("by_hand.yaml", "silent.yaml"):
        assert settled(tmp_path, config_file=str(tmp_path / name)) == ("", True, "bfloat16", False)
