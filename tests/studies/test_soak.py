"""A training that is killed at random and resumed."""

import json

from commands import run


def test_soak_kills_a_run_and_finds_it_bit_identical(tmp_path):
    text = run(f"python studies/benchmarks/soak.py kill --runs 1 --output {tmp_path}", tmp_path)
    assert "kill: 1 of 1 runs ended bit-identical" in text
    assert json.loads((tmp_path / "kill.json").read_text())[0]["lost"] <= 4
