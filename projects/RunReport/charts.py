"""The curves of a report: a small interactive plot for each metric, with a line for each run."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from projects.RunReport.best_scores import is_score
from projects.RunReport.collect import Run

# Readable on white and on black.
COLORS = ("#2f7fd1", "#e1772f", "#2a9d74", "#b45fc2", "#d94f5c", "#8f8a2a", "#1f9fb4", "#a0703c")
DASHES = ("solid", "dash", "dot")  # for more runs than colours
MOST_POINTS = 500  # of a curve, which is some 350 px wide
HEIGHT = 210  # px
HOVER = "#23272e"


class Panel(NamedTuple):
    """A plot to be made."""

    metric: str
    title: str
    note: str = ""


class Group(NamedTuple):
    """Plots that belong together, each as HTML."""

    title: str
    plots: list[tuple[Panel, str]]


KNOWN = {
    "Losses": (
        Panel("total_loss", "total loss", "steps up when L_nn joins"),
        Panel("loss_inst", "L_inst", "starts near log(K + 1) once the queue is full"),
        Panel("loss_nn_raw", "L_nn", "joins after the warm-up epochs"),
        Panel("loss_nn", "lambda L_nn"),
    ),
    "What is learnt": (
        Panel("contrast_top1", "contrast top-1, %", "positives whose anchor is the closest"),
        Panel("contrast_top5", "contrast top-5, %", "whose anchor is among the five closest"),
        Panel("neighbor_purity", "neighbour purity, %", "nearest rows of the queue that share the class"),
        Panel("embedding_std", "embedding std", "1: even over the sphere, 0: collapsed"),
        Panel("feature_std", "feature std", "the same before the head"),
    ),
    "Scores": (
        Panel("knn_top1", "kNN top-1, %"),
        Panel("linear_top1", "linear top-1, %"),
    ),
    "Schedule and throughput": (
        Panel("lr", "learning rate"),
        Panel("images_per_second", "images per second", "of all processes"),
        Panel("data_wait_share", "data wait share", "of a step; below 0.3"),
    ),
}


def color_of(number: int) -> str:
    """The colour of the run of that number."""
    return COLORS[number % len(COLORS)]


def dash_of(number: int) -> str:
    """The dash of the run of that number."""
    return DASHES[number // len(COLORS) % len(DASHES)]


def make_groups(runs: list[Run]) -> list[Group]:
    """Plots of every known metric, loss and score that any of the runs has written."""
    metrics = list(dict.fromkeys(name for run in runs for name, values in run.series.items() if values))
    numbers = count()
    groups = []
    for title, panels in _panels(metrics).items():
        drawn = [(panel, _draw(panel, runs, f"plot-{next(numbers)}")) for panel in panels]
        groups += [Group(title, drawn)] if drawn else []
    return groups


def thinned(values: list[tuple[int, float]], most: int = MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Iterations and values; of a longer curve the lowest and the highest of each stretch, so that spikes stay."""
    x, y = (np.array(column) for column in zip(*values, strict=True))
    if len(x) > most:
        stretches = np.array_split(np.arange(len(x)), most // 2)
        # A value that is no number wins both.
        ends = {int(stretch[pick(y[stretch])]) for stretch in stretches for pick in (np.argmin, np.argmax)}
        kept = sorted(ends | {0, len(x) - 1})
        x, y = x[kept], y[kept]
    return x.astype(np.int32), y.astype(np.float32)


def _panels(metrics: list[str]) -> dict[str, list[Panel]]:
    """The known panels whose metric occurs, then the other losses and scores."""
    panels = {title: [panel for panel in known if panel.metric in metrics] for title, known in KNOWN.items()}
    known = {panel.metric for group in KNOWN.values() for panel in group}
    others = [name for name in metrics if name not in known]
    panels["Losses"] += [Panel(name, name) for name in others if "loss" in name and "/" not in name]
    panels["Scores"] += [Panel(name, name) for name in others if is_score(name)]
    return panels


def _draw(panel: Panel, runs: list[Run], name: str) -> str:
    """An HTML element with its script; plotly's own script must be on the page before it."""
    figure = go.Figure()
    for number, run in enumerate(runs):
        if values := run.series.get(panel.metric):
            x, y = thinned(values)
            figure.add_scatter(
                x=x,
                y=y,
                name=run.name,
                # A single point makes no line, and scores are few enough to be seen one by one.
                mode="lines+markers" if len(x) < 40 else "lines",
                line={"color": color_of(number), "dash": dash_of(number), "width": 1.8 if len(x) < 100 else 1.2},
                opacity=0.85,  # lines of runs alike show through one another
                marker={"size": 4},
                hovertemplate="%{y:.4g}",
            )
    axis = {"automargin": True, "zeroline": False, "showline": False, "nticks": 5}
    figure.update_layout(
        template="none",
        height=HEIGHT,
        margin={"l": 8, "r": 10, "t": 6, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=False,
        hovermode="x unified",
        hoverlabel={"bgcolor": HOVER, "bordercolor": HOVER, "font": {"color": "#fff", "size": 12}},
        font={"family": "system-ui, sans-serif", "size": 11},
        xaxis=axis | {"exponentformat": "SI"},
        yaxis=axis | {"exponentformat": "power"},
    )
    return figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        config={"responsive": True, "displayModeBar": False},
        default_width="100%",
        default_height=f"{HEIGHT}px",
        div_id=name,
    )
