"""The jobs of the paper's figures and of its table of data sets, and the page that shows them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from projects.Paper.cells import JobBuilder
from projects.Paper.paper_tables import COLUMNS, DATA_SETS, ROWS, PretrainingRun, Snapshot, study
from revisit.data.sources.catalog import datasets_root
from revisit.jobs.commands import Job, data_facts, with_needs
from revisit.markdown import markdown_table

LIMITS = ("0.6", "0.4", "0.2", "0.0")
PARTS = 4  # of a training, after each of which it is judged
TRANSFERS = ("seg_VOC", "VOC_SVM_mAP")
REGIONS = "5"  # of an image in the pictures of retrieval; the table has 15
PICTURES = (
    *("iou_histogram.png", "frameworks.png", "runs.png", "classes.png", "training_time.png"),
    *("cams.png", "gallery.png", "overlays/*.gif"),
)


def figure_jobs(builder: JobBuilder, seed: int) -> list[Job]:
    """The jobs of all figures, each after those that it needs; the last of each leaves its pictures."""
    moco, multi_crop = (ROWS["ablation"][label][builder.profile] for label in ("MoCo", "+MC"))
    both = {"MoCo": moco, "MoCo + multi-crop": multi_crop}
    return with_needs(
        [
            *_objects(builder),
            _class_histogram(builder),
            _study(builder, "IoU of crops in existing frameworks", "frameworks", "Paper/crops/frameworks"),
            _iou_study(builder, moco, seed),
            *(_training_time(builder, both, column, seed) for column in TRANSFERS),
            _cams(builder, moco, multi_crop, seed),
            _evaluated(builder, multi_crop, "DAVIS_JF", seed),
            _retrieval(builder, multi_crop, seed),
        ]
    )


def figure_page(jobs: list[Job], folder: Path) -> str:
    """Markdown with the table of data sets, the pictures that are there, and how far the others are."""
    lines = ["# Figures", "", _data_set_table(jobs), ""]
    for job in jobs:
        if not job.done:
            lines += [f"- {job.name}: {job.state}", ""]
            continue
        if pictures := _pictures_of(job):
            shown = [f"![{path.name}]({os.path.relpath(path, folder)})" for path in pictures]
            lines += [f"## {job.name}", "", *shown, ""]
    return "\n".join(lines)


def _pictures_of(job: Job) -> list[Path]:
    matching = (job.result.parent.glob(name) for name in PICTURES)
    return sorted(chain.from_iterable(matching))


def _data_set_table(jobs: list[Job]) -> str:
    counting = {job.name: job for job in jobs}
    rows = []
    for name, data_set in DATA_SETS.items():
        thousands, objects, *properties = data_set["values"]
        job = counting.get(_objects_of(name))
        ours = "–"
        if job and job.done:
            count = json.loads(job.result.read_text())
            file = os.path.relpath(count["annotations"], datasets_root())
            ours = f"{count['objects_per_image']:.1f}, {count['images']:,} images of {file}"
        yes_no = ("yes" if holds else "no" for holds in properties)
        rows.append([name, f"{thousands}K", str(objects or "–"), ours, *yes_no])
    return markdown_table(
        ["data set", "images (paper)", "objects per image (paper)", "counted here", "uniform", "discriminative"], rows
    )


def _objects_of(name: str) -> str:
    return f"table: objects per image, {name}"


def _objects(builder: JobBuilder) -> Iterator[Job]:
    """A count of each data set that has annotations in this profile."""
    for name, data_set in DATA_SETS.items():
        words = data_set.get(builder.profile)
        if not words:
            continue
        kind, *paths = words.split()
        files = {word: str(datasets_root() / word) for word in paths if word != "--list"}
        arguments = [files.get(word, word) for word in paths]
        folder = builder.root / "figures" / "objects" / name
        command = ("datasets/count_objects.py", kind, *arguments, "--output", str(folder))
        reads = tuple(map(Path, files.values()))
        yield Job(_objects_of(name), (command,), folder / "objects.json", reads=reads)


def _class_histogram(builder: JobBuilder) -> Job:
    """How many images each class has in the long-tailed data set."""
    folder = builder.root / "figures" / "classes"
    needs = ()
    reads = ()
    source = ROWS["linear"]["IN-118K-LT"][builder.profile]
    if builder.profile == "paper":
        reads = (datasets_root() / "subsets/imagenet_118k_lt.txt",)
        images = "imagenet_118k_lt"
    else:
        needs = (builder.drawn(source),)
        images = builder.images_of(needs[0], source)
    command = ("datasets/count_classes.py", images, "--output", str(folder))
    return Job("figure: classes of IN-118K-LT", (command,), folder / "classes.json", needs=needs, reads=reads)


def _study(
    builder: JobBuilder, name: str, folder: str, config: str, *options: str, weights: Path | None = None, **needs: tuple
) -> Job:
    """An evaluation by its config, PROJECT/SCRIPT/RECIPE, into a folder of figures."""
    output = builder.root / "figures" / folder
    script, file = study(config)
    start = ("--weights", str(weights)) if weights else ()
    command = (script, "--config-file", file, *start, "--output", str(output), *options)
    return Job(f"figure: {name}", (command,), output / "results.json", data_facts(command), **needs)


def _iou_study(builder: JobBuilder, moco: PretrainingRun, seed: int) -> Job:
    """MoCo whose two crops may share less and less."""
    limited = [(*moco.options, "VIEWS.MAX_IOU", limit) for limit in LIMITS]
    runs = [moco, *(replace(moco, options=options) for options in limited)]
    scores = [_evaluated(builder, run, "seg_VOC", seed) for run in runs]
    trained = [builder.backbone(run, seed) for run in runs]
    options = ("CROP_STUDY.SCORE", "sem_seg.mIoU", "SEED", str(seed))
    for key, jobs in (("RUNS", trained), ("EVALUATIONS", scores)):
        folders = tuple(str(job.result.parent) for job in jobs)
        options += (f"CROP_STUDY.{key}", repr(folders))
    config = f"Paper/crops/{'coco' if builder.profile == 'paper' else 'toy'}"
    return _study(builder, "IoU of crops", f"iou/seed{seed}", config, *options, needs=(*trained, *scores))


def _training_time(builder: JobBuilder, runs: dict[str, PretrainingRun], column: str, seed: int) -> Job:
    """A column's scores from checkpoints of one training each, against the time that it had taken."""
    evaluation = getattr(COLUMNS[column], builder.profile)
    folder = builder.root / "figures" / "training_time" / column / f"seed{seed}"
    place = ("--output", str(folder), "--title", f"{column} (%)")
    command = ("projects/Paper/training_time.py", *place, "--score", *evaluation.score)
    needs: list[Job] = []
    for name, source in runs.items():
        on_its_way = builder.snapshots(source, PARTS, seed)
        parts = [Snapshot(source, part, PARTS) for part in range(1, PARTS)]
        scores = [builder.evaluate(backbone, evaluation, seed) for backbone in (*parts, source)]
        times = on_its_way.result.parent / "times.json"
        results = [str(job.result) for job in scores]
        command += ("--run", name, str(times), *results)
        needs += [on_its_way, *scores]
    return Job(f"figure: {column} over training time", (command,), folder / "results.json", needs=tuple(needs))


