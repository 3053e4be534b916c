"""A bucket that speaks S3: the run of local files bit by bit, with a cache or none, also after kills and absences."""

import json
import logging
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import boto3
import numpy as np
import pytest
import requests
import torch
from commands import exit_code_of_fork, launch_forks, wait_until
from moto.server import ThreadedMotoServer
from PIL import Image
from runs import assert_same, load, run, run_config, train
from s3fs import S3FileSystem
from trees import pack, refusal

from projects.LargeData import output_sync
from projects.LargeData.output_sync import OutputSync
from projects.LargeData.places import Place, place_of
from projects.LargeData.run_store import RunStore
from projects.LargeData.shards import load_shards

from detectron2.engine import HookBase

NUM_IMAGES = 26
OPTIONS = ("SOLVER.MAX_ITER", 5, "SOLVER.CHECKPOINT_PERIOD", 2, "VIEWS.NUM_SMALL", 0)
WORKERS = ("DATALOADER.NUM_WORKERS", 2)
CACHE = ("DATALOADER.CACHE_GB", 0.01)
COPY = "s3://bucket/run"


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
        pack(f"--data folder:{folder} --output {place} --count 10 --processes 2")
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


class Dies(HookBase):
    """By SIGKILL, once the fourth iteration has ended and something else has happened."""

    def __init__(self, has_happened: Callable[[], bool]):
        self._has_happened = has_happened

    def after_step(self) -> None:
        if self.trainer.iter == 3:
            wait_until(self._has_happened)
            os.kill(os.getpid(), signal.SIGKILL)


def trained(output: Path, place: object, *options: object, **how: object) -> dict:
    train(output, "DATASETS.TRAIN", (f"shards:{place}",), *OPTIONS, *options, **how)
    return load(output / "model_final.pth")


def assert_ends_as(local: Path, other: dict) -> None:
    assert_same(load(local / "model_final.pth")["model"], other["model"])


def stored(s3, name: str) -> bytes:
    return s3.get_object(Bucket="bucket", Key=f"train/{name}")["Body"].read()


def test_of_two_that_create_a_file_of_a_bucket_the_first_writes_it(places):
    place = place_of(f"{places[1]}/created")
    assert [place.created("a.json", text) for text in ("first", "second", "first")] == [True, False, True]
    assert place.read("a.json") == b"first"


def test_a_bucket_gets_the_bytes_of_a_folder(s3, places):
    for path in places[0].iterdir():
        assert stored(s3, path.name) == path.read_bytes()


def test_tar_files_in_a_bucket_are_indexed(s3, places):
    s3.delete_object(Bucket="bucket", Key="train/index.npz")
    pack(f"--output {places[1]}")
    assert stored(s3, "index.npz") == (places[0] / "index.npz").read_bytes()


def test_a_run_is_that_of_local_files(places, local, tmp_path):
    assert_ends_as(local, trained(tmp_path / "plain", places[1], *WORKERS))
    for name in ("cold", "warm"):
        assert_ends_as(local, trained(tmp_path / name, places[1], *WORKERS, *CACHE))


def test_two_processes_have_the_run_of_local_files(places, tmp_path):
    one, other = (
        launch_forks(of_two, 2, str(tmp_path / name), place, *CACHE) for name, place in zip("ab", places, strict=True)
    )
    assert all(torch.equal(one[0][name], model[name]) for name in one[0] for model in other)


def of_two(output: str, place: object, *options: object) -> dict:
    train(Path(output), "DATASETS.TRAIN", (f"shards:{place}",), *OPTIONS, *options)
    return load(Path(output) / "model_final.pth")["model"]


def has_files(cache: Path) -> bool:
    return any(cache.glob("??/*"))


def test_a_killed_run_resumes_on_a_machine_without_its_cache(places, local, cache, tmp_path):
    run = partial(trained, tmp_path / "run", places[1], *CACHE)
    assert exit_code_of_fork(partial(run, hook=Dies(partial(has_files, cache)))) == -signal.SIGKILL
    assert (tmp_path / "run/model_0000001.pth").exists()
    shutil.rmtree(cache)
    assert_ends_as(local, run(resume=True))


def has_copy() -> bool:
    listing = RunStore(COPY).listing()
    return listing is not None and "model_0000001.pth" in listing.files


def copied(output: Path, place: object, *, resume: bool = False, **how: object) -> dict:
    """A run whose files go to a bucket while it trains."""
    cfg = run_config(output, "DATASETS.TRAIN", (f"shards:{place}",), *OPTIONS, "OUTPUT_SYNC", COPY)
    sync = OutputSync()
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in {"POLL": 0.01, "SETTLE": 0.0, "SILENCE": 0.1}.items():
            patch.setattr(output_sync, name, seconds)
        sync.prepare(cfg, resume=resume)
        with sync.kept(cfg, resume=resume):
            trainer = run(cfg, resume=resume, **how)
    return load(output / "model_final.pth") | {"start": trainer.start_iter}


def test_a_killed_run_comes_back_from_a_bucket_to_an_empty_disk(places, local, tmp_path):
    assert exit_code_of_fork(partial(copied, tmp_path / "lost", places[1], hook=Dies(has_copy))) == -signal.SIGKILL
    new = copied(tmp_path / "new", places[1], resume=True)
    assert new["start"] >= 2
    assert_ends_as(local, new)
    assert "model_final.pth" in RunStore(COPY).listing().files and RunStore(COPY).owner() is None


def refused_run(place: object) -> str:
    """What is said of a data set in a place, by a process that has not opened it."""
    S3FileSystem.clear_instance_cache()
    return refusal(load_shards, str(place))


def test_other_buckets_than_there_are_and_older_indices_are_refused(s3, places):
    bucket = "s3://buckte/train"
    assert "bucket does not exist" in refused_run(bucket)
    options = f"--data folder:{places[0].parent} --output {bucket}"
    assert "no bucket buckte: make it first" in refusal(pack, options)
    assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == ["bucket"]
    for path in places[0].iterdir():
        s3.put_object(Bucket="bucket", Key=f"older/{path.name}", Body=path.read_bytes())
    load_shards("s3://bucket/older")
    s3.put_object(Bucket="bucket", Key="older/shard-000001.tar", Body=b"1" * 1024)
    assert re.search(
        "shard-000001.tar has 1024 bytes, and .* by index.npz.*make the index", refused_run("s3://bucket/older")
    )


def test_who_may_only_read_cannot_write_and_without_credentials_nobody_reads(s3, places, monkeypatch):
    iam, policy = boto3.client("iam"), {"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}
    iam.create_user(UserName="reader")
    document = json.dumps({"Version": "2012-10-17", "Statement": [policy]})
    iam.put_user_policy(UserName="reader", PolicyName="reads", PolicyDocument=document)
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    with asking_for_rights():
        S3FileSystem.clear_instance_cache()
        assert len(load_shards(places[1]).records) == NUM_IMAGES
        assert "Access Denied: expected credentials that may do this" in refusal(write, place_of(places[1]))
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        assert "expected credentials that may do this" in refused_run(places[1])
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(places[0]))
    assert "Unable to locate credentials: expected some, such as AWS_PROFILE" in refused_run(places[1])
    assert "Unable to locate credentials" in refusal(pack, f"--output {places[1]}")


def write(place: Place) -> None:
    with place.written("a.tar") as path:
        path.touch()


@contextmanager
def asking_for_rights() -> Iterator[None]:
    """The server looks at keys and policies."""
    reset = f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
    requests.post(reset, data=b"0")
    try:
        yield
    finally:
        requests.post(reset, data=b"inf")
        S3FileSystem.clear_instance_cache()
