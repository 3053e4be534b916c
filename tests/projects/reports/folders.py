"""Folders that look like those of runs."""

import json
from pathlib import Path

import torch
from PIL import Image


def make_run(folder: Path, iterations: int = 60, *, of: int = 60, config: str = "", torch_version: str = "2.0") -> Path:
    """A run's folder with a line of metrics every 20 iterations; finished if it has all ``of`` them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i in range(19, iterations, 20):
        losses = {"total_loss": 6 - 0.01 * i, "loss_inst": 6 - 0.01 * i, "lr": 0.1}
        lines.append({"iteration": i, **losses, "contrast_top1": 10.0, "images_per_second": 100.0 + i})
    lines += [{"iteration": i, "knn_top1": 20.0 - i / 10} for i in range(29, iterations, 30)]
    (folder / "metrics.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "config.yaml").write_text(f"SOLVER:\n  MAX_ITER: {of}\n  BASE_LR: 0.03\n{config}")
    (folder / "environment.json").write_text(json.dumps({"torch": torch_version, "platform": "Linux"}) + "\n")
    if iterations:
        name = "model_final" if iterations == of else f"model_{iterations - 1:07d}"
        write_checkpoint(folder / f"{name}.pth", iterations - 1)
    return folder


def write_checkpoint(path: Path, iteration: int) -> None:
    torch.save({"iteration": iteration, "trainer": {}, "model": {}}, path)


def draw(path: Path, width: int = 40, height: int = 30) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((width, height), 80).convert("RGB").save(path)
    return path
