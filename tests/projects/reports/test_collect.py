"""What is read off the folders of runs, and what is refused; tables of JSON, settings, environments; best scores."""

import json
import math
import os

import pytest
from folders import draw, make_run, write_checkpoint
from trees import refused

from projects.Reports.charts import best_before, is_score
from projects.Reports.collect import collect
from projects.Reports.main_score import is_of_class
from projects.Reports.text_tables import as_text, environments, from_csv, from_json, of_evaluation, settings


def only(folder):
    ((run,), _) = collect([folder])
    return run


def test_half_a_run_says_so_and_why(tmp_path):
    make_run(tmp_path / "begun", 40)
    (make_run(tmp_path / "damaged") / "model_final.pth").write_bytes(b"half of it")
    (make_run(tmp_path / "endless", 40, of=0) / "earlier_run_1").mkdir()
    write_checkpoint(make_run(tmp_path / "resumed", of=100) / "model_final.pth", 39)
    states = [run.state for run in collect([tmp_path])[0]]
    assert all(state.so_far and state.kind == "unfinished" for state in states)
    for state, words in zip(states, ("40 of 60", "60 of 60", "40 iterations", "60 of 100"), strict=True):
        assert words in state.text
    lacking = ["no model_final" in state.text for state in states], ["model_final.pth is damaged" in states[1].text]
    assert lacking == ([True, False, True, False], [True])
    assert "earlier_run_1" in states[2].notes[0] and "had finished 40" in states[3].text


def test_a_loss_that_was_not_finite_is_named_until_the_run_has_passed_it(tmp_path):
    draw(make_run(tmp_path, 40) / "non_finite/iteration_0000045_process_1_1.png")
    state = only(tmp_path).state
    assert state.so_far and state.kind == "stopped" and "at iteration 45; 40 of 60" in state.text
    run = only(make_run(tmp_path))
    assert run.state.kind == "finished" and not run.state.so_far and "at iteration 45" in run.state.notes[0]
    assert run.series["lr"] == [(19, 0.1), (39, 0.1), (59, 0.1)] and run.config["SOLVER.BASE_LR"] == 0.03


def test_folders_without_training(tmp_path):
    (tmp_path / "evaluation.json").write_text('{"knn_top1": 10.0}')
    assert only(tmp_path).state.text == "evaluation only"
    (tmp_path / "evaluation.json").rename(tmp_path / "dry_run.json")
    assert only(tmp_path).state.text == "dry run only"
    (tmp_path / "log.txt").touch()
    assert only(tmp_path).state.text == "started, no iteration written yet"


@pytest.mark.parametrize(
    ("file", "content"),
    [("metrics.json", content) for content in (b"\xff\xfe\x00", b'{"loss": 1}\n', b"[1]\n", b"3\n")]
    + [("config.yaml", content) for content in (b"a: [", b"just words", b"[1]", b"\xff\xfe\x00")],
)
def test_files_that_are_not_what_their_names_say_are_refused(tmp_path, file, content):
    (make_run(tmp_path) / file).write_bytes(content)
    refused(file, collect, [tmp_path])


@pytest.mark.parametrize("folder", ["missing", "empty", "photos", "photos/photo_0"])
def test_a_folder_that_is_no_run_is_refused_by_name(tmp_path, folder):
    for path in (tmp_path / "empty", tmp_path / "photos"):
        path.mkdir()
    (tmp_path / "photos/photo_0").touch()
    refused(folder, collect, [tmp_path / folder])


def test_a_folder_of_runs_stands_for_them_and_keeps_its_pictures(tmp_path):
    make_run(tmp_path / "demo/pretrain")
    make_run(tmp_path / "demo/detect", 40)
    draw(tmp_path / "demo/neighbours.png")
    draw(tmp_path / "demo/pretrain/views.png")
    runs, pictures = collect([tmp_path / "demo", tmp_path / "demo/pretrain"])
    assert [run.name for run in runs] == ["detect", "pretrain"]
    assert [(owner, path.name) for owner, path in pictures] == [("demo", "neighbours.png"), ("pretrain", "views.png")]


