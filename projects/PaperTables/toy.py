"""The paper's ablations on ToyScenes: which rows there are and which jobs make them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from projects.PaperTables.jobs import Job
from projects.PaperTables.spread import mean_and_spread
from revisit.data.catalog import get_records
from revisit.errors import UserError

TRAIN_SETS = {"object-centric": "toy_objects_train", "scene-centric": "toy_scenes_train"}
HELDOUT_SETS = ("toy_objects_train", "toy_objects_heldout")  # the bank that votes, the images that are classified
METRICS = ("knn_top1", "linear_top1")
SWEEP_CENTER = {"KNN_MOCO.NUM_NEIGHBORS": 10, "KNN_MOCO.WEIGHT": 0.4}


@dataclass(frozen=True)
class Row:
    """One row of a table: a recipe, what it overrides, and the paper's value for the same row, if any."""

    label: str
    config: str
    overrides: tuple[str, ...] = ()
    paper: float | None = None  # VOC07 SVM mAP; lambda and mining rows: at the paper's k of 20


# The rows share their backbones' start, whatever they train it with.
RANDOM_INIT = Row("Rand. init.", "configs/toy/pretrain.yaml")


def _sweep_row(paper: float, label: str = "", **changed: object) -> Row:
    values = {**SWEEP_CENTER, **{f"KNN_MOCO.{name}": value for name, value in changed.items()}}
    overrides = tuple(str(word) for pair in values.items() for word in pair)
    k, weight = (values[key] for key in SWEEP_CENTER)
    # Without L_nn this is the ablation's row before it, and need not mine.
    config = "configs/toy/sweep/knn_k10.yaml" if weight else "configs/toy/ablation/moco_mc_cc_m.yaml"
    return Row(f"k {k}, lambda {weight}{label}", config, overrides, paper)


TABLES: dict[str, tuple[Row, ...]] = {
    "ablation": (
        Row("MoCo", "configs/toy/ablation/moco.yaml", paper=76.1),
        Row("+MC", "configs/toy/ablation/moco_mc.yaml", paper=81.3),
        Row("+MC+CC", "configs/toy/ablation/moco_mc_cc.yaml", paper=82.1),
        Row("+MC+CC+m", "configs/toy/ablation/moco_mc_cc_m.yaml", paper=82.8),
        Row("+MC+CC+m+A", "configs/toy/ablation/moco_mc_cc_m_aplus.yaml", paper=83.7),
        Row("+MC+CC+m+A+NN", "configs/toy/ablation/knn_moco.yaml", paper=85.1),
    ),
    "knn": (
        *(
            _sweep_row(paper, NUM_NEIGHBORS=k)
            for k, paper in ((1, 83.6), (5, 84.0), (10, 84.1), (20, 84.2), (50, 84.3))
        ),
        *(_sweep_row(paper, WEIGHT=weight) for weight, paper in ((0.0, 82.8), (0.1, 83.8), (0.2, 84.1), (0.8, 80.7))),
        _sweep_row(82.8, ", mined after the head", MINING="after_head"),
    ),
}


def choose_rows(table: str, only: list[str] | None) -> list[Row]:
    """Rows of a table, all or those named.

    Raises:
        UserError: a name that the table does not have.
    """
    rows = {row.label: row for row in TABLES[table]}
    for label in only or []:
        if label not in rows:
            raise UserError(f"{table} has no row {label!r}: expected some of {', '.join(map(repr, rows))}")
    return [rows[label] for label in only or rows]


def make_jobs(
    rows: list[Row], train_sets: list[str], seeds: list[int], output: Path, extra: tuple[str, ...]
) -> list[Job]:
    """One job a row, training set and seed: pretrain (or go on), then classify held-out images.

    The random init of a seed is every row's start, so it is judged once a seed.

    Args:
        extra: KEY VALUE pairs for every run; what a row itself overrides wins.

    Raises:
        UserError: ToyScenes is not there.
    """
    names = sorted({*HELDOUT_SETS, *(TRAIN_SETS[name] for name in train_sets)})
    counts = {name: f"{name}: {len(get_records(name))} images" for name in names}
    wanted = [(row, name, seed) for name in train_sets for seed in seeds for row in rows]
    # The short ones last, so that they do not fool the estimate of the time left.
    wanted += [(RANDOM_INIT, None, seed) for seed in seeds]
    return [_job(*which, output, extra, counts) for which in wanted]


def _folder(output: Path, label: str, train_set: str | None, seed: int) -> Path:
    name = label.replace(" ", "_").replace(",", "")
    return output / (train_set or "") / name / f"seed{seed}"


def _job(
    row: Row, train_set: str | None, seed: int, output: Path, extra: tuple[str, ...], counts: dict[str, str]
) -> Job:
    """``counts`` says of every data set how large it is."""
    folder = _folder(output, row.label, train_set, seed)
    command = ("tools/train_net.py", "--config-file", row.config, "--resume")
    options = (*extra, *row.overrides, "SEED", str(seed), "OUTPUT_DIR", str(folder))
    judge = (*command, "--eval-only", *options)
    if train_set is None:
        commands = (judge,)
    else:
        data = ("DATASETS.TRAIN", f"('{TRAIN_SETS[train_set]}',)", "KNN_EVAL.BANK", "", "KNN_EVAL.LINEAR", "False")
        commands = ((*command, *options, *data), judge)
    used = {*HELDOUT_SETS, *([TRAIN_SETS[train_set]] if train_set else [])}
    facts = tuple(counts[name] for name in sorted(used))
    return Job(f"{train_set or 'no'} training, {row.label}, seed {seed}", commands, folder / "evaluation.json", facts)


def collect(rows: list[Row], train_sets: list[str], seeds: list[int], output: Path) -> list[dict]:
    """Results as a list of {row, train_set, paper, seeds, overrides, knn_top1, linear_top1}, scores over seeds."""
    found = []
    wanted = [(RANDOM_INIT, None)] + [(row, name) for name in train_sets for row in rows]
    for row, name in wanted:
        files = [_folder(output, row.label, name, seed) / "evaluation.json" for seed in seeds]
        scores = [json.loads(file.read_text()) for file in files]
        overrides = dict(zip(row.overrides[::2], row.overrides[1::2], strict=True))
        found.append(
            {"row": row.label, "train_set": name, "paper": row.paper, "seeds": seeds, "overrides": overrides}
            | {metric: [score[metric] for score in scores] for metric in METRICS}
        )
    return found


def metrics_files(rows: list[Row], train_set: str, seeds: list[int], output: Path) -> dict[str, list[Path]]:
    """metrics.json of every seed by the row's label."""
    return {row.label: [_folder(output, row.label, train_set, s) / "metrics.json" for s in seeds] for row in rows}


def as_markdown(results: list[dict], train_sets: list[str]) -> str:
    """The table: mean and standard deviation over seeds, percent of held-out images classified right."""
    columns = [(name, metric) for name in train_sets for metric in METRICS]
    titles = [f"{name}, {metric.removesuffix('_top1')}" for name, metric in columns]
    lines = ["| row | " + " | ".join(titles) + " | paper, VOC07 SVM mAP |", "|---" * (len(columns) + 2) + "|"]
    for label in dict.fromkeys(result["row"] for result in results):
        of_row = [result for result in results if result["row"] == label]
        cells = []
        for name, metric in columns:
            result = next(r for r in of_row if r["train_set"] in (name, None))
            cells.append(mean_and_spread(result[metric]))
        paper = of_row[0]["paper"]
        lines.append(f"| {label} | " + " | ".join(cells) + f" | {'' if paper is None else paper} |")
    return "\n".join(lines)
