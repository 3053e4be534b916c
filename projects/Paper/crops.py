#!/usr/bin/env python
"""How much do two random crops of an image share, and does pretraining change if they may share less?

    python projects/Paper/crops.py --config-file projects/Paper/configs/crops/coco.yaml --output output/crops

draws pairs of crops as pretraining does, for each limit of CROP_STUDY.MAX_IOUS: DIR/iou_histogram.png. With
pretraining runs in CROP_STUDY.RUNS, DIR/runs.png shows their losses, and scores against limits (paper, Section 3.1).
With CROP_STUDY.FRAMEWORKS, as in projects/Paper/configs/crops/frameworks.yaml, DIR/frameworks.png shows what the crops
of other frameworks share.
"""

if __name__ == "__main__":  # before the imports below, which take seconds
    from revisit.command.evaluation_options import run_project

    run_project("Paper.crops", __doc__, network=False)

from pathlib import Path
from typing import NamedTuple

import numpy as np

from projects.Pictures.curves import saved_plot
from revisit.checkpoint.metrics_file import read_metrics
from revisit.command.evaluation_config import write_results
from revisit.data.randomness import Stream, counter_rng
from revisit.data.views.boxes import intersection_over_union
from revisit.data.views.crops import ConstrainedMultiCrop, CropBoxes
from revisit.errors import translated
from revisit.files import read_yaml
from revisit.keys import COUNT, PIXELS, SHARE, declare, list_of, one_of
from revisit.markdown import score_in
from revisit.progress import progress

from detectron2.config import CfgNode


class Crops(NamedTuple):
    """Crops of one image in a framework: two large ones, and small ones. A scale is a share of the image's area."""

    large_scale: tuple[float, float]
    num_small: int = 0
    small_scale: tuple[float, float] = (0.05, 0.14)

    def __str__(self) -> str:
        (low, high), (least, most) = self.large_scale, self.small_scale
        large = f"2 x ({low:g}, {high:g})"
        small = f" + {self.num_small} x ({least:g}, {most:g})" if self.num_small else ""
        return large + small


# As each was published.
FRAMEWORKS = {
    "MoCo": Crops((0.2, 1.0)),
    "SimCLR": Crops((0.08, 1.0)),
    "SwAV": Crops((0.14, 1.0), 6, (0.05, 0.14)),
    "DINO": Crops((0.4, 1.0), 8, (0.05, 0.4)),
}

declare("CROP_STUDY.IMAGE_SIZE", (480, 640), "Height and width of the image with the crops, px.", list_of(PIXELS, 2))
declare("CROP_STUDY.NUM_PAIRS", 20000, "Pairs of crops for each limit.", COUNT)
declare("CROP_STUDY.MAX_IOUS", (1.0, 0.6, 0.4, 0.2, 0.0), "Limits on the IoU of a pair; 1 is none.", list_of(SHARE))
declare("CROP_STUDY.FRAMEWORKS", (), "Whose crops of NUM_PAIRS images to draw.", list_of(one_of(*FRAMEWORKS)))
declare("CROP_STUDY.RUNS", (), "Folders of pretraining runs: config.yaml (its VIEWS.MAX_IOU) and metrics.json.")
declare("CROP_STUDY.EVALUATIONS", (), "Folders with the evaluation.json of each run, in their order; (): RUNS.")
declare("CROP_STUDY.SCORE", "knn_top1", "A key of evaluation.json; a dot goes a level down: bbox.AP50.")


