"""examples/ are read and copied: they run, and compute what the product does."""

import runpy

import pytest
import torch
from commands import ROOT, one_line_error
from runs import run

from revisit.checkpoint.backbone_file import load_backbone
from revisit.engine.setup import make_config
from revisit.keys import Facts, resolve_auto_values

from detectron2.engine import HookBase

FILE = ROOT / "examples/knn_moco.py"
SMALL = {"BATCH": 4, "EPOCHS": 3, "QUEUE": 10, "NEIGHBORS": 3, "WAIT": 1, "WARM_UP": 1}
KEYS = ("SOLVER.IMS_PER_BATCH", 4, "SOLVER.EPOCHS", 3, "MOCO.QUEUE_SIZE", 10, "NEIGHBORS.NUM_NEIGHBORS", 3,
        "NEIGHBORS.WARMUP_EPOCHS", 1, "SOLVER.WARMUP_ITERS", 0, "SEED", 0, "SOLVER.PRECISION", "float32",
        "SOLVER.METRICS_PERIOD", 1, "MODEL.DEVICE", "cpu", "DATALOADER.NUM_WORKERS", 0)  # fmt: skip


class Losses(HookBase):
    """Those of every step, and the network as it is before the first one."""

    def before_train(self):
        self.begun = {name: value.clone() for name, value in self.trainer.model.state_dict().items()}
        self.steps = []

    def after_step(self):
        latest = self.trainer.storage.latest()
        self.steps.append({name: latest[name][0] for name in ("loss_inst", "loss_nn_raw") if name in latest})


@pytest.fixture
def example(monkeypatch):
    """The example's names, of a small run."""
    names = runpy.run_path(str(FILE))
    for name, value in SMALL.items():
        assert name in names
        monkeypatch.setitem(names["main"].__globals__, name, value)
    return names


def test_the_method_on_one_screen_sees_the_views_and_has_the_losses_of_the_trainer(example, write_pictures, tmp_path):
    write_pictures(tmp_path / "photos", 12, (80, 90))
    images = f"folder:{tmp_path / 'photos'}"
    places = ("DATASETS.TRAIN", (images,), "OUTPUT_DIR", tmp_path / "run")
    cfg = make_config("configs/own_images/knn_moco.yaml", [str(word) for word in (*KEYS, *places)])
    resolve_auto_values(cfg, Facts(images=12))
    seen = Losses()
    (tmp_path / "run").mkdir()
    trainer = run(cfg, hook=seen)
    loader = example["views_of"](images)
    ours, theirs = next(iter(loader)), trainer.data_loader.batch_of(0)
    assert all(torch.equal(ours[name], theirs[name]) for name in ("anchor", "positive", "small"))
    example["main"](images, str(tmp_path / "written/backbone.pth"))
    weights = load_backbone(tmp_path / "written/backbone.pth")
    assert weights.title == "ResNet-18"
    model = example["KNNMoCo"](weights.description.build(cfg))
    model.load_state_dict(seen.begun)
    steps = [{name: loss.item() for name, loss in losses.items()} for losses in example["train"](model, loader)]
    assert len(steps) == len(seen.steps) == 9
    assert [len(step) for step in steps] == [1] * 3 + [2] * 6  # L_nn waits for an epoch
    for step, expected in zip(steps, seen.steps, strict=True):
        assert list(step.values()) == pytest.approx(list(expected.values()), rel=1e-5)
    ended = trainer.model.state_dict()
    for name, value in model.state_dict().items():
        if name != "queue.labels":
            assert torch.allclose(value, ended[name], rtol=1e-3, atol=1e-5), name


def test_an_example_without_its_arguments_says_what_it_expects(tmp_path):
    assert "expected IMAGES OUTPUT" in one_line_error("python examples/knn_moco.py", tmp_path)


def test_the_method_fits_on_one_screen():
    assert len(FILE.read_text().splitlines()) <= 120
