"""Records that lie in the index of their shards: read like dicts by any process, and never out of another index."""

import multiprocessing
import os
import pickle
import shutil
from itertools import islice
from pathlib import Path

import cv2
import fsspec
import numpy as np
import pytest
import torch
from tiny import tiny_config
from trees import pack, refusal, refused, write

from projects.LargeData.shard_index import open_index
from projects.LargeData.shards import load_shards
from revisit.data.loading.loader import ResumableLoader
from revisit.data.sources import records as records_module
from revisit.data.sources.catalog import get_records, subset_name
from revisit.data.sources.records import changes, fingerprint, labels_of, sample
from revisit.data.sources.rows import Rows, joined

NUM_IMAGES = 23


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """23 small images of three classes, in shards of 5."""
    root = tmp_path_factory.mktemp("packed")
    for n in range(NUM_IMAGES):
        (root / f"images/class{n % 3}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / f"images/class{n % 3}/{n:02d}.png"), np.full((20, 20, 3), n, np.uint8))
    pack(f"--data class_folders:{root}/images --output {root}/shards --count 5")
    return root / "shards"


@pytest.fixture
def shards(packed, tmp_path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(packed, tmp_path / "shards")


@pytest.fixture
def rows(shards) -> Rows:
    return load_shards(str(shards)).records


def rewrite(shards: Path, /, **changed: np.ndarray) -> None:
    """Another index in place of the file's bytes, as a copy over it leaves it."""
    with np.load(shards / "index.npz") as arrays:
        fields = dict(arrays) | changed
    np.savez(shards / "other.npz", **fields)
    write(shards / "index.npz", (shards / "other.npz").read_bytes())


def test_rows_are_the_dicts_that_the_index_lists(shards, rows):
    with np.load(shards / "index.npz") as index:
        names = [f"{shards}/{index['shards'][number]}" for number in index["shard"]]
        columns = (index[field].tolist() for field in ("offset", "size", "label"))
        fields = ("file_name", "offset", "size", "label")
        expected = [dict(zip(fields, values, strict=True)) for values in zip(names, *columns, strict=True)]
    assert list(rows) == expected and len(rows) == NUM_IMAGES and rows[-1] == expected[-1]
    assert {type(value) for value in rows[0].values()} == {str, int}
    assert list(rows[3:20:4]) == expected[3:20:4] and list(rows[::-1][1:4]) == expected[::-1][1:4]
    assert list(rows[2:].take(np.array([5, 0]))[:2]) == [expected[7], expected[2]]
    assert labels_of(rows[::-1]).tolist() == labels_of(expected[::-1]).tolist()
    assert sample(rows, 4) == sample(expected, 4)
    for key in (NUM_IMAGES, -NUM_IMAGES - 1):
        with pytest.raises(IndexError):
            rows[key]


@pytest.mark.parametrize("part", [slice(None), slice(3, 19, 2), slice(None, None, -1)])
def test_rows_have_the_fingerprint_of_their_dicts(rows, part, monkeypatch):
    monkeypatch.setattr(records_module, "_AT_ONCE", 4)
    assert fingerprint(rows[part]) == fingerprint(list(rows[part]))


def test_very_many_rows_are_told_from_others_without_their_names(shards, rows, monkeypatch):
    monkeypatch.setattr(records_module, "MOST_NAMED", 10)
    before = fingerprint(rows, labels=False)
    moved = shutil.copytree(shards, shards.parent / "moved")
    assert changes(before, fingerprint(load_shards(str(moved)).records, labels=False), times=False) == []
    assert changes(before, fingerprint(rows[::-1], labels=False))[0] == "names"
    with np.load(moved / "index.npz") as index:
        offset, label = index["offset"].copy(), index["label"]
    offset[[7, 8]] = offset[[8, 7]]
    rewrite(moved, label=label[::-1])
    assert changes(before, fingerprint(load_shards(str(moved)).records, labels=False), times=False) == []
    rewrite(moved, offset=offset)
    assert changes(before, fingerprint(load_shards(str(moved)).records, labels=False), times=False) == ["names"]


def test_subsets_and_joined_sets_are_those_of_dicts(packed):
    name = f"shards:{packed}"
    rows = get_records(name)
    assert isinstance(rows, Rows)
    subset = get_records(subset_name(name, 9, 1))
    files = get_records(subset_name(f"class_folders:{packed.parent}/images", 9, 1))
    assert isinstance(subset, Rows)
    assert [record["label"] for record in subset] == [record["label"] for record in files]
    both = joined([rows, files])
    expected = [*rows, *files]
    assert list(both) == expected and both[-1] == expected[-1] and both[20:25] == expected[20:25]
    assert pickle.loads(pickle.dumps(both))[24] == expected[24]
    assert joined([files, files]) == [*files, *files] and joined([]) == []


def read(rows: Rows, queue: multiprocessing.Queue) -> None:
    queue.put([*rows])


def test_another_process_reads_the_same_rows_and_gets_a_few_bytes_for_it(rows):
    sent = pickle.dumps(rows[::2])
    assert len(sent) < 1000 and list(pickle.loads(sent)) == list(rows[::2])
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=read, args=(rows[4:9], queue))
    process.start()
    assert queue.get(timeout=120) == list(rows[4:9])
    process.join()


def test_another_index_is_refused_by_a_process_that_opens_it_later(shards, rows):
    sent = pickle.dumps(rows)
    with np.load(shards / "index.npz") as index:
        os.replace(shards / "index.npz", shards / "first.npz")
        np.savez(shards / "index.npz", **dict(index) | {"offset": index["offset"][::-1]})
    refused("another index", pickle.loads, sent)
    assert rows[0]["offset"] == 512  # of the file that is open


@pytest.mark.parametrize("workers", [0, 1])
def test_an_index_that_is_written_to_ends_the_run_that_reads_it(shards, workers):
    loader = ResumableLoader(tiny_config("DATASETS.TRAIN", (f"shards:{shards}",), "DATALOADER.NUM_WORKERS", workers))
    batches = iter(loader)
    next(batches)
    rewrite(shards, size=np.full(NUM_IMAGES, 700))
    assert "index.npz was written to while it is in use" in refusal(list, islice(batches, 9))
    del batches


def test_a_run_of_rows_is_the_run_of_their_dicts(packed, monkeypatch):
    options = ("DATASETS.TRAIN", (f"shards:{packed}",), "DATALOADER.NUM_WORKERS", 0)
    of_rows = ResumableLoader(tiny_config(*options))
    monkeypatch.setattr("revisit.data.loading.loader.joined", lambda sets: list(*sets))
    of_dicts = ResumableLoader(tiny_config(*options))
    assert of_rows.images == of_dicts.images
    for one, other in islice(zip(of_rows, of_dicts, strict=False), 4):
        assert all(torch.equal(one[name], other[name]) for name in ("anchor", "positive", "small", "index", "label"))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"shard": np.full(NUM_IMAGES, 5)}, "shards up to number 5, of 5"),
        ({"shard": np.arange(NUM_IMAGES) // 5 - 1}, "shards up to number 3, of 5"),
        ({"label": np.arange(NUM_IMAGES) - 1}, "classes from -1 to 21"),
        ({"offset": np.zeros(NUM_IMAGES - 1, np.int64)}, "offset of another form"),
        ({"shards": np.arange(5)}, "shards of another form"),
        ({name: np.empty(0, np.int64) for name in ("shard", "offset", "size", "label")}, "another form"),
    ],
)
def test_an_index_that_cannot_be_is_named(shards, changed, named):
    rewrite(shards, **changed)
    line = refusal(load_shards, str(shards))
    assert named in line and f"{shards}/index.npz" in line