def main(cfg: CfgNode) -> None:
    options = cfg.CROP_STUDY
    output = Path(cfg.OUTPUT_DIR)
    (height, width), (low, high) = options.IMAGE_SIZE, cfg.VIEWS.LARGE_SCALE
    runs = read_runs(options.RUNS, options.EVALUATIONS, options.SCORE)
    size = (height, width)
    count = options.NUM_PAIRS
    overlaps = [draw_overlaps(size, (low, high), limit, count, cfg.SEED) for limit in options.MAX_IOUS]
    shared = [draw_framework(size, name, count, cfg.SEED) for name in options.FRAMEWORKS]
    protocol = f"{count} draws of crops of an image of {width} x {height} px"
    plot_ious(
        {drawn.name: drawn.kinds() for drawn in overlaps},
        f"{protocol}, each {low:g} to {high:g} of the image",
        output / "iou_histogram.png",
    )
    plot_ious(
        {f"{drawn.name}: {FRAMEWORKS[drawn.name]}": drawn.kinds() for drawn in shared},
        protocol,
        output / "frameworks.png",
    )
    results = {
        "overlaps": [drawn.statistics() for drawn in overlaps],
        "frameworks": {drawn.name: drawn.means() for drawn in shared},
        "runs": [{"max_iou": run.max_iou, options.SCORE: run.score} for run in runs],
    }
    write_results(cfg, f"IoU of crops: {protocol}", results, network=False)
    print_overlaps(results["overlaps"], results["frameworks"])
    if runs:
        plot_runs(runs, options.SCORE, output / "runs.png")


def print_overlaps(overlaps: list[dict[str, float]], frameworks: dict[str, dict[str, float]]) -> None:
    """A line for each limit and each framework."""
    for row in overlaps:
        means = f"mean IoU {row['mean_iou']:.3f}, {row['disjoint_percent']:.1f} % share nothing"
        print(f"limit {row['max_iou']:g}: {means}, {row['above_limit']} pairs above the limit")
    for name, means in frameworks.items():
        words = [f"{what} {value:.3f}" for what, value in means.items()]
        print(f"{name}: {', '.join(words)}")


class Overlaps(NamedTuple):
    """Pairs of crops drawn under one limit."""

    max_iou: float
    iou: np.ndarray  # (N,) float64 in [0, 1]
    num_fallbacks: int  # pairs that never met the limit, and may be above it

    @property
    def name(self) -> str:
        return f"{limit_name(self.max_iou)}, {self.num_fallbacks} fallbacks"

    @property
    def above(self) -> np.ndarray:
        """(N,) bool, the pairs above the limit."""
        return self.iou > self.max_iou

    def kinds(self) -> dict[str, np.ndarray]:
        return {"within the limit": self.iou[~self.above], "above it": self.iou[self.above]}

    def statistics(self) -> dict[str, float]:
        disjoint = float(np.mean(self.iou == 0))
        return {
            "max_iou": self.max_iou,
            "mean_iou": round(float(self.iou.mean()), 4),
            "disjoint_percent": round(100 * disjoint, 2),
            "above_limit": int(self.above.sum()),
            "fallbacks": self.num_fallbacks,
        }


def draw_overlaps(
    image_size: tuple[int, int], scale: tuple[float, float], max_iou: float, num_pairs: int, seed: int
) -> Overlaps:
    """The IoU of anchor and large positive, of shares of the area in ``scale``, as pretraining draws them from an image
    of (height, width), px, under VIEWS.MAX_IOU."""
    crops = ConstrainedMultiCrop(large_scale=scale, num_small=0, max_iou=max_iou)
    drawn = draw_boxes(image_size, crops, num_pairs, seed, f"IoU at most {max_iou:g}")
    num_fallbacks = sum(boxes.num_fallbacks for boxes in drawn)
    return Overlaps(max_iou, iou_of(drawn, "positive"), num_fallbacks)


def draw_boxes(
    image_size: tuple[int, int], crops: ConstrainedMultiCrop, num_images: int, seed: int, name: str
) -> list[CropBoxes]:
    """The boxes of the views of so many images of (height, width), px."""
    indices = progress(name, "image", range(num_images))
    return [crops(*image_size, counter_rng(seed, Stream.VIEWS, 0, index)) for index in indices]


def iou_of(drawn: list[CropBoxes], other: str) -> np.ndarray:
    """The IoU of anchors with another crop of their images, (N,) float64; with the small ones, (N, S)."""
    anchors = np.stack([boxes.anchor for boxes in drawn])
    others = np.stack([getattr(boxes, other) for boxes in drawn])
    if others.ndim == 3:
        anchors = anchors[:, None]
    return intersection_over_union(anchors, others)


