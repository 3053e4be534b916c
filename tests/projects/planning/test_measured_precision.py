"""SOLVER.MEASURE_PRECISION: measured once before a run begins, and then what the run computes in."""

import shlex
from argparse import Namespace
from itertools import cycle
from pathlib import Path

import pytest
import torch
import yaml
from commands import TINY, launch_forks
from tiny import tiny_config

from projects.Planning import measuring
from revisit.engine import precision
from revisit.engine.setup import plan, start_run

from detectron2.config import CfgNode
from detectron2.utils import comm

FLOAT, LAST, BFLOAT = measuring.CANDIDATES
AUTO = ("SOLVER.MEASURE_PRECISION", True, "VIEWS.SMALL_SIZE", 24)  # in smaller views bfloat16 is refused
SHORT = ("SOLVER.MAX_ITER", 2)


def pretend(patch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Steps are taken as always, and said to have lasted so long, by candidate."""
    take, said = measuring.seconds_of, cycle(seconds)
    patch.setattr(measuring, "seconds_of", lambda step: [take(step), next(said)][1])


def decision(cfg: CfgNode) -> tuple:
    return cfg.SOLVER.PRECISION, cfg.SOLVER.AMP.ENABLED, cfg.SOLVER.AMP.DTYPE, cfg.MODEL.CHANNELS_LAST


@pytest.mark.parametrize(
    ("speeds", "name"),
    [
        *(((100, 104, 104), FLOAT), ((100, 104, 106), BFLOAT)),
        *(((100, 110, 114), LAST), ((100, 80, 150), BFLOAT)),
    ],
)
def test_the_fastest_is_chosen_and_the_more_exact_one_where_it_is_not_clearly_so(speeds, name):
    assert measuring.choose(dict(zip(measuring.CANDIDATES, speeds, strict=True))) == name


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
    args = Namespace(
        config_file="configs/toy/pretrain.yaml", opts=opts, resume=resume, eval_only=False, dry_run=False, accept=()
    )
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
