"""Revisit from Python: pretrain, look at features, finetune and predict, without a config in hand.

Trainings and predictions run as the command ``revisit`` does, in a process of their own whose log is printed, so that
they are what the command line gives, resume as it does, and may use several processes from a notebook too.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from revisit.boxes.predictions_file import RESULTS, read_predictions
from revisit.checkpoint.run_folder import results_of_run
from revisit.command.options import data_set
from revisit.compat.moved import renamed
from revisit.data.images.deep_images import format_of
from revisit.data.images.opening import SUFFIXES
from revisit.data.images.reader import require_record
from revisit.data.sources.catalog import get_records
from revisit.data.sources.image_folders import write_list
from revisit.errors import UserError, expect
from revisit.evaluation.features import BATCH, center_crop
from revisit.files import make_folder, output_path
from revisit.jobs.with_parent import start_child
from revisit.network.network import Network as Backbone
from revisit.network.network import load_network
from revisit.plugins import PACKAGES

__all__ = ["Backbone", "Prediction", "Run", "UserError", "embed", "finetune", "load_backbone", "predict", "pretrain"]

Images = str | Path | Sequence[str | Path]


class Run(NamedTuple):
    """A training that has ended."""

    weights: Path  # of a pretraining the converted backbone, else the finetuned model
    scores: dict[str, Any]  # of its last evaluation by name, evaluation.json; {} where the recipe evaluates nothing
    folder: Path  # OUTPUT_DIR: log.txt, metrics.json, checkpoints, pictures


class Prediction(NamedTuple):
    """An object that a detector found."""

    image: str  # its file
    label: str  # name of its class
    score: float  # 0 to 1
    box: tuple[float, float, float, float]  # x0, y0, x1, y1 in px


@renamed(images="data", recipe="config_file")
def pretrain(
    data: Images,
    output: str | Path,
    config_file: str = "own_images/pretrain.yaml",
    *,
    resume: bool = False,
    **keys: Any,
) -> Run:
    """Pretrain a backbone on images without labels, and convert it to ``output/backbone.pth``.

    Args:
        data: a folder, files, or the name of a data set (KIND:PATH, datasets/README.md).
        output: folder of the run.
        config_file: a config file, or the name of a recipe (MODEL_ZOO.md).
        resume: continue from the last checkpoint in ``output``.
        keys: of the config (docs/config.md): ``**{"SOLVER.EPOCHS": 50}``.

    Raises:
        UserError: whatever is wrong with data or keys, in one line.

    >>> run = pretrain("photos", "own/pretrain", **{"SOLVER.MAX_ITER": 2})
    >>> run.weights.name
    'backbone.pth'
    """
    folder = _train(data, output, config_file, resume, keys)
    weights = folder / "backbone.pth"
    _command("convert", "--", str(folder / "model_final.pth"), str(weights))
    return Run(weights, results_of_run(folder), folder)


@renamed(images="data", recipe="config_file")
def finetune(
    data: Images,
    output: str | Path,
    weights: str | Path = "",
    config_file: str = "own_images/detection.yaml",
    *,
    test: str | Path = "",
    resume: bool = False,
    **keys: Any,
) -> Run:
    """Finetune a detector, a segmenter or a depth network from a backbone; arguments as of ``pretrain``.

    Args:
        data: the name of a data set with labels, such as ``coco:photos:boxes.json``.
        weights: of ``pretrain``, converted, or a name such as ``imagenet:efficientnet_lite0``; "" starts from random
            weights.
        test: the name of a data set with labels to score; none, where it is left out.

    >>> keys = {"MODEL.ROI_HEADS.NUM_CLASSES": 3, "SOLVER.MAX_ITER": 2}
    >>> finetune("coco:photos:boxes.json", "own/detection", "own/pretrain/backbone.pth", **keys).weights.name
    'model_final.pth'
    """
    tested = (_name_of(test, Path(output)),) if test else ()
    keys = {"DATASETS.TEST": tested, "MODEL.WEIGHTS": str(weights), **keys}
    folder = _train(data, output, config_file, resume, keys)
    return Run(folder / "model_final.pth", results_of_run(folder), folder)


@renamed(images="data")
def predict(
    weights: str | Path, data: Images, output: str | Path, *, score_threshold: float | None = None
) -> list[Prediction]:
    """Find objects that score at least ``score_threshold``, else 0.5, by a finetuned detector, whose checkpoint says
    which network it is.

    ``output`` gets a picture of every image, and predictions.json in COCO's format; of a segmenter or a depth network
    it gets their maps, and the list is empty.

    >>> found = predict("own/detection/model_final.pth", "photos", "own/found", score_threshold=0)
    >>> found[0].label in ("circle", "cross", "square")
    True
    """
    files = [data] if isinstance(data, str | Path) else data
    options = {"weights": weights, "output": output, "score-threshold": score_threshold}
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    _command("predict", *words, "--", *map(str, files))
    path = Path(output) / RESULTS
    if not path.is_file():
        return []
    of_files, labels = read_predictions(path)
    return [
        Prediction(file, labels[number], score, tuple(box))
        for file, found in of_files
        for number, score, box in zip(found.classes, found.scores.tolist(), found.xyxy.tolist(), strict=True)
    ]


@renamed(path="weights")
def load_backbone(weights: str | Path, data: Images = ()) -> Backbone:
    """The backbone of a converted file, of a run's checkpoint, of anything that tools/convert_to_d2.py reads, or of a
    name such as ``imagenet:efficientnet_lite0``.

    Args:
        data: images that it is to see, where they have channels and its weights are of photographs.

    Raises:
        UserError: no backbone in the file, or no flag file next to it.

    >>> backbone = load_backbone("own/pretrain/backbone.pth")
    >>> backbone.title, backbone.output_shape()["res5"].stride
    ('ResNet-18', 32)
    """
    return load_network(str(weights), _records_of(data) if data else ())


@renamed(images="data")
@torch.no_grad()
def embed(backbone: Backbone, data: Images, *, size: int = 224) -> np.ndarray:
    """(N, C) float32 unit rows: the mean of the last map of each image, in the order of ``data``.

    Args:
        data: a folder, in the order of its sorted paths, a file, files, or the name of a data set.
            Of more than 8 bits a sample as the backbone was trained with, else by the images.
        size: of the square that is cut from the middle of an image, px, after its short side became 256/224 of that.
            Rows say most at the size of the views that the backbone has seen: 64 of own_images/pretrain.yaml.

    Raises:
        UserError: no images, or one that cannot be read.

    >>> embed(load_backbone("own/pretrain/backbone.pth"), "photos", size=64).shape
    (128, 256)
    """
    expect(
        not isinstance(backbone, str | Path),
        f"embed takes a backbone, and got a {type(backbone).__name__}: expected load_backbone(weights)",
    )
    records = _records_of(data)
    expect(records, "no images to embed: expected a folder, or a list of at least one file")
    rows = []
    pixels = format_of(backbone.flags, records)
    expect(
        pixels.count == len(backbone.mean),
        f"images of {pixels.count} channels, and the backbone sees {len(backbone.mean)}: expected "
        "load_backbone(weights, data), which fits it to them",
    )
    for start in range(0, len(records), BATCH):
        images = [require_record(record, pixels) for record in records[start : start + BATCH]]
        batch = np.stack([center_crop(image, size) for image in images])
        pooled = backbone.pooled(torch.from_numpy(batch).permute(0, 3, 1, 2))
        rows.append(nn.functional.normalize(pooled).cpu())
    return torch.cat(rows).numpy()


def _records_of(images: Images) -> Sequence[dict]:
    if isinstance(images, str | Path):
        path = Path(images)
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            return get_records(_name_of(images, Path()))
        images = [images]
    return [{"file_name": str(file)} for file in images]


def _train(images: Images, output: str | Path, recipe: str, resume: bool, keys: dict[str, Any]) -> Path:
    folder = output_path(output)
    make_folder(folder, "output")
    own = {"DATASETS.TRAIN": (_name_of(images, folder),), "OUTPUT_DIR": str(folder)}
    words = [str(word) for pair in (own | keys).items() for word in pair]
    _command("train", f"--config-file={recipe}", *(["--resume"] if resume else []), *words)
    return folder


def _name_of(images: Images, folder: Path) -> str:
    """The name of a data set; of files that of a list of them, written to the folder. Raises UserError for no name."""
    expect(images != "", "images: '' names nothing: expected a folder, the name of a data set, or files")
    if isinstance(images, str | Path):
        return data_set(Path(images).resolve() if Path(images).exists() else images)
    listed = folder / "images.txt"
    write_list(listed, map(os.path.abspath, images))
    return f"list:{listed.resolve()}"


def _command(verb: str, *words: str) -> None:
    """Run ``revisit VERB WORDS`` and print what it prints. Raises UserError with its last line where it fails."""
    # Without -P it would look for every module in the working directory first, which may be somebody else's.
    safely = [] if Path.cwd() == PACKAGES else ["-P"]
    command = [sys.executable, *safely, "-m", "revisit", verb, *words]
    line = ""
    with start_child(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
        except KeyboardInterrupt:
            # A training then ends after a checkpoint. By a second Ctrl-C, if it had the first one too, it ends at once.
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
    if process.returncode:
        raise UserError(line.strip().removeprefix("error: ") or f"revisit {verb} ended with {process.returncode}")
