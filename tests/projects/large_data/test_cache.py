"""Images of a store on a disk of this machine: used when whole, within a limit, no more kept on a full disk."""

import errno
import os
import shutil
import signal
from collections import namedtuple
from multiprocessing import get_context
from pathlib import Path
from threading import Event

import fsspec
import numpy as np
import pytest
from tiny import tiny_config
from trees import logged, refused

from projects.LargeData import cache as caching
from projects.LargeData.cache import Cache
from projects.LargeData.ranges_ahead import batches_ahead, fetch

NUM_IMAGES, SIZE = 12, 3000  # bytes, of which a file takes one block
BLOCK = 4096
ROOM = 10**6


@pytest.fixture
def store():
    """A tar file in memory, whose ranges are images."""
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file("/cached/a.tar", np.random.default_rng(0).bytes(NUM_IMAGES * SIZE))
    yield filesystem
    filesystem.rm("/cached", recursive=True)


RANGES = [("memory://cached/a.tar", n * SIZE, (n + 1) * SIZE) for n in range(NUM_IMAGES)]


def complete(cache: Cache, ranges: list = RANGES) -> int:
    """The number of ranges that the store is asked for; all have its bytes."""
    asked = []
    content = cache.complete(ranges, lambda missing: asked.extend(missing) or fetch(missing))
    cache.wait()
    assert content == fetch(ranges)
    return len(asked)


def images_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("??/*"))


def test_what_was_read_once_is_not_asked_for_again(store, tmp_path):
    assert complete(Cache(tmp_path, ROOM)) == NUM_IMAGES
    assert complete(Cache(tmp_path, ROOM)) == 0
    assert int((tmp_path / "used").read_text()) == NUM_IMAGES * BLOCK


def test_nobody_waits_for_a_disk_that_is_slower_than_the_store(store, tmp_path, monkeypatch):
    cache, writes, ready = Cache(tmp_path, ROOM), Cache._write, Event()
    monkeypatch.setattr(Cache, "_write", lambda *of: ready.wait() and writes(*of))
    for each in RANGES:
        assert cache.complete([each], fetch) == fetch([each])
    ready.set()
    cache.wait()
    assert caching.WAITING <= len(images_in(tmp_path)) <= caching.WAITING + 1
    assert complete(cache) >= NUM_IMAGES - caching.WAITING - 1 and complete(cache) == 0


@pytest.mark.parametrize("spoil", ["cut", "longer", "flipped", "empty", "another's"])
def test_a_damaged_file_is_not_used_and_written_again(store, tmp_path, spoil):
    complete(Cache(tmp_path, ROOM))
    path, other, *_ = images_in(tmp_path)
    data = path.read_bytes()
    flipped = data[:500] + bytes([data[500] ^ 4]) + data[501:]
    ways = {"cut": data[:-1], "longer": data + b"1", "flipped": flipped, "empty": b"", "another's": other.read_bytes()}
    path.write_bytes(ways[spoil])
    assert complete(Cache(tmp_path, ROOM)) == 1
    assert path.read_bytes() == data and complete(Cache(tmp_path, ROOM)) == 0


def test_shards_that_are_replaced_are_read_again(store, tmp_path):
    complete(Cache(tmp_path, ROOM))
    store.pipe_file("/cached/a.tar", np.random.default_rng(1).bytes(NUM_IMAGES * SIZE))
    assert complete(Cache(tmp_path, ROOM)) == NUM_IMAGES


@pytest.mark.parametrize("name", ["ETag", "Last-Modified", "blob_id", "mtime", "modificationTime", "modify"])
def test_a_shard_of_the_same_size_has_another_version(store, monkeypatch, name):
    info = {"size": 1}
    versions = set()
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "info", lambda *_, **__: info)
        for info[name] in ("one", "two"):
            versions.add(caching.version_of(RANGES[0][0]))
    assert len(versions) == 2