def test_a_bit_that_has_changed_is_found_when_an_index_is_opened(shards):
    data = bytearray((shards / "index.npz").read_bytes())
    data[data.index(b"offset.npy") + 200] ^= 1
    write(shards / "index.npz", bytes(data))
    assert "offset.npy" in refusal(load_shards, str(shards)) and open_index(
        str(shards / "index.npz"), "", verified=True
    )


def test_the_index_of_a_url_is_copied_once_and_again_when_it_is_another(packed, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = fsspec.filesystem("memory")
    store.put(f"{packed}/", "/copied/", recursive=True)
    fetched, get_file = [], type(store).get_file
    monkeypatch.setattr(type(store), "get_file", lambda *args, **options: fetched.append(get_file(*args, **options)))
    first, again = (load_shards("memory://copied").records for _ in range(2))
    assert list(first) == list(again) and len(fetched) == 1
    (copy,) = tmp_path.glob("revisit/indexes/*.npz")
    write(tmp_path / "cut.npz", copy.read_bytes()[:300])
    os.replace(tmp_path / "cut.npz", copy)
    assert list(load_shards("memory://copied").records) == list(again) and len(fetched) == 2
    with np.load(packed / "index.npz") as index:
        np.savez(tmp_path / "other.npz", **dict(index) | {"label": index["label"][::-1]})
    store.put(str(tmp_path / "other.npz"), "/copied/index.npz")
    assert load_shards("memory://copied").records[0]["label"] == again[-1]["label"] and len(fetched) == 3
    assert first[0] == again[0] and first[0]["file_name"].startswith("memory://copied/shard-")
