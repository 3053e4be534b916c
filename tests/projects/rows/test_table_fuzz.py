"""Damaged and hostile tables, indexes and settings: each is read or refused in one line, and nothing that they name is
imported, fetched, written to or read."""

import io
import json
import os
import random
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from trees import spoil_bytes

from projects.Discover.discovery import FOUND, discover
from projects.LargeData.shards import ShardIndex, load_shards
from projects.Rows.embedders import Named
from projects.Rows.row_table import load_table
from projects.Rows.similar import similar_to
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.errors import UserError
from revisit.jobs.record import Record

CASES = int(os.environ.get("FUZZ_CASES", 500))
SHARE = 40  # of them, in every run of the suite
OUTSIDE = "/revisit_outside"
WRONG = (
    None, True, -1, 0.5, 10**30, "", "x" * 300, [], {}, [[]], "http://127.0.0.1:9/a.pth", f"{OUTSIDE}/a.pth",
    "../../a.pth", "timm:vit_tiny_patch16_224", ["IMPORTS", "('revisit_intruder',)"], {"IMPORTS": ["revisit_intruder"]},
    ["MODEL.WEIGHTS", "s3://bucket/a.pth"], "\0", "\ud800",
)  # fmt: skip
SETTINGS = {
    "of": "image", "network": "ResNet-18", "digest": "0" * 64, "flags": {"INPUT.BIT_DEPTH": 8}, "left out": [],
    "options": {
        "weights": "a.pth", "boxes": "", "box_head": False, "size": 32, "stride": 8, "short_side": 96, "pyramid": False,
        "config_file": "", "opts": [],
    },
}  # fmt: skip
LINE = {"file_name": "a.png", "height": 8, "width": 8, "objects": [{"bbox": [0, 0, 4, 4], "score": 0.5}]}
seen: list[str] = []  # what the audit hook of this module has seen: none of it is allowed
others: set[int | None] = set()  # threads that tests before this one have left, of a tracker or a server


def watch(event: str, arguments: tuple) -> None:
    """A hook cannot be removed: it only adds to a list, which a test empties."""
    is_import = event == "import" and arguments[0] == "revisit_intruder"
    names_outside = event in ("open", "os.mkdir", "os.rename") and OUTSIDE in str(arguments[0])
    is_forbidden = is_import or names_outside or event in ("socket.connect", "subprocess.Popen", "os.system")
    if is_forbidden and threading.get_ident() not in others:
        seen.append(f"{event} {arguments}")


sys.addaudithook(watch)


def changed(facts: dict, rng: random.Random) -> dict:
    """With one to three facts, at any level, of another type or value."""
    facts = json.loads(json.dumps(facts))
    for _ in range(rng.choice([1, 1, 2, 3])):
        place = facts["options"] if isinstance(facts.get("options"), dict) and rng.random() < 0.6 else facts
        if place:
            place[rng.choice(list(place))] = rng.choice(WRONG)
    return facts


def changed_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    form = rng.randrange(7)
    if form == 0:
        return array.astype(rng.choice(["S5", "U3", "f2", "f8", "i1", "?", "c8"]))
    if form == 1:
        return np.asarray(array, object)
    if form == 2:
        return np.atleast_1d(array)[:0]
    if form == 3:
        return array[None]
    if form == 4:
        return np.zeros((), array.dtype)
    if form == 5 and array.dtype.kind == "f":
        return np.full_like(array, rng.choice([np.nan, np.inf]))
    if array.dtype.kind == "U":
        return np.full(array.shape, str(rng.choice([OUTSIDE + "/a.png", "http://127.0.0.1:9/a.png", "../a", "\0"])))
    return np.full_like(array, rng.choice([-1, 2**30]))


