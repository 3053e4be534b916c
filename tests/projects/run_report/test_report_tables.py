"""JSON of any shape, settings and environments as tables."""

from __future__ import annotations

import pytest
from folders import make_run

from projects.RunReport.best_scores import summarize
from projects.RunReport.collect import collect
from projects.RunReport.tables import MOST_ROWS, as_text, environments, from_csv, from_json, settings


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "yes"),
        (12, "12"),
        (65.79332, "65.79"),
        (1e-5, "1e-05"),
        (123456.7, "123,457"),
        (float("nan"), "nan"),
        ([1, 2.5], "1, 2.5"),
        (list(range(10)), "0, 1, 2, 3, 4, 5, 6, 7, … (10 in all)"),
        ([], "()"),
        ({"k": 5}, "k 5"),
        ("<b>", "<b>"),
    ],
)
def test_values(value, text):
    assert as_text(value) == text


def test_plain_values_come_first_and_nested_ones_get_tables_of_their_own():
    content = {"bbox": {"AP": 1.5, "AP50": 2.5}, "weights": "random", "deep": {"er": {"x": 1}}, "none": {}}
    plain, bbox, deep = from_json(content)
    assert (plain.title, plain.headers, plain.rows) == ("", ["", "value"], [["weights", "random"], ["none", "{}"]])
    assert (bbox.title, bbox.rows) == ("bbox", [["AP", "1.5"], ["AP50", "2.5"]])
    assert (deep.title, deep.rows) == ("deep / er", [["x", "1"]])


def test_alike_dicts_share_a_table_with_a_column_a_key():
    (table,) = from_json([{"k": 1, "score": 10.0}, {"k": 5, "other": True}])
    assert table.headers == ["k", "score", "other"] and table.rows == [["1", "10", "–"], ["5", "–", "yes"]]
    (table,) = from_json({"bear": {"J": 0.5, "F": 0.25}, "cat": {"J": 0.75, "F": 1.0}})
    assert table.headers == ["", "J", "F"] and table.rows == [["bear", "0.5", "0.25"], ["cat", "0.75", "1"]]


@pytest.mark.parametrize("content", [3, [], {}, "text", [1, 2], [{}], {"a": [{}], "b": [[1]]}])
def test_any_json_can_be_shown(content):
    assert all(isinstance(cell, str) for table in from_json(content) for row in table.rows for cell in row)


def test_a_long_table_is_cut_and_says_so():
    (table,) = from_json([{"n": n} for n in range(MOST_ROWS + 5)])
    assert (len(table.rows), table.left_out) == (MOST_ROWS, 5)


def test_csv(tmp_path):
    (tmp_path / "scores.csv").write_text("name,J\nbear,0.5\n\n")
    table = from_csv(tmp_path / "scores.csv")
    assert (table.title, table.headers, table.rows) == ("scores.csv", ["name", "J"], [["bear", "0.5"]])
    (tmp_path / "empty.csv").write_text("")
    assert from_csv(tmp_path / "empty.csv").rows == []


def test_settings_are_those_that_are_not_default_and_what_differs_comes_first(tmp_path):
    same = "SEED: -1\nOUTPUT_DIR: {}\nOLD:\n  KEY: ''\nMOCO:\n  TEMPERATURE: 0.2\nVIEWS:\n  LARGE_SCALE: [0.2, 1.0]\n"
    runs = [
        make_run(tmp_path / "a", config=same.format("a")),
        make_run(tmp_path / "b", config=same.format("b") + "KNN_MOCO:\n  NUM_NEIGHBORS: 5\n"),
        tmp_path / "c",
    ]
    (tmp_path / "c").mkdir()
    (tmp_path / "c/results.json").write_text("{}")
    lines = settings(collect(runs).runs)
    assert [(line.key, line.default, line.values, line.differs) for line in lines] == [
        ("KNN_MOCO.NUM_NEIGHBORS", "20", ["–", "5", "–"], True),
        ("OLD.KEY", "–", ['""', '""', "–"], False),
        ("SOLVER.BASE_LR", "0.001", ["0.03", "0.03", "–"], False),
        ("SOLVER.MAX_ITER", "40000", ["60", "60", "–"], False),
    ]
    assert settings(collect([tmp_path / "c"]).runs) == []


def test_environments_that_differ_come_first(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", torch_version="2.1")]
    (tmp_path / "b/log.txt").rename(tmp_path / "b/other.txt")
    assert not any(line.differs for line in environments(collect(runs).runs))
    (tmp_path / "b/other.txt").rename(tmp_path / "b/log.txt")
    first, *others = environments(collect(runs).runs)
    assert (first.key, first.values, first.differs) == ("PyTorch", ["2.0 @/here", "2.1 @/here"], True)
    assert not any(line.differs for line in others)


def test_a_summary_has_the_last_values_and_the_best_where_better_has_a_direction(tmp_path):
    folder = make_run(tmp_path)
    with open(folder / "metrics.json", "a") as file:
        file.write('{"iteration": 60, "depth/rmse": 1.5, "bbox/AP50": 3.0, "bbox/AP-cat": 1.0}\n')
    summary = summarize(collect([folder]).runs[0])
    assert summary.losses == {"total_loss": (59, 5.41), "loss_inst": (59, 5.41)}
    assert summary.images_per_second == 149  # of 119, 139 and 159 the first is a cold start
    knn = summary.scores["knn_top1"]
    assert (knn.last, knn.iteration, knn.best, knn.best_iteration) == (pytest.approx(14.1), 59, pytest.approx(17.1), 29)
    assert summary.scores["depth/rmse"].best is None and summary.scores["bbox/AP50"].best == 3
    assert "bbox/AP-cat" not in summary.scores