def test_of_many_galleries_six_from_first_to_last_are_shown(tmp_path):
    for iteration in range(10, 120, 10):
        draw(make_run(tmp_path) / f"neighbours_{iteration:07d}.png")
    draw(tmp_path / "views.png")
    names = [path.name for _, path in collect([tmp_path])[1]]
    assert names == [f"neighbours_{n:07d}.png" for n in (10, 30, 50, 70, 90, 110)] + ["views.png"]


def test_evaluations_are_found_at_any_depth_once_with_what_lies_beside_them(tmp_path):
    run, study = make_run(tmp_path / "run"), tmp_path / "run/studies/linear"
    (run / "evaluation.json").write_text('{"knn_top1": 10.0}')
    draw(run / "views.png")
    draw(study / "path.png")
    draw(study / "overlays/bear.gif")
    (study / "scores.csv").write_text("a,b\n1,2\n")
    (study / "results.json").write_text("{torn")
    in_place, below = only(run).evaluations
    assert in_place[:3] == ("evaluation.json", {"knn_top1": 10.0}, [])
    assert (below.name, below.content) == ("studies/linear/results.json", None)
    assert [path.name for path in (*below.pictures, *below.tables)] == ["path.png", "bear.gif", "scores.csv"]

    both, pictures = collect([run, study])
    assert [[e.name for e in found.evaluations] for found in both] == [["evaluation.json"], ["results.json"]]
    assert [path.name for _, path in pictures] == ["views.png"]


def test_the_environment_is_that_of_every_start(tmp_path):
    assert only(make_run(tmp_path)).environment == {"torch": "2.0", "platform": "Linux"}
    starts = [
        {"commit": "a" * 40, "dirty": True, "torch": "2.0"},
        {"commit": "b" * 40, "dirty": False, "torch": "2.0"},
        {"commit": None, "dirty": None, "torch": "2.1"},
    ]
    (tmp_path / "environment.json").write_text("\n".join(map(json.dumps, starts)) + '\n{"comm')
    commits = f"{'a' * 12}, changed files → {'b' * 12} → unknown"
    assert only(tmp_path).environment == {"commit": commits, "torch": "2.0 → 2.1"}
    runs = collect([make_run(tmp_path / "a"), make_run(tmp_path / "b", torch_version="2.1")])[0]
    first, second = environments(runs)
    assert (first.key, first.values, first.differs, second.differs) == ("torch", ["2.0", "2.1"], True, False)


def test_plain_values_come_first_and_nested_ones_get_tables_of_their_own():
    values = [None, True, 12, 65.79332, 1e-5, 123456.7, float("nan"), [1, 2.5], [], "<b>"]
    assert [*map(as_text, values)] == ["–", "yes", "12", "65.79", "1e-05", "123,457", "nan", "1, 2.5", "()", "<b>"]
    content = {"bbox": {"AP": 1.5, "AP50": 2.5}, "weights": "random", "deep": {"er": {"x": 1}}, "none": {}}
    assert from_json(content) == [
        ("", ["", "value"], [["weights", "random"], ["none", "{}"]]),
        ("bbox", ["", "value"], [["AP", "1.5"], ["AP50", "2.5"]]),
        ("deep / er", ["", "value"], [["x", "1"]]),
    ]
    (table,) = from_json([{"k": 1, "score": 10.0}, {"k": 5, "other": True}])
    assert table == ("", ["k", "score", "other"], [["1", "10", "–"], ["5", "–", "yes"]])
    (table,) = from_json({"bear": {"J": 0.5, "F": 0.25}, "cat": {"J": 0.75, "F": 1.0}})
    assert table == ("", ["", "J", "F"], [["bear", "0.5", "0.25"], ["cat", "0.75", "1"]])


def test_settings_are_those_that_are_not_default_and_what_differs_comes_first(tmp_path):
    same = "SEED: -1\nOUTPUT_DIR: {}\nOLD:\n  KEY: ''\nMOCO:\n  TEMPERATURE: 0.2\nVIEWS:\n  LARGE_SCALE: [0.2, 1.0]\n"
    a = make_run(tmp_path / "a", config=same.format("a"))
    b = make_run(tmp_path / "b", config=same.format("b") + "NEIGHBORS:\n  NUM_NEIGHBORS: 5\n")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/results.json").write_text("{}")
    assert settings(collect([a, b, tmp_path / "c"])[0]) == [
        ("NEIGHBORS.NUM_NEIGHBORS", "20", ["–", "5", "–"], True),
        ("OLD.KEY", "–", ['""', '""', "–"], False),
        ("SOLVER.BASE_LR", "0.001", ["0.03", "0.03", "–"], False),
        ("SOLVER.MAX_ITER", "40000", ["60", "60", "–"], False),
    ]
    assert settings(collect([tmp_path / "c"])[0]) == []


