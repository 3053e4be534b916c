"""Whether what a folder has is of the same facts."""

import pytest
from trees import refused

from revisit.jobs.record import Record


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        ({"a": 1, "b": "x"}, {"a": 2, "b": "x"}, "a 1, now 2"),
        ({"a": 1}, {"a": 1, "b": "x"}, "b"),
        ({"a": 1, "b": "x"}, {"a": 1}, "b"),
        ({"a": 1, "b": 2}, {"a": 1}, "b 2, now None"),
    ],
)
def test_a_fact_that_is_other_new_or_gone_is_a_difference(before, now, change, tmp_path):
    Record(tmp_path, before).claim()
    assert Record(tmp_path, now).differences() == [change]
    refused(f"other settings .{change}.: give another --output", Record(tmp_path, now).claim)


def test_a_fact_that_is_none_may_be_lacking(tmp_path):
    Record(tmp_path, {"a": 1, "b": None}).claim()
    Record(tmp_path, {"a": 1}).claim()
    Record(tmp_path, {"a": 1, "c": None}).claim()
