"""scaling.py: its counts against known ones, its formulas by hand, and the README against its output."""

from argparse import Namespace

import pytest
from commands import ROOT, one_line_error, run
from tiny import tiny_config

from projects.Benchmarks import scaling
from projects.Benchmarks.scaling import flops_per_image, head_flops_per_image
from revisit.engine.dry_run import build_meta_model

COMMAND = "python projects/Benchmarks/scaling.py"


def test_the_document_shows_what_the_command_prints(tmp_path):
    text = run(f"{COMMAND} --config-file configs/pretrain/knn_moco.yaml", tmp_path)
    printed = [line for line in text.splitlines() if line.startswith("|")]
    document = (ROOT / "projects/Benchmarks/README.md").read_text()
    assert len(printed) > 20 and set(printed) <= set(document.splitlines())


def test_arithmetic_of_resnet50_is_the_published_one():
    """4.09 G multiply-adds at 224 px: the anchor once, positives three times (forward, and backward twice that)."""
    backbone = {"DEPTH": 50, "RES2_OUT_CHANNELS": 256, "STEM_OUT_CHANNELS": 64}
    options = [part for key, value in backbone.items() for part in (f"MODEL.RESNETS.{key}", value)]
    cfg = tiny_config(*options, "VIEWS.LARGE_SIZE", 224, "VIEWS.SMALL_SIZE", 224, "VIEWS.NUM_SMALL", 1)
    model = build_meta_model(cfg)
    assert flops_per_image(cfg, model) == pytest.approx(2 * 4.09e9 * (1 + 3 + 3), rel=0.02)
    rows, c, cg = cfg.MOCO.QUEUE_SIZE, cfg.MOCO.EMBEDDING_DIM, 2048
    assert head_flops_per_image(cfg, model) == 2 * rows * 2 * (2 * c + cg)


def test_cells_are_scored_against_their_queue_and_matched_with_the_keys():
    cfg = tiny_config("MODEL.META_ARCHITECTURE", "DenseCL", "VIEWS.NUM_SMALL", 0, "DENSECL.GRID", 3)
    rows, c, cg = cfg.MOCO.QUEUE_SIZE, cfg.MOCO.EMBEDDING_DIM, 64
    assert head_flops_per_image(cfg, build_meta_model(cfg)) == 2 * (rows * (1 + 9) * 2 * c + 9 * 9 * cg)


def test_formulas_by_hand():
    """4 processes of 2 images: what travels and what is kept, from the parameters alone."""
    cfg = tiny_config("SOLVER.IMS_PER_BATCH", 8)
    assumed = Namespace(efficiency=0.5, core_rate=10, image_bytes=1000, storage=1e5)
    figures = scaling.needs(cfg, 4, scaling.Gpu(1e12, 1, 1e6, 2), assumed)
    trained = sum(p.numel() for p in build_meta_model(cfg).parameters() if p.requires_grad)
    ms, use = figures["ms"], figures[scaling.USE]
    assert ms["gradients"] == pytest.approx(1000 * 2 * 3 / 4 * 4 * trained / 1e6)
    assert ms["shuffled crops"] == pytest.approx(1000 * 3 / 4 * 2 * 3 * 32 * 32 / 1e6)
    assert ms["keys"] == pytest.approx(1000 * 3 * 2 * 4 * (16 + 64) / 1e6)
    seconds = ms["arithmetic of a step"] / 1000
    assert figures["per second"]["images, by arithmetic"] == pytest.approx(8 / seconds)
    assert use["CPU cores"] == pytest.approx(100 * 2 / seconds / 10 / 2)
    assert use["storage"] == pytest.approx(100 * 2 / seconds * 1000 / 1e5)


def test_options_change_the_columns(tmp_path):
    text = run(f"{COMMAND} --machine 64 H200 --batch-per-gpu 64 --images 1e8 SOLVER.EPOCHS 100", tmp_path)
    assert "100 epochs" in text and "| images (per GPU) | 64 |" in text and "| 100,000,000 |" in text


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--machine 8 X200", "--machine 8 X200: expected a number and one of V100, A100, H200"),
        ("--config-file configs/toy/detection.yaml", "trains GeneralizedRCNN: expected a pretraining recipe"),
    ],
)
def test_mistakes_are_one_line(tmp_path, options, complaint):
    assert complaint in one_line_error(f"{COMMAND} {options}", tmp_path)