@pytest.mark.parametrize("name", ["bbox/AP50", "knn_top1"])
def test_the_best_is_named_where_better_has_a_direction_and_it_is_not_the_last(name):
    assert best_before(name, [(9, 1.0), (19, 3.0), (29, 2.0)]) == (19, 3.0)
    assert best_before(name, [(9, math.nan), (19, 3.0), (29, 2.0)]) == (19, 3.0)
    assert best_before(name, [(9, 1.0), (19, 3.0)]) is best_before("depth/rmse", [(9, 5.0), (19, 3.0)]) is None
    assert best_before("depth/absrel", [(9, 5.0), (19, 3.0), (29, 4.0)]) == (19, 3.0)
    assert is_score(name) and is_score("depth/rmse") and not any(map(is_score, ("bbox/AP-cat", "lr", "rpn/num_pos")))


def test_a_dash_in_the_name_of_a_data_set_hides_no_score():
    of_sets = ("voc:/my-boxes:test/bbox/AP", "knn_top1/folder:/my-photos", "my-set/PQ", "folder:/my-photos/rankme")
    assert all(map(is_score, of_sets)) and not any(map(is_of_class, (*of_sets, "grad-norm")))
    of_classes = ("my-set/bbox/AP-cat", "bbox/AP-cat/dog", "a/sem_seg/IoU-traffic-light", "mine/score-cat")
    assert all(map(is_of_class, of_classes)) and not any(map(is_score, of_classes))


def test_what_a_link_leads_to_out_of_the_folder_is_left_out_of_the_page(tmp_path, caplog):
    """Whatever a run's file is called; a pipe in its place is not waited for."""
    secret = draw(tmp_path / "secret/secret.png")
    (secret.parent / "secret.txt").write_text('{"secret": 1}\n')
    run = make_run(tmp_path / "runs/a")
    make_run(secret.parent / "run")
    (run / "results.json").write_text("{}")
    for name in ("table.md", "scores.csv", "environment.json", "evaluation.json"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secret.with_suffix(".txt"))
    (run / "views.png").symlink_to(secret)
    (run / "overlays").mkdir()
    (run / "overlays/a.gif").symlink_to(secret)
    (run.parent / "b").symlink_to(secret.parent / "run")
    (run.parent / "c").mkdir()
    os.mkfifo(run.parent / "c/metrics.json")
    os.mkfifo(run / "model_0000001.pth")
    own = draw(run / "own/seen.png")
    (run / "own/results.json").write_text("{}")
    (run / "here.png").symlink_to(own)
    runs, pictures = collect([tmp_path / "runs"])
    assert [run.name for run in runs] == ["a"] and runs[0].environment == {}
    assert [evaluation.name for evaluation in runs[0].evaluations] == ["own/results.json", "results.json"]
    assert [evaluation.tables for evaluation in runs[0].evaluations] == [[], []]
    assert [path.name for path in runs[0].evaluations[1].pictures] == ["here.png"] and not pictures
    assert caplog.text.count("is a link out of") >= 6 and "runs/b" in caplog.text


@pytest.mark.parametrize("name", ["results.json", "evaluation.json"])
def test_what_a_run_of_others_has_written_ends_no_report(tmp_path, name):
    folder = make_run(tmp_path)
    (folder / "below").mkdir()
    (folder / "below" / name).write_text("[" * 100_000)
    (folder / "environment.json").write_text('{"commit": 5}')
    with (folder / "metrics.json").open("a") as file:
        file.write('{"iteration": 59, "words": "many", "nothing": null}\n')
    run = only(folder)
    assert run.environment["commit"] == "5"
    assert not {"words", "nothing"} & run.series.keys()
    with (tmp_path / "wide.csv").open("w") as file:
        file.write("a\n" + "x" * 200_000)
    refused("reading .*wide.csv: .*field larger", from_csv, tmp_path / "wide.csv")
    ((why,),) = of_evaluation(None, [tmp_path / "wide.csv"])[0].rows  # and the page has all else
    assert "field larger" in why
