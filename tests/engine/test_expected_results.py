"""TEST.EXPECTED_RESULTS: what is as expected, what is not, and rows that say nothing."""

import logging
from math import nan

import pytest
from commands import TINY, run
from trees import refused

from revisit.engine.expected_results import check_expected
from revisit.engine.setup import make_config

RESULTS = {"knn_top1": 13.3, "bbox": {"AP": 40.0, "AP50": nan}, "toy_voc_test": {"bbox": {"AP": 2.0, "AP75": None}}}


def test_scores_within_their_tolerance_pass(caplog):
    rows = [["knn_top1", "knn_top1", 13.0, 0.5], ("bbox", "AP", 41, 1.0), ["toy_voc_test/bbox", "AP", 2.0, 0]]
    with caplog.at_level(logging.INFO):
        check_expected(rows, RESULTS)
    assert "as TEST.EXPECTED_RESULTS has them" in caplog.text
    check_expected([], {})


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (["bbox", "AP", 50.0, 1.0], "bbox/AP is 40, expected 50 +- 1"),
        (["bbox", "AP50", 50.0, 100.0], "bbox/AP50 is nan, expected 50 +- 100"),
        (["toy_voc_test/bbox", "AP75", 50.0, 1.0], "toy_voc_test/bbox/AP75 is nan, expected 50 +- 1"),
        (["segm", "AP", 50.0, 1.0], "there is no segm/AP among knn_top1, bbox/AP"),
    ],
)
def test_others_end_the_run(row, problem, caplog):
    with pytest.raises(SystemExit, match="1"):
        check_expected([["knn_top1", "knn_top1", 13.0, 0.5], row], RESULTS)
    assert problem in caplog.text


@pytest.mark.parametrize("rows", ["[['bbox', 'AP', 50.0]]", "[7]", "None", "[['bbox', 'AP', '50', 1.0]]"])
def test_rows_that_say_nothing_are_refused(rows):
    refused("TEST.EXPECTED_RESULTS", make_config, "configs/toy/detection.yaml", ["TEST.EXPECTED_RESULTS", rows])


def test_a_finished_run_is_compared_again(toy_root, tmp_path):
    command = f"python tools/train_net.py --config-file configs/toy/pretrain.yaml OUTPUT_DIR {tmp_path} {TINY}"
    expected = "TEST.EXPECTED_RESULTS \"[['knn_top1','knn_top1',500.0,1.0]]\""
    run(f"{command} {expected}", toy_root, expect=1)
    again = command.replace("pretrain.yaml", "pretrain.yaml --resume")
    text = run(f"{again} {expected}", toy_root, expect=1)
    assert "nothing to do" in text and "expected 500 +- 1" in text
    run(again, toy_root)


def test_an_evaluation_is_compared_too(toy_root, tmp_path):
    expected = "TEST.EXPECTED_RESULTS \"[['knn_top1','knn_top1',500.0,1.0]]\""
    command = f"python tools/train_net.py --config-file configs/toy/pretrain.yaml --eval-only OUTPUT_DIR {tmp_path}"
    text = run(f"{command} {TINY} {expected}", toy_root, expect=1)
    assert "expected 500 +- 1" in text and "Traceback" not in text
