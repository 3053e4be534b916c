import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import active_children, forkserver
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from commands import ROOT, TINY, rarely_collect, run, share_forks
from fields import make_chain
from filelock import FileLock
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings
from PIL import Image

from projects.ToyScenes.write import make_toy_scenes
from revisit.data.sources.catalog import DataSet, drop_records
from revisit.jobs import commands as jobs

from detectron2.data import DatasetCatalog

# Neither how fast a machine is nor chance decides whether a test passes.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("drawn", deadline=None, max_examples=1000)  # of make fuzz
settings.load_profile("same")


def make_picture(height, width, seed=0):
    """A made-up photograph: smooth colours, one sharp-edged object, a little noise; (H, W, 3) uint8 RGB."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width, 2)
    colors = rng.uniform(40, 200, (3, 3))
    picture = colors[0] + (colors[1] - colors[0]) * y[..., None] + (colors[2] - colors[0]) * x[..., None]
    picture[height // 4 : height // 2, width // 4 : (3 * width) // 4] = rng.uniform(0, 255, 3)
    return np.clip(picture + rng.normal(0, 4, picture.shape), 0, 255).astype(np.uint8)


@pytest.fixture(name="make_picture")
def make_picture_fixture():
    return make_picture


@pytest.fixture
def write_pictures():
    """Write ``count`` different pictures into a folder; returns their paths, in sorted order."""

    def write(folder, count, size=(30, 40)):
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{n:03d}.png" for n in range(count)]
        for n, path in enumerate(paths):
            Image.fromarray(make_picture(*size, seed=n)).save(path)
        return paths

    return write


class ListedWhileItGrows(dict):
    """What fsspec's store in memory holds: one thread may list it while another one writes."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())


MemoryFileSystem.store = ListedWhileItGrows()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path, monkeypatch) -> Iterator[str]:
    """The URL of a folder, tmp_path/served, on a server on this machine."""
    monkeypatch.setenv("FVCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "served").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "served")))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _run_from_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # config files are named from there


@pytest.fixture(autouse=True)
def _own_classes() -> Iterator[None]:
    """What a test has made data sets follow ends with it, and so does what was remembered of their sizes."""
    yield
    drop_records()
    for data_set in DatasetCatalog.values():
        if isinstance(data_set, DataSet):
            data_set.order = None
            data_set.let_metadata_say(data_set.own_classes, data_set.own_classes)
    jobs._size.cache_clear()


@pytest.fixture(scope="session")
def toy_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for DETECTRON2_DATASETS that holds ToyScenes of 60 images. To read."""
    return made_once(tmp_path_factory, "datasets", make_toy_root)


def make_toy_root(root: Path) -> None:
    make_toy_scenes(root / "toy_scenes", num_images=60, seed=0, size=64, workers=1)


@pytest.fixture
def toy_datasets(toy_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DETECTRON2_DATASETS", str(toy_root))
    return toy_root


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first process of the suite makes that asks for it, and all read."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock"):
        if not Path(f"{folder}.made").exists():
            make(folder)
            Path(f"{folder}.made").touch()
    return folder


@pytest.fixture(scope="session")
def pretrained(toy_root, tmp_path_factory) -> Path:
    """README: the first look, up to the converted weights, by 2 processes. To read."""
    return made_once(tmp_path_factory, "pretrained", partial(pretrain, toy_root))


@pytest.fixture(scope="session")
def of_channels(tmp_path_factory) -> Path:
    """A folder by ``make_chain``: what was pretrained, converted and finetuned on images of five channels. To read."""
    return made_once(tmp_path_factory, "of_channels", make_chain)


def pretrain(toy_root: Path, output: Path) -> None:
    text = run(
        "python tools/train_net.py --config-file configs/toy/pretrain.yaml --num-gpus 2 "
        f"SOLVER.MAX_ITER 10 OUTPUT_DIR {output} {TINY}",
        toy_root,
    )
    assert "2 gloo processes" in text and "eta: " in text and not (output / "run.lock").exists()
    run(f"python tools/convert_to_d2.py {output}/model_final.pth {output}/backbone.pth", toy_root)


def pytest_configure(config: pytest.Config) -> None:
    """What the suite says of a machine without GPUs holds on one with them, but for the tests that ask for one."""
    if config.option.markexpr != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        share_forks()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for other processes, or for a time to pass."""
    return 1 + (os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that drive whole programs first: at the end, one process would work on them while the others wait."""
    tests = ROOT / "tests"
    next_ones = {tests / "engine", tests / "projects"}
    items.sort(key=lambda item: 0 if item.path.parent == tests else 1 if next_ones & {*item.path.parents} else 2)


def pytest_collection_finish() -> None:
    rarely_collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """What a file leaves, such as loaders whose workers it has killed, is no matter of the next one."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()  # what stays is not looked through again


def pytest_sessionfinish() -> None:
    for process in active_children():  # of a test that failed: the server would wait for it
        process.kill()
    forkserver._forkserver._stop()  # and not when it finds that its client is gone
