"""The paper's pictures: crops' IoU, scores over time, activation maps, retrieved regions, masks in videos."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from projects.PaperTables.cells import Builder, with_needs
from projects.PaperTables.columns import COLUMNS, Evaluation
from projects.PaperTables.jobs import Job
from projects.PaperTables.rows import ROWS, Pretraining

_LIMITS = ("0.6", "0.4", "0.2", "0.0")
_CLASSIFIED = {
    "paper": ("cifar10_train", "cifar10_test", "20"),
    "toy": ("toy_objects_train", "toy_objects_heldout", "4"),
}


def figure_jobs(*, profile: str, seed: int, root: Path, extra: tuple[str, ...], gpus: int) -> list[Job]:
    """The jobs of all figures, each behind those that it needs; the last of each leaves its pictures."""
    builder = Builder(profile, root, extra, gpus)
    ablation = {row.label: getattr(row, profile) for row in ROWS["ablation"]}
    moco, best = ablation["MoCo"], ablation["+MC+CC+m+A+NN"]
    multi_crop = ablation["+MC"]
    jobs = [
        _iou_study(builder, moco, profile, seed, root),
        *(_watched(builder, source, profile, seed, root) for source in (moco, best)),
        _cams(builder, moco, best, profile, seed, root),
        builder.evaluate(multi_crop, getattr(COLUMNS["21 classes"], profile), seed),
        builder.evaluate(multi_crop, getattr(COLUMNS["DAVIS_JF"], profile), seed),
    ]
    return with_needs(jobs)


def figure_page(jobs: list[Job], folder: Path) -> str:
    """Markdown with the pictures that are there, and how far the others are."""
    lines = ["# Figures", ""]
    for job in jobs:
        names = ("iou_histogram.png", "runs.png", "cams.png", "gallery.png", "overlays/*.gif")
        names += (job.result.name,) if job.result.suffix == ".png" else ()
        pictures = sorted(path for name in names for path in job.result.parent.glob(name)) if job.done else []
        if pictures:
            lines += [f"## {job.name}", ""]
            lines += [f"![{path.name}]({os.path.relpath(path, folder)})" for path in pictures] + [""]
        elif not job.done:
            lines += [f"- {job.name}: {job.state}", ""]
    return "\n".join(lines)


def _iou_study(builder: Builder, moco: Pretraining, profile: str, seed: int, root: Path) -> Job:
    runs = [moco]
    for limit in _LIMITS:
        if profile == "paper":
            runs.append(Pretraining(f"configs/pretrain/iou_study/moco_iou{limit}.yaml"))
        else:
            runs.append(replace(moco, options=(*moco.options, "VIEWS.MAX_IOU", limit)))
    judge = getattr(COLUMNS["seg_VOC"], profile)
    scores = [builder.evaluate(run, judge, seed) for run in runs]
    trained = [builder.backbone(run, seed) for run in runs]
    folder = root / "figures" / "iou" / f"seed{seed}"
    config = f"projects/CropStudy/configs/{'coco' if profile == 'paper' else 'toy'}.yaml"
    command = ("projects/CropStudy/run.py", "--config-file", config, "--output", str(folder))
    command += ("CROP_STUDY.RUNS", _tuple(trained), "CROP_STUDY.EVALUATIONS", _tuple(scores))
    command += ("CROP_STUDY.SCORE", ".".join(judge.score), "SEED", str(seed))
    return Job("figure: IoU of crops", (command,), folder / "results.json", needs=(*trained, *scores))


def _watched(builder: Builder, source: Pretraining, profile: str, seed: int, root: Path) -> Job:
    """The run once more, with its held-out accuracy measured on the way."""
    bank, test, every = _CLASSIFIED[profile]
    options = ("KNN_EVAL.BANK", bank, "DATASETS.TEST", f"('{test}',)", "TEST.EVAL_EPOCHS", every)
    trained = builder.backbone(replace(source, options=(*source.options, *options)), seed, watched=True)
    curves = "from pathlib import Path; from revisit.viz.curves import plot_curves; "
    metrics = trained.result.parent / "metrics.json"
    picture = root / "figures" / "curves" / source.name / f"seed{seed}" / "curves.png"
    command = ("-c", f"{curves}plot_curves(Path({str(metrics)!r}), Path({str(picture)!r}))")
    return Job(f"figure: {source.name} over time", (command,), picture, needs=(trained,))


def _cams(builder: Builder, moco: Pretraining, best: Pretraining, profile: str, seed: int, root: Path) -> Job:
    classify: Evaluation = getattr(COLUMNS["ImageNet"], profile)
    ours, other = (builder.evaluate(source, classify, seed) for source in (best, moco))
    weights, other_weights = (builder.backbone(source, seed) for source in (best, moco))
    folder = root / "figures" / "cams" / f"seed{seed}"
    config = f"projects/ClassActivationMaps/configs/{'imagenet_R50' if profile == 'paper' else 'toy'}.yaml"
    command = ("projects/ClassActivationMaps/run.py", "--config-file", config)
    command += ("--weights", str(weights.result), "--output", str(folder))
    command += ("CAM.CLASSIFIER", str(ours.result.parent / "classifier.pth"))
    command += ("CAM.OTHER_WEIGHTS", str(other_weights.result))
    command += ("CAM.OTHER_CLASSIFIER", str(other.result.parent / "classifier.pth"))
    return Job("figure: class activation maps", (command,), folder / "results.json", needs=(ours, other))


def _tuple(jobs: list[Job]) -> str:
    return repr(tuple(str(job.result.parent) for job in jobs))