def _cams(builder: JobBuilder, moco: PretrainingRun, multi_crop: PretrainingRun, seed: int) -> Job:
    """Where linear classifiers on both backbones see their class."""
    needs = tuple(_evaluated(builder, source, "ImageNet", seed) for source in (moco, multi_crop))
    ours, other = (str(job.result.parent / "classifier.pth") for job in needs)
    weights, other_weights = (builder.backbone(source, seed).result for source in (moco, multi_crop))
    options = ("CAM.CLASSIFIER", ours, "CAM.OTHER_WEIGHTS", str(other_weights), "CAM.OTHER_CLASSIFIER", other)
    config = f"FrozenEvaluations/cams/{'imagenet_R50' if builder.profile == 'paper' else 'toy'}"
    return _study(
        builder,
        "class activation maps",
        f"cams/seed{seed}",
        config,
        *options,
        weights=weights,
        needs=needs,
    )


def _retrieval(builder: JobBuilder, source: PretrainingRun, seed: int) -> Job:
    """Regions next to their nearest ones, of fewer and larger regions than the table's."""
    trained = builder.backbone(source, seed)
    config = f"FrozenEvaluations/retrieval/{'voc_R50' if builder.profile == 'paper' else 'toy'}"
    options = ("SEGMENT_RETRIEVAL.NUM_REGIONS", REGIONS, "SEED", str(seed))
    return _study(
        builder,
        f"retrieved segments, K {REGIONS}",
        f"retrieval/seed{seed}",
        config,
        *options,
        weights=trained.result,
        needs=(trained,),
    )


def _evaluated(builder: JobBuilder, source: PretrainingRun, column: str, seed: int) -> Job:
    return builder.evaluate(source, getattr(COLUMNS[column], builder.profile), seed)
