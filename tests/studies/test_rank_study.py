"""Rank correlations of probe and finetuning."""

import json

from commands import run
from trees import refused

from studies.compare_starts.rank_study import correlation, read_others

FINETUNED = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}


def test_an_order_is_the_same_or_the_reverse_whatever_the_values():
    assert correlation({start: value**3 for start, value in FINETUNED.items()}, FINETUNED)[:2] == ("5", "1.00")
    assert correlation({start: -value for start, value in FINETUNED.items()} | {"f": 1.0}, FINETUNED) == (
        "5", "-1.00", "-1.00 to -1.00",
    )  # fmt: skip
    swapped = FINETUNED | {"a": 2.0, "b": 1.0}  # 1 - 6 * 2 / (5 * 24)
    # Of all 5^5 ways to draw, 2.5 % reach to 0.11 and 5 % to 0.25.
    assert correlation(swapped, FINETUNED)[1:] == ("0.90", "0.11 to 1.00")
    assert correlation({start: -value for start, value in swapped.items()}, FINETUNED)[2] == "-1.00 to -0.11"
    refused("expected at least 4", correlation, {"a": 1.0}, FINETUNED)


def test_the_command_compares_every_score_of_the_probe_and_others(tmp_path):
    for folder in ("comparison", "probe"):
        (tmp_path / folder).mkdir()
    scores = {start: {"mean": {"value": value}, "class, kNN": {"value": -value}} for start, value in FINETUNED.items()}
    (tmp_path / "probe/results.json").write_text(json.dumps({"scores": scores}))
    lines = [f"{start},all,{value},,{value},1" for start, value in FINETUNED.items()]
    (tmp_path / "comparison/scores.csv").write_text("\n".join(["start,labels,mean,deviation,values,seeds", *lines]))
    (tmp_path / "others.csv").write_text("start,knn_top1\na,5\nb,1\nc,2\nd,3\n")
    text = run(f"python studies/compare_starts/rank_study.py {tmp_path} --others {tmp_path}/others.csv", tmp_path)
    assert "| probe: mean | 5 | 1.00 |" in text and "| probe: class, kNN | 5 | -1.00 |" in text
    assert "| knn_top1 | 4 | -0.20 |" in text


def test_other_scores_that_are_none_are_one_line(tmp_path):
    file = tmp_path / "others.csv"
    file.write_text("\ufeffstart,knn,rank\na,1,\nb,2,3\n", encoding="utf-8")  # as Excel writes it
    assert read_others(file) == {"knn": {"a": 1.0, "b": 2.0}, "rank": {"b": 3.0}}
    file.write_text("start,note\na,good\n")
    refused("expected a column start and columns of numbers: could not convert string to float", read_others, file)
    file.write_text("name,knn\na,1\n")
    refused("columns of numbers: start is missing", read_others, file)