def test_without_an_answer_about_its_version_a_shard_is_read_from_the_store(store, tmp_path, monkeypatch):
    complete(Cache(tmp_path, ROOM))
    cache = Cache(tmp_path, ROOM)
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "info", lambda *_, **__: [][0])
        assert complete(cache) == NUM_IMAGES
    assert complete(cache) == 0


def test_what_was_used_longest_ago_makes_room_and_what_this_run_uses_stays(store, tmp_path):
    limit = 10 * BLOCK
    complete(Cache(tmp_path, limit), RANGES[:9])
    for n, each in enumerate(RANGES[:9]):
        name = caching.name_of(each, caching.version_of(each[0]))
        os.utime(tmp_path / name[:2] / name[2:], (n, n))
    later = Cache(tmp_path, limit)
    assert complete(later, RANGES[:1]) == 0  # used now
    assert complete(later, RANGES[9:]) == 3 and len(images_in(tmp_path)) == 9
    assert complete(Cache(tmp_path, limit), [RANGES[n] for n in (0, 4, 5, 6, 7, 8, 9, 10, 11)]) == 0
    full = Cache(tmp_path, limit)
    complete(full, RANGES[4:])
    assert complete(full, RANGES[:4]) == 3  # of this run: nothing makes room
    assert complete(full, RANGES[4:]) == 0


def test_the_limit_holds_for_processes_together_one_of_which_is_killed(store, tmp_path):
    limit = 7 * BLOCK
    fork = get_context("fork")

    def work(n: int) -> None:
        cache = Cache(tmp_path, limit)
        if n == 0:
            checksum_of = caching.checksum_of  # the last step before the bytes of a file that is there already
            caching.checksum_of = lambda *of: os.kill(os.getpid(), signal.SIGKILL) if n > 1 else checksum_of(*of)
        for start in np.random.default_rng(n).permutation(NUM_IMAGES):
            n += 1
            complete(cache, RANGES[start : start + 1])

    processes = [fork.Process(target=work, args=(n,)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL, 0, 0]
    whole = [path for path in images_in(tmp_path) if path.stat().st_size]  # the kill may leave an empty one
    assert 5 <= len(whole) <= 7
    complete(Cache(tmp_path, limit))


@pytest.mark.parametrize("full", ["nearly", "wholly"])
def test_a_full_disk_is_one_warning_and_the_images_come_from_the_store(store, tmp_path, monkeypatch, full):
    def usage(_):
        free = 30 - len(images_in(tmp_path))  # of which 20 stay free
        return namedtuple("usage", "total used free")(1000 * BLOCK, 970 * BLOCK, free * BLOCK)

    def opened(path, mode, **options):
        if mode == "wb" and len(images_in(tmp_path)) == 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        return open(path, mode, **options)

    monkeypatch.setattr(shutil, "disk_usage", usage if full == "nearly" else shutil.disk_usage)
    monkeypatch.setattr(caching, "open", opened if full == "wholly" else open, raising=False)
    cache = Cache(tmp_path, ROOM)
    for start, told in ((0, 0), (4, 0), (8, 1), (0, 0)):
        texts = [text for _, text in logged(lambda n=start: complete(cache, RANGES[n : n + 4]))]
        assert len(texts) == told and all("no more images are kept" in text for text in texts)
    assert len(images_in(tmp_path)) == (8 if full == "nearly" else 9)


def test_a_run_says_what_it_needs_of_a_cache(store, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = ("DATASETS.TRAIN", ("shards:memory://cached",), "DATALOADER.CACHE_GB", 0.1, "DATALOADER.BATCHES_AHEAD")
    refused("BATCHES_AHEAD above 0", batches_ahead, tiny_config(*options, 0), iter([]))
    (tmp_path / "revisit").write_text("a file")
    refused("the cache of images .*cannot be a folder", batches_ahead, tiny_config(*options, 1), iter([]))
