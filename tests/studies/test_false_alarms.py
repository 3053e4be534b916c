"""Every sentence of compare_starts on equal starts."""

import pytest
from commands import run

from studies.compare_starts.false_alarms import SENTENCES, share_of_alarms

TRIALS = 300  # 5 % of them have a standard error of 1.3 %


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence_names_a_difference_of_equal_starts_in_five_percent_at_most(name):
    shares = {tuple(what): share_of_alarms(trial, TRIALS) for what, trial in SENTENCES[name]([3])}
    assert max(shares.values()) <= 0.05 + 4 * 0.0126, shares
    assert max(shares.values()) > 0  # the simulation can find one


def test_the_command_has_a_row_for_each_comparison(tmp_path):
    output = run("python studies/compare_starts/false_alarms.py --trials 3 --seeds 2 --sentences until-flat", tmp_path)
    assert output.count("| until-flat |") == 8 and "3 comparisons each" in output
