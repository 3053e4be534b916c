"""Recipes as ``train_net.py --dry-run`` resolves them, for the tests that hold them against tables."""

import json
import runpy
import sys
from pathlib import Path

import pytest

CONFIGS = Path("configs")


def dry_run(config: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """What ``train_net.py --dry-run`` writes of a recipe for two processes."""
    command = ["train_net.py", "--config-file", str(config), "--num-gpus", "2", "--dry-run", "OUTPUT_DIR", str(output)]
    monkeypatch.setattr(sys, "argv", command)
    try:
        runpy.run_path("tools/train_net.py", run_name="__main__")
    except SystemExit as stop:
        assert not stop.code
    return json.loads((output / "dry_run.json").read_text())
