from __future__ import annotations

from pathlib import Path

import pytest

from revisit.toy.write import make_toy_scenes

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _run_from_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # config files are named from there


@pytest.fixture(scope="session")
def toy_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for DETECTRON2_DATASETS that holds ToyScenes of 60 images."""
    root = tmp_path_factory.mktemp("datasets")
    make_toy_scenes(root / "toy_scenes", num_images=60, seed=0, size=64, workers=2)
    return root


@pytest.fixture
def toy_datasets(toy_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DETECTRON2_DATASETS", str(toy_root))
    return toy_root
