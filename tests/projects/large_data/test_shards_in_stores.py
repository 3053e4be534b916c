"""Shards in a store: the bytes of those on a disk, the index last, tar files indexed by their headers."""

import json

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from PIL import Image
from trees import pack, refusal

from projects.LargeData import shards
from projects.LargeData.places import Store, place_of
from projects.LargeData.shards import load_shards, write_index
from revisit.data.images.image_bytes import read_sample

NUM_IMAGES = 11


class Counting(MemoryFileSystem):
    """A store that counts bytes that are read from its files, and whose uploads may fail."""

    protocol = "counting"
    store: dict = {}
    pseudo_dirs = [""]
    read_bytes = 0
    uploads_left = 10**6

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("counting://", "memory://"))

    def put_file(self, lpath, rpath, **options):
        if type(self).uploads_left == 0:
            raise OSError("the store is away")
        type(self).uploads_left -= 1
        super().put_file(lpath, rpath, **options)

    def _open(self, path, mode="rb", **options):
        file = super()._open(path, mode, **options)
        if mode != "rb":
            return file
        counted = MemoryFile(self, path, file.getvalue())
        read = counted.read

        def counting(*args):
            data = read(*args)
            type(self).read_bytes += len(data)
            return data

        counted.read = counting
        return counted


@pytest.fixture(autouse=True)
def store():
    fsspec.register_implementation("counting", Counting, clobber=True)
    Counting.store.clear()
    Counting.read_bytes, Counting.uploads_left = 0, 10**6
    return Store("counting://bucket/train")


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for n in range(NUM_IMAGES):
        Image.fromarray(rng.integers(0, 256, (90, 90, 3), np.uint8)).save(tmp_path / f"images/{n:02d}.png")
    return tmp_path / "images"


def words(images, output):
    return f"--data folder:{images} --output {output} --count 3 --processes 1"


def test_a_store_gets_the_bytes_of_a_folder_the_index_last_and_resumes(images, tmp_path, store):
    pack(words(images, tmp_path / "local"))
    Counting.uploads_left = 3  # the manifest and two shards
    assert "the store is away" in refusal(pack, words(images, store))
    assert list(store.states()) == ["shard-000000.tar", "shard-000001.tar"] and store.read("index.npz") is None
    Counting.uploads_left = 4  # the manifest, two shards and the index: shards that are there are not written again
    pack(words(images, store))
    for path in (tmp_path / "local").iterdir():
        assert store.read(path.name) == path.read_bytes()
    local, remote = load_shards(str(tmp_path / "local")).records, load_shards(str(store)).records
    assert list(map(read_sample, remote)) == list(map(read_sample, local)) and len(remote) == NUM_IMAGES


def test_tar_files_in_a_store_are_indexed_by_their_headers(images, store):
    pack(words(images, store))
    index = store.read("index.npz")
    store.remove("index.npz")
    Counting.read_bytes = 0
    pack(f"--output {store}")
    assert store.read("index.npz") == index
    assert Counting.read_bytes < sum(state.size for state in store.states().values()) / 10


def test_an_interrupted_index_continues(images, store, monkeypatch):
    pack(words(images, store))
    whole = store.read("index.npz")
    store.remove("index.npz")
    monkeypatch.setattr(shards, "NOTED", 1)
    read, names = shards.index_shard, []

    def interrupted(place, name):
        names.append(name)
        if len(names) == 3:
            raise KeyboardInterrupt
        return read(place, name)

    monkeypatch.setattr(shards, "index_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_index(store, list(store.states()))
    assert [list(json.loads(store.read(f"index.partial.{n}.json"))) for n in (0, 1)] == [names[:1], names[1:2]]
    write_index(store, list(store.states()))
    assert len(names) == 3 + 2 and not any("partial" in name for name in Counting.store)
    assert store.read("index.npz") == whole


@pytest.mark.parametrize("count", [3, 4])
def test_of_two_commands_that_begin_a_place_at_once_none_mixes_its_shards_with_others(
    count, images, store, monkeypatch
):
    """Where both pack the same, each may put what the other has packed into its index."""
    put, begun = Counting.put_file, []

    def after_another_command(self, lpath, rpath, **options):
        if not begun:
            begun.append(rpath)
            pack(words(images, store).replace("count 3", f"count {count}"))
        put(self, lpath, rpath, **options)

    monkeypatch.setattr(Counting, "put_file", after_another_command)
    if count == 3:
        pack(words(images, store))
    else:
        message = refusal(pack, words(images, store))
        assert "has shards made otherwise: another size" in message and "choose another --output" in message
    assert begun[0].endswith("shards.json") and json.loads(store.read("shards.json"))["images_per_shard"] == count
    assert len(load_shards(str(store)).records) == NUM_IMAGES


def test_a_store_that_knows_no_file_that_only_one_creates_gets_its_shards(images, store, monkeypatch):
    put = Counting.put_file

    def as_a_clone(self, lpath, rpath, mode="overwrite", **options):
        if mode == "create":
            raise OSError("501 Not Implemented")
        put(self, lpath, rpath, **options)

    monkeypatch.setattr(Counting, "put_file", as_a_clone)
    pack(words(images, store))
    assert len(load_shards(str(store)).records) == NUM_IMAGES


def test_refusals_say_what_to_do(images, store):
    assert "no *.tar in counting://bucket/train" in refusal(pack, f"--output {store}")
    assert "opening nowhere://bucket" in refusal(place_of, "nowhere://bucket")
    pack(words(images, store))
    assert "choose another --output" in refusal(pack, words(images, store).replace("count 3", "count 4"))
