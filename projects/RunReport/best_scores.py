"""What the summary says about a run: which metrics are scores, which value was the best, how fast the run was."""

import statistics

from projects.RunReport.collect import Point, ReportedRun

LOSSES = ("total_loss", "loss_inst", "loss_nn_raw")
TOP1 = ("knn_top1", "linear_top1")
HIGHER_IS_BETTER = (*TOP1, "bbox/AP", "segm/AP", "sem_seg/mIoU")


def is_score(name: str) -> bool:
    """Whether a metric is a score of a data set as a whole; a dash stands before a class's name."""
    return name.startswith(TOP1) or ("/" in name and "-" not in name)


def best_before(name: str, points: list[Point]) -> Point | None:
    """The best value of a metric if it is not the last; None where the code does not know which way is better."""
    best = max(points, key=lambda point: point[1]) if name.startswith(HIGHER_IS_BETTER) else points[-1]
    return best if best[0] != points[-1][0] else None


def speed(run: ReportedRun) -> float | None:
    """Images per second, the median over the run; the first value is that of a loader and caches still cold."""
    values = [value for _, value in run.series.get("images_per_second", ())]
    return statistics.median(values[1:] or values) if values else None
