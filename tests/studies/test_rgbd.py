"""Four channels against three, on twelve scenes and for two iterations."""

import re

import numpy as np
import torch
from commands import run

from projects.ToyScenes import make_toy_scenes

STUDY = "python studies/channels/rgbd.py --seeds 1 2 --labelled 4 --iterations 2 2"
SMALL = "VIEWS.LARGE_SIZE 32 SOLVER.IMS_PER_BATCH 4 TEST.PRECISE_BN.NUM_ITER 1 INPUT.MIN_SIZE_TRAIN (64,)"


def test_both_sides_train_on_the_same_files_and_a_second_call_has_nothing_to_do(tmp_path):
    make_toy_scenes(tmp_path / "toy_scenes", num_images=12, size=64, workers=1, channels="rgbd")
    command = f"{STUDY} --output {tmp_path}/study {SMALL}"
    text = run(command, tmp_path)
    for channels in (3, 4):
        folder = tmp_path / f"study/{channels}_channels/1"
        weights = torch.load(folder / "pretrain/backbone.pth", weights_only=True)
        model = torch.load(folder / "detector/model_final.pth", weights_only=True)["model"]
        stems = [
            each for name, each in (weights.get("model", weights) | model).items() if name.endswith("stem.conv1.weight")
        ]
        assert {stem.shape[1] for stem in stems} == {channels}
    again = run(command, tmp_path)
    assert "8 jobs, 8 done before" in again
    table = text[text.index("| channels") :]
    assert again.endswith(table) and (tmp_path / "study/table.md").read_text() == table
    rows = {
        name: re.findall(r"-?\d+\.\d+", cells)[:2] for name, cells in re.findall(r"^\| ([a-z, ]+) \| (.*)", table, re.M)
    }
    three, four, gain = (
        np.array(rows[name], float) for name in ("red, green, blue", "red, green, blue, depth", "difference")
    )
    np.testing.assert_allclose(four - three, gain, atol=0.11)
