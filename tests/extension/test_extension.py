"""docs/extending.md's worked example: a method outside of the tree, from its config to its weights."""

import json
import sys
from pathlib import Path

import pytest
import torch
from commands import TINY, one_line_error, run
from runs import assert_same, load
from torch.nn.functional import normalize

from revisit.checkpoint.metrics_file import read_metrics

EXAMPLE = Path(__file__).parent
sys.path.append(str(EXAMPLE))  # for the forks too, as PYTHONPATH is for a user
TRAIN = f"python tools/train_net.py --config-file {EXAMPLE}/simsiam.yaml"


def train(root: Path, output: Path, options: str = "", flags: str = "") -> str:
    return run(f"{TRAIN} {flags} {TINY} SEED 2 SOLVER.MAX_ITER 6 OUTPUT_DIR {output} {options}", root)


@pytest.fixture(scope="module")
def finished(toy_root, tmp_path_factory) -> Path:
    """Six iterations by two processes, with a checkpoint after three."""
    output = tmp_path_factory.mktemp("simsiam")
    train(toy_root, output, "SOLVER.CHECKPOINT_PERIOD 3", "--num-gpus 2")
    return output


def test_it_is_planned_with_its_own_words(toy_root, tmp_path):
    train(toy_root, tmp_path, flags="--dry-run")
    recipe = json.loads((tmp_path / "dry_run.json").read_text())
    assert (recipe["architecture"], recipe["lambda"], recipe["keys"]["SIMSIAM.PREDICTOR_DIM"]) == ("SimSiam", 0, 512)
    assert recipe["shapes"]["predictor"] == [[16, 2048]] and recipe["memory_gib_per_process"]["total"] > 0
    assert (tmp_path / "views.png").is_file()


def test_it_trains_and_resumes_to_the_same_weights(finished, toy_root, tmp_path):
    metrics = read_metrics(finished / "metrics.json")
    assert metrics["loss_inst"][-1][1] < 0 and 0 < metrics["embedding_std"][-1][1] <= 1
    (tmp_path / "model_0000002.pth").write_bytes((finished / "model_0000002.pth").read_bytes())
    train(toy_root, tmp_path, "SOLVER.CHECKPOINT_PERIOD 3", "--num-gpus 2 --resume")
    assert_same(load(finished / "model_final.pth")["model"], load(tmp_path / "model_final.pth")["model"])


def test_its_run_is_reported_and_its_backbone_converted(finished, toy_root, tmp_path):
    run(f"python tools/report.py {finished} --output {tmp_path}/report.html", toy_root)
    assert "SimSiam" in (tmp_path / "report.html").read_text()
    run(f"python tools/convert_to_d2.py {finished}/model_final.pth {tmp_path}/backbone.pth", toy_root)
    assert "SimSiam, 6 iterations" in (tmp_path / "backbone.yaml").read_text()
    assert all(not key.startswith(("projection_head", "predictor")) for key in load(tmp_path / "backbone.pth")["model"])


def test_its_checks_are_asked(toy_root, tmp_path):
    line = one_line_error(f"{TRAIN} {TINY} VIEWS.NUM_SMALL 4 OUTPUT_DIR {tmp_path}", toy_root)
    assert "VIEWS.NUM_SMALL 4: SimSiam has two large views" in line


def test_the_loss_equals_loops_in_float64_and_the_embeddings_take_no_gradient():
    from simsiam import negative_cosine  # here, because it registers the method

    generator = torch.Generator().manual_seed(0)
    p, z = (normalize(torch.randn(5, 7, generator=generator, dtype=torch.float64), dim=1) for _ in range(2))
    cosines = [sum(float(p[i, c] * z[i, c]) for c in range(7)) for i in range(5)]
    loss = negative_cosine(p.requires_grad_(), z.requires_grad_())
    assert loss.item() == pytest.approx(-sum(cosines) / 5, rel=1e-12)
    loss.backward()
    assert z.grad is None and torch.allclose(p.grad, -z.detach() / 5)
