import json
import shlex
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from checkpoints import run_checkpoint, write_converted

from revisit.command.evaluation_config import load_project
from revisit.command.evaluation_options import parse_args

NARROW = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"  # as the shared tiny backbone


@pytest.fixture
def run_project(toy_datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple]:
    """Runs an evaluation, PROJECT/NAME, in this process, which spares the imports; its folder, and its results."""
    open_log = "revisit.command.evaluation_config.open_log"
    monkeypatch.setattr(open_log, lambda *args, **options: None)  # it outlives the test

    def call(
        evaluation: str, options: str = "", weights: str | Path | None = "random", output: Path = tmp_path / "output"
    ) -> tuple[Path, dict]:
        project, name = evaluation.split("/")
        files = f"--config-file projects/{project}/configs/{name}/toy.yaml --output {output}"
        words = f"{name}.py {files} {f'--weights {weights}' if weights else ''} {NARROW} {options}"
        monkeypatch.setattr(sys, "argv", shlex.split(words))
        main = import_module(f"projects.{project}.{name}").main
        main(load_project(parse_args(None, network=weights is not None)))
        return output, json.loads((output / "results.json").read_text())

    return call


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A converted backbone as it is drawn. To read."""
    torch.manual_seed(0)
    return str(write_converted(run_checkpoint(), tmp_path_factory.mktemp("weights") / "backbone.pth"))


@pytest.fixture
def videos(toy_root: Path, tmp_path: Path) -> Path:
    """A copy of ToyScenes' videos."""
    return shutil.copytree(toy_root / "toy_scenes/DAVIS", tmp_path / "DAVIS")
