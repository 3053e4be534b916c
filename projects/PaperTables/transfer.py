"""Finetuning on ToyScenes from random init and from pretrained backbones: the paper's transfer table in small."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from projects.PaperTables.jobs import Job
from projects.PaperTables.spread import mean_and_spread
from revisit.data.catalog import get_records
from revisit.errors import UserError

RANDOM, PRETRAINED = "random init", "pretrained"


@dataclass(frozen=True)
class Task:
    """A finetuning recipe, where its score stands in evaluation.json, and the paper's values for the same task."""

    label: str
    config: str
    data: str  # what it trains on
    score: tuple[str, str]
    digits: int
    paper: tuple[float | None, float | None]  # random init; kNN-MoCo, COCO, 800 epochs


TASKS = (
    Task("detection, AP50 (%)", "configs/toy/detection.yaml", "toy_voc_trainval", ("bbox", "AP50"), 1, (None, None)),
    Task(
        "VOC, FCN, mIoU (%)",
        "configs/toy/segmentation_voc.yaml",
        "toy_voc_sem_seg_train_aug",
        ("sem_seg", "mIoU"),
        1,
        (39.2, 73.5),
    ),
    Task(
        "Cityscapes, FCN, mIoU (%)",
        "configs/toy/segmentation_cityscapes.yaml",
        "toy_cityscapes_train",
        ("sem_seg", "mIoU"),
        1,
        (65.0, 72.3),
    ),
    Task(
        "NYUD, DeepLab-v3, mIoU (%)",
        "configs/toy/segmentation_nyud.yaml",
        "toy_nyud_segmentation_train",
        ("sem_seg", "mIoU"),
        1,
        (24.4, 41.3),
    ),
    Task(
        "NYUD, depth, rmse (m), lower is better",
        "configs/toy/depth.yaml",
        "toy_nyud_depth_train",
        ("depth", "rmse"),
        3,
        (0.867, 0.580),
    ),
)


def choose_tasks(only: list[str] | None) -> list[Task]:
    """All tasks, or those whose label starts with one of ``only``.

    Raises:
        UserError: a name that no task starts with.
    """
    chosen = []
    for name in only or [""]:
        found = [task for task in TASKS if task.label.lower().startswith(name.lower())]
        if not found:
            labels = "; ".join(task.label for task in TASKS)
            raise UserError(f"transfer has no task {name!r}: expected the beginning of one of {labels}")
        chosen += [task for task in found if task not in chosen]
    return chosen


def make_jobs(
    tasks: list[Task], weights: list[Path], seeds: list[int], output: Path, extra: tuple[str, ...]
) -> list[Job]:
    """Two jobs a task and seed: finetune from random init and from pretrained weights, then evaluate.

    Args:
        weights: converted backbones, one for all seeds or one a seed.
        extra: KEY VALUE pairs for every run.

    Raises:
        UserError: ToyScenes or a file of weights is missing, or their number fits neither.
    """
    if len(weights) not in (1, len(seeds)):
        raise UserError(f"--weights: {len(weights)} files for {len(seeds)} seeds, expected one for all or one a seed")
    missing = next((path for path in weights if not path.is_file()), None)
    if missing:
        raise UserError(f"--weights: {missing} not found, expected what tools/convert_to_d2.py writes")
    jobs = []
    for task in tasks:
        facts = (f"{task.data}: {len(get_records(task.data))} images",)
        for number, seed in enumerate(seeds):
            for init, start in ((RANDOM, None), (PRETRAINED, weights[number % len(weights)].resolve())):
                folder = _folder(output, task, init, seed)
                words = ("tools/train_net.py", "--config-file", task.config, "--resume")
                options = (*extra, "SEED", str(seed), "OUTPUT_DIR", str(folder))
                options += ("MODEL.WEIGHTS", str(start)) if start else ()
                commands = ((*words, *options), (*words, "--eval-only", *options))
                name = f"{task.label.partition(' (')[0]}, {init}, seed {seed}"
                jobs.append(Job(name, commands, folder / "evaluation.json", facts))
    return jobs


def _folder(output: Path, task: Task, init: str, seed: int) -> Path:
    return output / Path(task.config).stem / init.replace(" ", "_") / f"seed{seed}"


def collect(tasks: list[Task], seeds: list[int], output: Path) -> list[dict]:
    """Results as a list of {task, config, paper, seeds, "random init": scores, "pretrained": scores}."""
    results = []
    for task in tasks:
        kind, metric = task.score
        scores = {
            init: [
                json.loads((_folder(output, task, init, seed) / "evaluation.json").read_text())[kind][metric]
                for seed in seeds
            ]
            for init in (RANDOM, PRETRAINED)
        }
        results.append(
            {"task": task.label, "config": task.config, "digits": task.digits, "paper": task.paper, "seeds": seeds}
            | scores
        )
    return results


def as_markdown(results: list[dict]) -> str:
    """The table: mean and standard deviation over seeds, and the paper's two columns."""
    lines = [
        f"| task | {RANDOM} | {PRETRAINED} | paper: {RANDOM} | paper: kNN-MoCo, COCO, 800 epochs |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        ours = [mean_and_spread(result[init], result["digits"]) for init in (RANDOM, PRETRAINED)]
        paper = ["" if value is None else str(value) for value in result["paper"]]
        lines.append(f"| {' | '.join([result['task'], *ours, *paper])} |")
    return "\n".join(lines)
