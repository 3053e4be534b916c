"""JSON of any shape, settings and environments as tables; which scores are the best."""

import pytest
from folders import make_run

from projects.RunReport.charts import best_before, is_score
from projects.RunReport.collect import collect
from projects.RunReport.tables import as_text, environments, from_csv, from_json, settings


def test_values():
    values = [None, True, 12, 65.79332, 1e-5, 123456.7, float("nan"), [1, 2.5], [], {"k": 5}, "<b>", list(range(10))]
    texts = ["–", "yes", "12", "65.79", "1e-05", "123,457", "nan", "1, 2.5", "()", "k 5", "<b>"]
    assert list(map(as_text, values)) == [*texts, "0, 1, 2, 3, 4, 5, 6, 7, … (10 in all)"]


def test_plain_values_come_first_and_nested_ones_get_tables_of_their_own():
    content = {"bbox": {"AP": 1.5, "AP50": 2.5}, "weights": "random", "deep": {"er": {"x": 1}}, "none": {}}
    assert from_json(content) == [
        ("", ["", "value"], [["weights", "random"], ["none", "{}"]]),
        ("bbox", ["", "value"], [["AP", "1.5"], ["AP50", "2.5"]]),
        ("deep / er", ["", "value"], [["x", "1"]]),
    ]


def test_alike_dicts_share_a_table_with_a_column_for_each_key():
    (table,) = from_json([{"k": 1, "score": 10.0}, {"k": 5, "other": True}])
    assert table == ("", ["k", "score", "other"], [["1", "10", "–"], ["5", "–", "yes"]])
    (table,) = from_json({"bear": {"J": 0.5, "F": 0.25}, "cat": {"J": 0.75, "F": 1.0}})
    assert table == ("", ["", "J", "F"], [["bear", "0.5", "0.25"], ["cat", "0.75", "1"]])


@pytest.mark.parametrize("content", [3, [], {}, "text", [1, 2], [{}], {"a": [{}], "b": [[1]]}])
def test_any_json_can_be_shown(content):
    assert all(isinstance(cell, str) for table in from_json(content) for row in table.rows for cell in row)


def test_csv(tmp_path):
    (tmp_path / "scores.csv").write_text("name,J\nbear,0.5\n\n")
    assert from_csv(tmp_path / "scores.csv") == ("scores.csv", ["name", "J"], [["bear", "0.5"]])
    (tmp_path / "empty.csv").write_text("")
    assert from_csv(tmp_path / "empty.csv").rows == []


def test_settings_are_those_that_are_not_default_and_what_differs_comes_first(tmp_path):
    same = "SEED: -1\nOUTPUT_DIR: {}\nOLD:\n  KEY: ''\nMOCO:\n  TEMPERATURE: 0.2\nVIEWS:\n  LARGE_SCALE: [0.2, 1.0]\n"
    a = make_run(tmp_path / "a", config=same.format("a"))
    b = make_run(tmp_path / "b", config=same.format("b") + "KNN_MOCO:\n  NUM_NEIGHBORS: 5\n")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/results.json").write_text("{}")
    assert settings(collect([a, b, tmp_path / "c"])[0]) == [
        ("KNN_MOCO.NUM_NEIGHBORS", "20", ["–", "5", "–"], True),
        ("OLD.KEY", "–", ['""', '""', "–"], False),
        ("SOLVER.BASE_LR", "0.001", ["0.03", "0.03", "–"], False),
        ("SOLVER.MAX_ITER", "40000", ["60", "60", "–"], False),
    ]
    assert settings(collect([tmp_path / "c"])[0]) == []


def test_environments_that_differ_come_first(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", torch_version="2.1")]
    first, *others = environments(collect(runs)[0])
    assert (first.key, first.values, first.differs) == ("PyTorch", ["2.0 @/here", "2.1 @/here"], True)
    (tmp_path / "b/log.txt").unlink()
    assert not any(line.differs for line in [*others, *environments(collect(runs)[0])])


@pytest.mark.parametrize("name", ["bbox/AP50", "knn_top1"])
def test_the_best_is_named_where_better_has_a_direction_and_it_is_not_the_last(name):
    assert best_before(name, [(9, 1.0), (19, 3.0), (29, 2.0)]) == (19, 3.0)
    assert best_before(name, [(9, 1.0), (19, 3.0)]) is best_before("depth/rmse", [(9, 5.0), (19, 3.0)]) is None
    assert is_score(name) and is_score("depth/rmse") and not is_score("bbox/AP-cat") and not is_score("lr")
