"""The small examples of docs/extending.md: what plugs into a run from outside the tree, each in a file of its own."""

import csv
import re
from importlib import import_module
from pathlib import Path

import pytest
from commands import ROOT
from runs import run_config, train
from trees import refused

from revisit.keys import check_values
from revisit.viz.curves import read_metrics

EXAMPLES = Path(__file__).parent
MOST_LINES = 60
SHOWN = re.compile(r"`tests/extension/(\w+\.py)`[^\n]*:\n\n```python\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)


def test_extending_shows_short_examples_as_they_are():
    shown = dict(SHOWN.findall((ROOT / "docs/extending.md").read_text()))
    assert shown
    for name, text in shown.items():
        assert text == (EXAMPLES / name).read_text()
        assert text.count("\n") <= MOST_LINES


def test_a_writer_from_outside_gets_every_metric(toy_datasets, tmp_path):
    import_module("table_writer")
    train(tmp_path, "SOLVER.MAX_ITER", 3, "WRITERS", ("table",))
    text = (tmp_path / "metrics.csv").read_text()
    rows = list(csv.reader(text.splitlines()))
    metrics = read_metrics(tmp_path / "metrics.json")
    assert {name for _, name, _ in rows} == metrics.keys()
    assert [(int(iteration), float(value)) for iteration, name, value in rows if name == "lr"] == metrics["lr"]


def test_an_unknown_writer_is_refused(tmp_path):
    refused(
        "WRITERS is .*'tabel'.*: expected a list, each a name in WRITER_REGISTRY",
        check_values,
        run_config(tmp_path, "WRITERS", ("tabel",)),
    )