def spoilt(arrays: dict[str, np.ndarray], rng: random.Random) -> bytes:
    """A file of these arrays, one of them changed, or of other names, or with another head, or damaged bytes."""
    arrays, form = dict(arrays), rng.randrange(10)
    name = rng.choice(list(arrays))
    with suppress(ValueError):
        if form < 2:
            arrays[name] = changed_array(arrays[name], rng)
    if form == 2:
        array = arrays.pop(name)
        arrays |= {rng.choice(["../a", "about2", "", name * 40]): array} if rng.random() < 0.7 else {}
    file = io.BytesIO()
    save = np.savez_compressed if rng.random() < 0.1 else np.savez
    save(file, **arrays)
    content = file.getvalue()
    if form == 3:
        shape = rng.choice([b"(9999999,)", b"(-1,)", b"(2**40,)", b"(4294967296, 4294967296)", b"[]", b"(1e9,)"])
        content = swapped_head(content, shape, rng)
    return spoil_bytes(content, rng) if form == 4 else content


def swapped_head(content: bytes, shape: bytes, rng: random.Random) -> bytes:
    """Another shape in a head, which stays as long as it was."""
    heads = [at for at in range(len(content)) if content.startswith(b"'shape': ", at)]
    if not heads:  # compressed
        return content
    start = rng.choice(heads) + len(b"'shape': ")
    end = content.index(b"\n", start)
    return content[:start] + (shape + b", }").ljust(end - start) + content[end:]


def table_file(rng: random.Random) -> bytes:
    about = changed(SETTINGS, rng) if rng.random() < 0.7 else SETTINGS
    text = json.dumps(about) if rng.random() < 0.9 else rng.choice(["[" * 100_000, "", "[1]", "NaN", "{"])
    arrays = {
        "rows": np.eye(3, dtype=np.float32), "files": np.array(["a.png", "b.png", "c.png"]),
        "boxes": np.zeros((3, 4), np.float32), "classes": np.array(["", "", ""]), "about": np.array(text),
    }  # fmt: skip
    return spoilt(arrays, rng)


def index_file(rng: random.Random) -> bytes:
    whole = [np.array([0, 1], np.int64) for _ in range(2)]
    index = ShardIndex(np.array(["a.tar"]), np.array([10]), np.zeros(2, np.int32), *whole, np.array([-1, -1]))
    arrays = {name: np.asarray(array) for name, array in index._asdict().items()}
    return spoilt(arrays, rng)


def in_one_line(call, *arguments) -> None:
    """A call ends, or is refused in one line; nothing that it was given is run, fetched or used."""
    others.clear()
    others.update(thread.ident for thread in threading.enumerate() if thread is not threading.current_thread())
    seen.clear()
    try:
        call(*arguments)
    except UserError as error:
        assert "\n" not in str(error) and str(error)
    assert seen == []


def use_table(folder: Path, query: Path, weights: str) -> None:
    table = load_table(folder)
    similar_to(table, query, None if table.about["of"] == "image" else [0, 0, 9, 9], 2, Named(weights))


def try_cases(cases: range, folder: Path, query: Path) -> None:
    for seed in cases:
        rng = random.Random(seed)
        (folder / "embeddings.npz").write_bytes(table_file(rng))
        in_one_line(use_table, folder, query, "")
        in_one_line(use_table, folder, query, str(folder / "no_such.pth"))
        (folder / "index.npz").write_bytes(index_file(rng))
        in_one_line(load_shards, str(folder))
        text = json.dumps(changed(SETTINGS, rng))
        (folder / "settings.json").write_text(text[: rng.randrange(len(text))] if rng.random() < 0.3 else text)
        in_one_line(Record(folder, SETTINGS).claim)
        lines = json.dumps(changed(LINE, rng)) * rng.choice([1, 1, 2])
        (folder / FOUND).write_bytes(spoil_bytes(lines.encode(), rng) if rng.random() < 0.3 else lines.encode())
        in_one_line(discover, [{"file_name": "a.png"}], PHOTOGRAPHS, None, folder, 1)


def test_hostile_tables_indexes_and_settings_are_data(write_pictures, tmp_path):
    (query,) = write_pictures(tmp_path / "photos", 1)
    (tmp_path / "revisit_intruder.py").write_text("")
    try_cases(range(SHARE), tmp_path, query)


@pytest.mark.fuzz
def test_many_hostile_tables_indexes_and_settings_are_data(write_pictures, tmp_path):
    (query,) = write_pictures(tmp_path / "photos", 1)
    try_cases(range(SHARE, SHARE + CASES), tmp_path, query)
