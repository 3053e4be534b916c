import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest


@pytest.fixture
def run_project(toy_datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Runs projects/NAME/run.py in this process, which spares the imports; the folder of its results."""
    monkeypatch.setattr("projects.common.entry.setup_logger", lambda *args, **options: None)  # it outlives the test

    def call(project: str, config: str, options: str = "", weights: str | Path | None = "random") -> Path:
        output = tmp_path / "output"
        words = ["--config-file", f"projects/{project}/configs/{config}.yaml", "--output", str(output)]
        words += ["--weights", str(weights)] if weights else []
        monkeypatch.setattr(sys, "argv", ["run.py", *words, *shlex.split(options)])
        import_module(f"projects.{project}.run").main()
        return output

    return call
