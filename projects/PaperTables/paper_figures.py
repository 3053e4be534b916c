"""The paper's pictures: crops' IoU, scores over time, activation maps, retrieved regions, masks in videos."""

import os
from dataclasses import replace
from pathlib import Path

from projects.PaperTables.cells import JobBuilder
from projects.PaperTables.jobs import Job, with_needs
from projects.PaperTables.paper_tables import COLUMNS, ROWS, PretrainingRun

_LIMITS = ("0.6", "0.4", "0.2", "0.0")
_CLASSIFIED = {
    "paper": ("cifar10_train", "cifar10_test", "20"),
    "toy": ("toy_objects_train", "toy_objects_heldout", "4"),
}
_PICTURES = ("iou_histogram.png", "runs.png", "cams.png", "gallery.png", "overlays/*.gif")


def figure_jobs(builder: JobBuilder, seed: int) -> list[Job]:
    """The jobs of all figures, each after those that it needs; the last of each leaves its pictures."""
    labels = ("MoCo", "+MC+CC+m+A+NN", "+MC")
    moco, best, multi_crop = (ROWS["ablation"][label][builder.profile] for label in labels)
    jobs = [
        _iou_study(builder, moco, seed),
        *(_watched(builder, source, seed) for source in (moco, best)),
        _cams(builder, moco, best, seed),
        *(_evaluated(builder, multi_crop, column, seed) for column in ("21 classes", "DAVIS_JF")),
    ]
    return with_needs(jobs)


def figure_page(jobs: list[Job], folder: Path) -> str:
    """Markdown with the pictures that are there, and how far the others are."""
    lines = ["# Figures", ""]
    for job in jobs:
        names = _PICTURES + ((job.result.name,) if job.result.suffix == ".png" else ())
        pictures = sorted(path for name in names for path in job.result.parent.glob(name)) if job.done else []
        if pictures:
            lines += [f"## {job.name}", ""]
            lines += [f"![{path.name}]({os.path.relpath(path, folder)})" for path in pictures] + [""]
        elif not job.done:
            lines += [f"- {job.name}: {job.state}", ""]
    return "\n".join(lines)


def _evaluated(builder: JobBuilder, source: PretrainingRun, column: str, seed: int) -> Job:
    return builder.evaluate(source, getattr(COLUMNS[column], builder.profile), seed)


def _with(source: PretrainingRun, *options: str) -> PretrainingRun:
    return replace(source, options=(*source.options, *options))


def _iou_study(builder: JobBuilder, moco: PretrainingRun, seed: int) -> Job:
    """MoCo whose two crops may share less and less."""
    runs = [moco, *(_with(moco, "VIEWS.MAX_IOU", limit) for limit in _LIMITS)]
    scores = [_evaluated(builder, run, "seg_VOC", seed) for run in runs]
    trained = [builder.backbone(run, seed) for run in runs]
    folder = builder.root / "figures" / "iou" / f"seed{seed}"
    config = f"projects/CropStudy/configs/{'coco' if builder.profile == 'paper' else 'toy'}.yaml"
    command = ("projects/CropStudy/run.py", "--config-file", config, "--output", str(folder))
    for key, jobs in (("RUNS", trained), ("EVALUATIONS", scores)):
        command += (f"CROP_STUDY.{key}", repr(tuple(str(job.result.parent) for job in jobs)))
    command += ("CROP_STUDY.SCORE", "sem_seg.mIoU", "SEED", str(seed))
    return Job("figure: IoU of crops", (command,), folder / "results.json", needs=(*trained, *scores))


def _watched(builder: JobBuilder, source: PretrainingRun, seed: int) -> Job:
    """The run once more, with its held-out accuracy measured on the way."""
    bank, test, every = _CLASSIFIED[builder.profile]
    options = ("KNN_EVAL.BANK", bank, "DATASETS.TEST", f"('{test}',)", "TEST.EVAL_EPOCHS", every)
    trained = builder.backbone(_with(source, *options), seed, watched=True)
    metrics = trained.result.parent / "metrics.json"
    picture = builder.root / "figures" / "curves" / source.name / f"seed{seed}" / "curves.png"
    code = "from pathlib import Path; from revisit.viz.curves import plot_curves; "
    code += f"plot_curves(Path({str(metrics)!r}), Path({str(picture)!r}))"
    return Job(f"figure: {source.name} over time", (("-c", code),), picture, needs=(trained,))


def _cams(builder: JobBuilder, moco: PretrainingRun, best: PretrainingRun, seed: int) -> Job:
    """Where linear classifiers on both backbones see their class."""
    ours, other = (_evaluated(builder, source, "ImageNet", seed) for source in (best, moco))
    weights, other_weights = (builder.backbone(source, seed).result for source in (best, moco))
    folder = builder.root / "figures" / "cams" / f"seed{seed}"
    config = f"projects/ClassActivationMaps/configs/{'imagenet_R50' if builder.profile == 'paper' else 'toy'}.yaml"
    command = ("projects/ClassActivationMaps/run.py", "--config-file", config)
    command += ("--weights", str(weights), "--output", str(folder))
    command += ("CAM.CLASSIFIER", str(ours.result.parent / "classifier.pth"), "CAM.OTHER_WEIGHTS", str(other_weights))
    command += ("CAM.OTHER_CLASSIFIER", str(other.result.parent / "classifier.pth"))
    return Job("figure: class activation maps", (command,), folder / "results.json", needs=(ours, other))
