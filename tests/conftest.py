from __future__ import annotations

from pathlib import Path

import pytest
from commands import ROOT, TINY, run

from revisit.toy.write import make_toy_scenes


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


@pytest.fixture(scope="session")
def pretrained(toy_root, tmp_path_factory) -> Path:
    """README: the first look, up to the converted weights, by 2 processes."""
    output = tmp_path_factory.mktemp("run")
    text = run(
        "python tools/train_net.py --config-file configs/toy/pretrain.yaml --num-gpus 2 "
        f"SOLVER.MAX_ITER 10 OUTPUT_DIR {output} {TINY}",
        toy_root,
    )
    assert "2 gloo processes" in text and "eta: " in text
    run(f"python tools/convert_to_d2.py {output}/model_final.pth {output}/backbone.pth", toy_root)
    return output


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that drive whole programs first: at the end, one process would work on them while the others wait."""
    items.sort(key=lambda item: item.path.parent != ROOT / "tests")
