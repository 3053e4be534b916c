"""Which score a run is about, and when it is better."""

from math import isnan

from hypothesis import given
from hypothesis import strategies as st
from trees import refused

from projects.Reports.main_score import direction, find_score, is_better
from revisit.engine.setup import make_config


def test_the_main_score_is_the_first_sets():
    cfg = make_config("configs/toy/detection.yaml", ["DATASETS.TEST", "('a','b')"])
    assert find_score(cfg, {"b/bbox/AP": 1.0, "a/bbox/AP": 2.0}) == 2
    refused("no bbox/AP in the evaluation of a: .* b/bbox/AP", find_score, cfg, {"b/bbox/AP": 1.0})


def test_a_score_has_its_direction_after_the_name_of_one_of_several_test_sets():
    assert (direction("depth/rmse"), direction("nyu/depth/rmse"), direction("coco:/a:/a.json/bbox/AP")) == (-1, -1, 1)


@given(st.floats(), st.floats())
def test_lower_errors_are_better_and_undefined_values_never(one, other):
    for score, sign in (("depth/rmse", -1), ("depth/absrel", -1), ("depth/delta1", 1), ("bbox/AP", 1)):
        if isnan(one):
            assert not is_better(score, one, other)
        else:
            assert is_better(score, one, other) == (isnan(other) or sign * one > sign * other)
