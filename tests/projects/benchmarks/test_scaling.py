"""scaling.py: its counts against known ones, its formulas by hand, and the README against its output."""

from __future__ import annotations

import pytest
from commands import ROOT, one_line_error, run
from tiny import tiny_config

from projects.Benchmarks import scaling
from projects.Benchmarks.network_flops import flops_per_image, head_flops_per_image
from revisit.engine.memory_estimate import build_meta_model


def lines(text):
    return [line for line in text.splitlines() if line.startswith("|")]


def test_the_document_shows_what_the_command_prints(tmp_path):
    document = (ROOT / "projects/Benchmarks/README.md").read_text()
    printed = lines(run("python projects/Benchmarks/scaling.py --config-file configs/pretrain/knn_moco.yaml", tmp_path))
    assert len(printed) > 20 and set(printed) <= set(document.splitlines())


def test_arithmetic_of_resnet50_is_the_published_one():
    """4.09 G multiply-adds at 224 px: the anchor once, positives three times (forward, and backward twice that)."""
    backbone = ("DEPTH", 50), ("RES2_OUT_CHANNELS", 256), ("STEM_OUT_CHANNELS", 64)
    views = ("LARGE_SIZE", 224), ("SMALL_SIZE", 224), ("NUM_SMALL", 1)
    options = [(f"MODEL.RESNETS.{key}", value) for key, value in backbone] + [(f"VIEWS.{k}", v) for k, v in views]
    cfg = tiny_config(*(part for pair in options for part in pair))
    model = build_meta_model(cfg)
    assert flops_per_image(cfg, model) == pytest.approx(2 * 4.09e9 * (1 + 3 + 3), rel=0.02)
    rows, c, cg = cfg.MOCO.QUEUE_SIZE, cfg.MOCO.EMBEDDING_DIM, 2048
    assert head_flops_per_image(cfg, model) == 2 * rows * 2 * (2 * c + cg)


def test_formulas_by_hand():
    """4 processes of 2 images: what travels and what is kept, from the parameters alone."""
    cfg = tiny_config("SOLVER.IMS_PER_BATCH", 8)
    gpu, assumed = scaling.Gpu(1e12, 1, 1e6, 2), scaling.Assumed(0.5, 10, 1000, 1e5)
    need = scaling.need(cfg, 4, gpu, assumed)
    model = build_meta_model(cfg)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert need.gradients == pytest.approx(2 * 3 / 4 * 4 * trained / 1e6)
    assert need.crops == pytest.approx(3 / 4 * 2 * 3 * 32 * 32 / 1e6)
    assert need.keys == pytest.approx(3 * 2 * 4 * (16 + 64) / 1e6)
    assert need.images == pytest.approx(8 / need.compute)
    assert need.use["CPU cores"] == pytest.approx(2 / need.compute / 10 / 2)
    assert need.use["storage"] == pytest.approx(2 / need.compute * 1000 / 1e5)


def test_options_change_the_columns(tmp_path):
    text = run(
        "python projects/Benchmarks/scaling.py --machine 64 H200 --batch-per-gpu 64 --images 1e8 SOLVER.EPOCHS 100",
        tmp_path,
    )
    assert "100 epochs" in text and "| images per GPU | 64 |" in text and "| 100,000,000 |" in text


def test_mistakes_are_one_line(tmp_path):
    line = one_line_error("python projects/Benchmarks/scaling.py --machine 8 X200", tmp_path)
    assert "--machine 8 X200: expected a number and one of V100, A100, H200" in line
    line = one_line_error("python projects/Benchmarks/scaling.py --config-file configs/toy/detection.yaml", tmp_path)
    assert "trains GeneralizedRCNN: expected a pretraining recipe" in line
