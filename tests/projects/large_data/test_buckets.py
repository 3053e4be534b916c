"""A bucket that speaks S3: the run of local files bit by bit, with a cache or none, also after kills and absences."""

import logging
from pathlib import Path

import boto3
import numpy as np
import pytest
from moto.server import ThreadedMotoServer
from PIL import Image
from runs import assert_same, load, train
from trees import pack

NUM_IMAGES = 26
OPTIONS = ("SOLVER.MAX_ITER", 5, "SOLVER.CHECKPOINT_PERIOD", 2, "VIEWS.NUM_SMALL", 0)
WORKERS = ("DATALOADER.NUM_WORKERS", 2)
CACHE = ("DATALOADER.CACHE_GB", 0.01)


@pytest.fixture(scope="module")
def s3():
    """A server of this process; whoever opens s3:// asks it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would name every request
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield boto3.client("s3")
    server.stop()


@pytest.fixture(scope="module")
def places(s3, tmp_path_factory) -> tuple[Path, str]:
    """The same shards in a folder and in a bucket."""
    folder = tmp_path_factory.mktemp("packed")
    for n in range(NUM_IMAGES):
        noise = np.random.default_rng(n).integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{n:02d}.png")
    s3.create_bucket(Bucket="bucket")
    for place in (folder / "shards", "s3://bucket/train"):
        pack(f"--dataset folder:{folder} --output {place} --images-per-shard 10 --workers 2")
    return folder / "shards", "s3://bucket/train"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/revisit/images"


@pytest.fixture(scope="module")
def local(places, tmp_path_factory) -> Path:
    """A run from local files."""
    output = tmp_path_factory.mktemp("local")
    trained(output, places[0])
    return output


def trained(output: Path, place: object, *options: object, resume: bool = False) -> dict:
    train(output, "DATASETS.TRAIN", (f"shards:{place}",), *OPTIONS, *options, resume=resume)
    return load(output / "model_final.pth")


def assert_ends_as(local: Path, other: dict) -> None:
    assert_same(load(local / "model_final.pth")["model"], other["model"])


def stored(s3, name: str) -> bytes:
    return s3.get_object(Bucket="bucket", Key=f"train/{name}")["Body"].read()


def test_a_bucket_gets_the_bytes_of_a_folder(s3, places):
    for path in places[0].iterdir():
        assert stored(s3, path.name) == path.read_bytes()


def test_tar_files_in_a_bucket_are_indexed(s3, places):
    s3.delete_object(Bucket="bucket", Key="train/index.npz")
    pack(f"--index-only --output {places[1]}")
    assert stored(s3, "index.npz") == (places[0] / "index.npz").read_bytes()


def test_a_run_is_that_of_local_files(places, local, tmp_path):
    assert_ends_as(local, trained(tmp_path / "plain", places[1], *WORKERS))
    for name in ("cold", "warm"):
        assert_ends_as(local, trained(tmp_path / name, places[1], *WORKERS, *CACHE))
