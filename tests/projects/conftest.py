import importlib.util
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ROOT


@pytest.fixture
def run_project(toy_datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Runs projects/NAME/run.py in this process, which spares the imports; the folder of its results."""
    monkeypatch.setattr("projects.common.entry.setup_logger", lambda *args, **options: None)  # it outlives the test

    def call(project: str, config: str, options: str = "", weights: str | Path | None = "random") -> Path:
        folder, output = ROOT / "projects" / project, tmp_path / "output"
        words = ["--config-file", f"{folder}/configs/{config}.yaml", "--output", str(output)]
        words += ["--weights", str(weights)] if weights else []
        monkeypatch.setattr(sys, "argv", ["run.py", *words, *shlex.split(options)])
        spec = importlib.util.spec_from_file_location(f"{project}_run", folder / "run.py")
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        script.main()
        return output

    return call
