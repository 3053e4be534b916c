"""SOLVER.PRECISION: by a rule, or measured once before a run begins, and then what the run computes in."""

import shlex
from argparse import Namespace
from itertools import cycle
from pathlib import Path

import pytest
import torch
import yaml
from commands import TINY, launch_forks
from runs import run_config, train
from tiny import tiny_config

from revisit.engine import measuring, precision
from revisit.engine.setup import make_config, plan, start_run
from revisit.keys import Facts, resolve_auto_values

from detectron2.config import CfgNode
from detectron2.utils import comm

FLOAT, LAST, BFLOAT = measuring.CANDIDATES
OWN = "configs/own_images/pretrain.yaml"
AUTO = ("SOLVER.MEASURE_PRECISION", True, "VIEWS.SMALL_SIZE", 24)  # in smaller views bfloat16 is refused
BY_HAND = ("SOLVER.AMP.ENABLED", True, "MODEL.CHANNELS_LAST", True)
SHORT = ("SOLVER.MAX_ITER", 2)


def pretend(patch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Steps are taken as always, and said to have lasted so long, by candidate."""
    take, said = measuring.seconds_of, cycle(seconds)
    patch.setattr(measuring, "seconds_of", lambda step: [take(step), next(said)][1])


def decision(cfg: CfgNode) -> tuple:
    return cfg.SOLVER.PRECISION, cfg.SOLVER.AMP.ENABLED, cfg.SOLVER.AMP.DTYPE, cfg.MODEL.CHANNELS_LAST


def settled(output: Path, *opts: str, resume: bool = False, config_file: str = OWN) -> tuple:
    return decision(make_config(config_file, ["OUTPUT_DIR", str(output), *opts], resume=resume))


@pytest.mark.parametrize(
    ("speeds", "name"),
    [
        *(((100, 104, 104), FLOAT), ((100, 104, 106), BFLOAT)),
        *(((100, 110, 114), LAST), ((100, 80, 150), BFLOAT)),
    ],
)
def test_the_fastest_is_chosen_and_the_more_exact_one_where_it_is_not_clearly_so(speeds, name):
    assert measuring.choose(dict(zip(measuring.CANDIDATES, speeds, strict=True))) == name


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


def test_auto_is_float32_where_the_cpu_computes_bfloat16_wrong(monkeypatch, caplog):
    monkeypatch.setattr(precision, "computes_bfloat16", lambda _: True)
    cfg = tiny_config("SOLVER.PRECISION", "auto")
    with caplog.at_level("INFO"):
        resolve_auto_values(cfg, Facts())
    assert decision(cfg) == ("", False, "bfloat16", True) and "views of 16 px" in caplog.text


def test_what_does_not_fit_into_memory_is_left_out_but_not_the_last(monkeypatch):
    build, fitting = measuring._step_on_noise, {BFLOAT}

    def build_small(cfg: CfgNode) -> object:
        if (BFLOAT if cfg.SOLVER.AMP.ENABLED else FLOAT) not in fitting:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return build(cfg)

    monkeypatch.setattr(measuring, "_step_on_noise", build_small)
    assert measuring.choose_precision(tiny_config(*AUTO))["SOLVER.AMP.ENABLED"]
    fitting.clear()
    with pytest.raises(torch.OutOfMemoryError):
        measuring.choose_precision(tiny_config(*AUTO))


def test_the_slowest_seconds_become_images_per_second_and_the_decision(monkeypatch, caplog):
    pretend(monkeypatch, 8, 4, 2)
    cfg = tiny_config(*AUTO, "SOLVER.AMP.DTYPE", "float16")
    with caplog.at_level("INFO"):
        chosen = measuring.choose_precision(cfg)
    assert decision(cfg) == ("", False, "float16", False)
    assert chosen == dict(zip(precision.PARTS, (True, "bfloat16", True), strict=True))
    assert f"{FLOAT} 1.0, {LAST} 2.0, {BFLOAT} 4.0. This run computes in {BFLOAT}" in caplog.text
    assert "M parameters" not in caplog.text


@pytest.mark.parametrize(("share", "is_said"), [(0.95, True), (0.5, False)])
def test_a_step_that_waits_for_its_launches_is_offered_to_be_compiled(share, is_said, monkeypatch, caplog):
    monkeypatch.setattr(measuring, "_launched_and_done", lambda step: (share, 1.0))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    with caplog.at_level("INFO"):
        measuring.choose_precision(tiny_config(*AUTO))
    assert ("MODEL.COMPILE True" in caplog.text) == is_said


def test_bfloat16_is_left_out_where_the_cpu_computes_it_wrong(monkeypatch, caplog):
    pretend(monkeypatch, 4, 4)
    with caplog.at_level("INFO"):
        measuring.choose_precision(tiny_config())
    assert f"leaves out {BFLOAT}: views of 16 px" in caplog.text and "computes in float32" in caplog.text


def decide(output: Path, *, resume: bool = False) -> tuple:
    """What every process of tools/train_net.py does before it builds a network; returns the decision."""
    words = f"{TINY.replace('SOLVER.AMP.ENABLED False', '')} KNN_EVAL.BANK '' KNN_EVAL.LINEAR False DATASETS.TEST ()"
    opts = [*shlex.split(words), *map(str, (*AUTO, *SHORT)), "OUTPUT_DIR", str(output)]
    args = Namespace(config_file="configs/toy/pretrain.yaml", opts=opts, resume=resume, eval_only=False, dry_run=False)
    with start_run(plan(args, comm.get_world_size()), args) as cfg:
        return decision(cfg)


def begin_twice(output: Path) -> list[tuple]:
    with pytest.MonkeyPatch.context() as patch:
        # Alone, the first process would take bfloat16, and the second float32.
        pretend(patch, *((3, 2, 1), (1, 1, 3))[comm.get_rank()])
        begun = decide(output)
        comm.synchronize()  # the main process has written config.yaml
        patch.setattr(measuring, "measure_speeds", None)
        return [begun, decide(output, resume=True)]


def test_two_processes_decide_alike_and_with_resume_none_measures(toy_datasets, tmp_path):
    decided = ("", False, "bfloat16", True)
    assert launch_forks(begin_twice, 2, tmp_path) == [[decided] * 2] * 2
    assert decision(CfgNode(yaml.safe_load((tmp_path / "config.yaml").read_text()))) == decided


def test_a_resumed_run_keeps_what_its_checkpoint_or_its_config_says(monkeypatch, toy_datasets, tmp_path):
    monkeypatch.setattr(precision, "computes_bfloat16", lambda _: False)
    decided = settled(tmp_path)
    assert settled(tmp_path, resume=True) == decided == ("", False, "bfloat16", True)
    (tmp_path / "config.yaml").write_text(run_config(tmp_path, *BY_HAND).dump())
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
