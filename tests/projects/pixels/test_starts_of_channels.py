"""Runs on images of five channels: from weights of photographs and of the same channels, converted and continued."""

from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run as run_command
from runs import load, train
from tiny import tiny_config, tiny_model
from trees import logged, refusal

from revisit.checkpoint.backbone_file import load_backbone
from revisit.checkpoint.flags import flags_of, write_flags
from revisit.checkpoint.stem import stem_for
from revisit.modeling.backbone.description import describe
from revisit.network.frozen_network import load_frozen
from revisit.network.network import load_network

NAMES = ["red", "green", "blue", "nir", "swir"]
CHANNELS = ("INPUT.CHANNELS", NAMES, "INPUT.RANGE", [[0.0, 4096.0]], "VIEWS.POLICY", "channels")
CHANNELS += ("MODEL.PIXEL_MEAN", [110.0, 100.0, 90.0, 80.0, 70.0], "MODEL.PIXEL_STD", [60.0, 55.0, 50.0, 45.0, 40.0])
SHORT = ("SOLVER.MAX_ITER", 2, "VIEWS.NUM_SMALL", 0, "VIEWS.LARGE_SIZE", 64, "NEIGHBORS.WEIGHT", 0.0)
CONTINUED = ("MODEL.META_ARCHITECTURE", "ContinuedSimCLR", "KEEP.WEIGHT", 1.0)


@pytest.fixture
def of_five(tmp_path) -> tuple:
    """Keys of a run on such images."""
    files = [tmp_path / f"{number}.npy" for number in range(16)]
    generator = np.random.default_rng(0)
    for file in files:
        np.save(file, generator.integers(0, 4096, (40, 48, len(NAMES))).astype(np.uint16))
    (tmp_path / "list.txt").write_text("\n".join(map(str, files)))
    return (*CHANNELS, *SHORT, "DATASETS.TRAIN", (f"list:{tmp_path / 'list.txt'}",))


@pytest.fixture
def photographs(tmp_path) -> Path:
    """Weights for RGB, as tools/convert_to_d2.py leaves them."""
    path, model = tmp_path / "photographs.pth", tiny_model()
    torch.save({"model": model.backbone.state_dict()}, path)
    write_flags(path, flags_of(tiny_config(), describe(model)), "a test")
    return path


def test_weights_of_photographs_continue_on_five_channels_and_then_from_there(of_five, photographs, tmp_path):
    run, converted = tmp_path / "run", tmp_path / "five.pth"
    log = str(logged(train, run, *of_five, *CONTINUED, "MODEL.WEIGHTS", str(photographs)))
    assert "red from r, green from g, blue from b, nir from mean, swir from mean" in log
    checkpoint = load(run / "model_final.pth")
    assert checkpoint["flags"]["INPUT.CHANNELS"] == NAMES and checkpoint["flags"]["INPUT.RANGE"] == [[0.0, 4096.0]] * 5
    stem, start = checkpoint["model"]["backbone.stem.conv1.weight"], load_backbone(photographs)
    expected = stem_for(start.tensors["stem.conv1.weight"], ["r", "g", "b", "mean", "mean"])
    assert stem.shape == expected.shape and 0 < (stem - expected).abs().max() < 0.3
    run_command(f"python tools/convert_to_d2.py {run / 'model_final.pth'} {converted} --format rgb", tmp_path)
    weights = load_backbone(converted)
    assert torch.equal(weights.tensors["stem.conv1.weight"], stem)
    assert weights.flags.items() >= {"INPUT.CHANNELS": NAMES, "MODEL.PIXEL_STD": CHANNELS[-1]}.items()
    assert load_network(str(converted)).last_map(torch.zeros(1, 5, 64, 64, dtype=torch.uint8)).isfinite().all()
    log = str(logged(train, tmp_path / "again", *of_five, *CONTINUED, "MODEL.WEIGHTS", str(converted)))
    assert "from mean" not in log
    renamed = ("INPUT.CHANNELS", [*NAMES[:3], "swir", "nir"])
    assert "sees the channels red green blue nir swir, and the images have red green blue swir nir" in refusal(
        train, tmp_path / "other", *of_five, *renamed, "MODEL.WEIGHTS", str(converted)
    )


@pytest.mark.parametrize("kind", ["photographs", "five"])
def test_a_teacher_of_photographs_or_of_the_same_channels_teaches_on_five(kind, of_five, photographs, tmp_path):
    teacher = photographs
    if kind == "five":
        teacher, model = tmp_path / "five.pth", tiny_model(*CHANNELS)
        torch.save({"model": model.backbone.state_dict()}, teacher)
        write_flags(teacher, flags_of(tiny_config(*CHANNELS), describe(model)), "a test")
    keys = ("MODEL.META_ARCHITECTURE", "Distillation", "DISTILLATION.TEACHER", str(teacher))
    train(tmp_path / "run", *of_five, *keys)
    assert load(tmp_path / "run/model_final.pth")["model"]["backbone.stem.conv1.weight"].shape[1] == 5
    network = load_frozen(tiny_config(*CHANNELS, *keys), "DISTILLATION.TEACHER")
    assert network.mean.flatten().tolist() == CHANNELS[-3]
    if kind == "five":
        message = refusal(load_frozen, tiny_config(*keys), "DISTILLATION.TEACHER")
        assert "sees the channels red green blue nir swir, and the images are photographs" in message


@pytest.mark.parametrize(
    "changed",
    [("INPUT.CHANNELS", [*NAMES[:3], "swir", "nir"]), ("INPUT.RANGE", [[0.0, 2048.0]]), ("INPUT.NODATA", 0.0)],
)
def test_a_run_does_not_resume_on_images_that_mean_something_else(changed, of_five, tmp_path):
    simclr = ("MODEL.META_ARCHITECTURE", "SimCLR")
    train(tmp_path / "run", *of_five, *simclr)
    longer = ("SOLVER.MAX_ITER", 3)
    message = refusal(train, tmp_path / "run", *of_five, *simclr, *longer, *changed, resume=True)
    assert changed[0] in message
    assert train(tmp_path / "run", *of_five, *simclr, *longer, resume=True).start_iter == 2