class Shared(NamedTuple):
    """What a framework's large crops share with the other crops of their images."""

    name: str
    large: np.ndarray  # (N,) float64 in [0, 1], the IoU with the other large crop
    small: np.ndarray  # (N, num_small)

    def kinds(self) -> dict[str, np.ndarray]:
        return {"two large crops": self.large, "large and small": self.small.ravel()}

    def means(self) -> dict[str, float]:
        """Mean IoU of all pairs, and of those with large and with small crops."""
        both = np.concatenate([self.large, self.small.ravel()])
        kinds = {"all": both, "large": self.large, "small": self.small}
        return {f"mean_iou_{name}": round(float(iou.mean()), 4) for name, iou in kinds.items() if iou.size}


def draw_framework(image_size: tuple[int, int], name: str, num_images: int, seed: int) -> Shared:
    """A framework's crops of so many images of (height, width), px, without a constraint.

    Every large crop is paired with all other crops, as its target. Both large crops have one distribution, so that one
    of them stands for both.
    """
    crops = ConstrainedMultiCrop(**FRAMEWORKS[name]._asdict(), min_overlap=0)
    drawn = draw_boxes(image_size, crops, num_images, seed, name)
    return Shared(name, iou_of(drawn, "positive"), iou_of(drawn, "small"))


def limit_name(max_iou: float) -> str:
    return "no limit" if max_iou >= 1 else f"IoU at most {max_iou:g}"


def plot_ious(panels: dict[str, dict[str, np.ndarray]], title: str, path: Path) -> None:
    """By a panel's name and a kind of pairs their IoUs: a histogram of each panel, with the mean of all its pairs.
    Nothing, where there is no panel."""
    if not panels:
        return
    with saved_plot(path, len(panels), size=(3.4, 3), title=title) as axes:
        for axis, (name, kinds) in zip(axes, panels.items(), strict=True):
            kinds = {kind: iou for kind, iou in kinds.items() if iou.size}
            pairs = np.concatenate([*kinds.values()])
            weights = [np.full(len(iou), 100 / len(pairs)) for iou in kinds.values()]
            axis.hist([*kinds.values()], np.linspace(0, 1, 51), weights=weights, stacked=True, label=[*kinds])
            axis.axvline(pairs.mean(), color="black", linewidth=1)
            axis.set_title(f"{name}\nmean {pairs.mean():.3f}", fontsize=9)
            axis.set_xlabel("IoU of two crops")
        axes[0].set_ylabel("pairs (%)")


class LimitedRun(NamedTuple):
    """One pretraining run."""

    max_iou: float
    loss: list[tuple[int, float]]  # loss_inst by iteration
    score: float


def read_runs(folders: list[str], evaluations: list[str], key: str) -> list[LimitedRun]:
    """The runs in the order of their limits, each with the score ``key`` of its evaluation, by default its own."""
    runs = []
    with translated(f"reading CROP_STUDY.RUNS, and CROP_STUDY.SCORE {key} of each in CROP_STUDY.EVALUATIONS"):
        for run, scored in zip(folders, evaluations or folders, strict=True):
            limit = read_yaml(Path(run, "config.yaml"))["VIEWS"]["MAX_IOU"]
            loss = read_metrics(Path(run, "metrics.json"))["loss_inst"]
            score = score_in(Path(scored, "evaluation.json"), key.split("."))
            runs.append(LimitedRun(float(limit), loss, score))
    return sorted(runs, key=lambda run: run.max_iou)


def plot_runs(runs: list[LimitedRun], score: str, path: Path) -> None:
    """Loss by iteration for each limit, and the score against the limit."""
    with saved_plot(path, 2) as (losses, scores):
        for run in runs:
            losses.plot(*zip(*run.loss, strict=True), label=limit_name(run.max_iou))
        losses.set(xlabel="iteration", ylabel="loss_inst")
        scores.plot([run.max_iou for run in runs], [run.score for run in runs], marker="o")
        scores.set(xlabel="limit on the IoU (1: none)", ylabel=score)
