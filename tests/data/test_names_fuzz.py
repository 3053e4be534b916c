"""Names of every kind through what reads and writes them: nothing lies outside its place, and each stays one line."""

import hashlib
import io
import json
import os
import random
import tarfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_data_fuzz import outcome, spoil
from trees import pack, write

from projects.LargeData import run_store
from projects.LargeData.output_sync import PATTERNS, bring_back
from projects.LargeData.places import Folder
from projects.LargeData.run_store import RunStore
from projects.LargeData.shard_index import open_index
from projects.LargeData.shards import ShardIndex, index_shard, load_shards
from projects.Rows.atlas import write_atlas
from projects.Rows.image_lists import images_of
from projects.Rows.row_table import RowTable, load_table, save_csv, save_table
from projects.Weights import sharing
from revisit.data.sources.catalog import get_records
from revisit.data.sources.image_folders import write_list
from revisit.data.sources.split_files import read_names_of_images, read_split
from revisit.errors import UserError
from revisit.files import below, plain_name
from revisit.markdown import csv_table, markdown_table

CASES = int(os.environ.get("FUZZ_CASES", 100))  # names; of mutated lists of runs a quarter
PIECES = (
    "..", "../", "/", "\\", "/etc/passwd", "~/", "$HOME", "%2e%2e%2f", "C:", "a", "b.jpg", ".", "model_0000001.pth",
    "config.yaml", "log.txt", "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\0", "\x1b[2J",
    "\x1b]0;t\x07", "\x9b2J", "\x7f", " ", "\t", "\ufeff", "\u202e", "#", ",", '"', "'", "|",
    "<script>alert(1)</script>", "&amp;", "{{ 7 * 7 }}", "=1+1", "ü", "名", "\u0301", "\U0001f600", "\udcff", "x" * 200,
)  # fmt: skip


def names() -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices(PIECES, k=rng.choice([1, 1, 2, 3, 4]))) for _ in range(CASES)]


def files_of(folder: Path) -> dict[str, int]:
    """Names and times of all that lies below."""
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*")}


def is_on_disk(name: str) -> bool:
    return 0 < len(os.fsencode(name)) < 240 and not {"/", "\0"} & {*name} and name not in (".", "..")


@pytest.fixture
def victim(tmp_path):
    """A folder whose neighbour has a file; afterwards the neighbour is as it was."""
    write(tmp_path / "outside/victim", b"mine")
    before = files_of(tmp_path / "outside")
    (tmp_path / "inside").mkdir()
    yield tmp_path / "inside"
    assert files_of(tmp_path / "outside") == before
    assert {path.name for path in tmp_path.iterdir()} == {"inside", "outside"}


@pytest.mark.fuzz
def test_a_name_that_is_accepted_stays_in_its_folder(tmp_path):
    outcomes = Counter()
    for name in names():
        outcomes[outcome(plain_name, name, "a list")] += 1
        with suppress(UserError):
            assert Path(tmp_path, plain_name(name, "a list")).parent == tmp_path and name.isprintable()
        if outcome(below, name, "a list") == "accepted":
            path = os.path.normpath(tmp_path / below(name, "a list"))
            assert f"{path}/".startswith(f"{tmp_path}/")
    assert min(outcomes.values()) > CASES / 20 and len(outcomes) == 2


@pytest.mark.fuzz
def test_lists_have_a_line_for_each_name_that_they_take(victim):
    outcomes, file = Counter(), victim / "list.txt"
    for name in names():
        outcomes[result := outcome(write_list, file, [name])] += 1
        if result == "accepted":
            text = file.read_text(errors="surrogateescape")
            assert len(text.splitlines()) == 1 and read_names_of_images(file, "list") == [name]
        raw = name.replace("\n", "")
        write(file, f"a\n{raw}\nb\n".encode(errors="surrogateescape"))
        read = read_names_of_images(file, "list")
        assert read[0] == "a" and read[-1] == "b" and len(read) == 2 + bool(raw.removesuffix("\r").strip(" \t"))
        outcome(read_split, file)
    assert min(outcomes.values()) > CASES / 20 and len(outcomes) == 2


@pytest.mark.fuzz
def test_tables_have_a_line_for_each_name():
    rows = [(name, n) for n, name in enumerate(names())]
    assert len(csv_table(("file_name", "n"), rows).splitlines()) == CASES + 1
    assert len(markdown_table(("file_name", "n"), [(name, str(n)) for name, n in rows]).splitlines()) == CASES + 2


@pytest.mark.fuzz
def test_files_of_any_name_are_embedded_shown_and_packed(victim, capsys):
    for name in {name for name in names()[:400] if is_on_disk(name)}:
        Image.new("RGB", (8, 8), "olive").save(victim / f"photos-{name}.png")
    (victim / "photos").mkdir()
    for number, path in enumerate(sorted(victim.glob("photos-*"))):
        path.rename(victim / "photos" / f"{number}{path.name.removeprefix('photos-')}")
    records = get_records(f"folder:{victim}/photos")
    files = np.array([record["file_name"] for record in records])
    numbers = np.eye(len(files), 16, dtype=np.float32) + 0.1
    rows = numbers / np.linalg.norm(numbers, axis=1, keepdims=True)
    boxes = np.tile(np.float32([0, 0, 8, 8]), (len(files), 1))
    table = RowTable(rows, files, boxes, files, {"of": "image", "network": "none"})
    save_table(victim / "embeddings.npz", table)
    assert load_table(victim).files.tolist() == files.tolist()
    save_csv(victim / "rows.csv", table)
    text = (victim / "rows.csv").read_bytes().decode(errors="surrogateescape")
    assert len(text.splitlines()) == len(files) + 1
    assert outcome(images_of, victim) == "refused"  # some have line ends, and no list takes them
    write_atlas(victim / "atlas.html", table, "pca")
    assert "<script>alert(1)" not in (victim / "atlas.html").read_text(errors="surrogateescape")
    pack(f"--data folder:{victim}/photos --output {victim}/shards --processes 1")
    assert len(load_shards(f"{victim}/shards").records) == len(files)
    with tarfile.open(victim / "shards/shard-000000.tar") as tar:
        assert tar.getnames() == [f"{n:09d}.png" for n in range(len(files))]
    assert "\x1b" not in capsys.readouterr().out


def listed(*files: dict) -> str:
    entry = {"place": "model_0000001.pth", "size": 1, "sha256": hashlib.sha256(b"x").hexdigest(), "iteration": 1}
    return json.dumps({"run": "a", "files": [{"name": "model_0000001.pth"} | entry, *(entry | file for file in files)]})


def resume(store: Path, folder: Path, content: str | bytes) -> None:
    """Bring back the files of a list, which the store has under every name that can be there."""
    write(store / "run.json", content)
    place = RunStore(f"file://{store}")
    if listing := place.listing():
        bring_back(place, listing, folder)


@pytest.mark.fuzz
def test_lists_of_runs_bring_back_nothing_but_files_of_a_run(victim, monkeypatch, capsys):
    monkeypatch.setattr(run_store, "FIRST_WAIT", 0.0)
    write(victim / "store/model_0000001.pth", b"x")
    rng, whole, outcomes = random.Random(1), listed({"name": "log.txt", "place": "log.txt", "iteration": -1}), Counter()
    contents: list[tuple[str | bytes, str]] = [(spoil(whole, rng), "log.txt") for _ in range(CASES // 4)]
    for name in names():
        contents += [(listed({"name": name, "place": name, "iteration": -1}), name)]
        contents += [(listed({"name": "log.txt", "place": name, "iteration": -1}), name)]
    for content, name in contents:
        run, planted = victim / "run", victim / "store" / (name if is_on_disk(name) else "other.txt")
        write(planted, b"x")
        run.mkdir(exist_ok=True)
        before = files_of(victim / "store")
        outcomes[outcome(resume, victim / "store", run, content)] += 1
        after = files_of(victim / "store")
        assert {path for path in before if before[path] != after.get(path)} <= {f"{victim}/store/run.json"}
        found = {path for path in run.iterdir() if path.name != "output_sync.json"}
        assert all(any(path.match(pattern) for pattern in PATTERNS) and path.is_file() for path in found)
        for path in (*run.iterdir(), planted):
            path.unlink()
    assert min(outcomes.values()) > len(contents) / 50 and len(outcomes) == 2


@pytest.mark.fuzz
def test_what_is_pulled_lies_in_the_folder(victim, monkeypatch, capsys):
    outcomes = Counter()
    for name in names():
        monkeypatch.setattr(sharing.Place, "sizes", lambda self, name=name: {"a.pth": 1, f"{name}.yaml": 1})
        monkeypatch.setattr(sharing.Place, "get", lambda self, name, path: path.write_bytes(b"x"))
        outcomes[outcome(sharing.pull, "memory://place", victim / "pulled")] += 1
        for path in (victim / "pulled").glob("*"):
            assert path.is_file() and path.name.isprintable()
            path.unlink()
    assert min(outcomes.values()) > CASES / 20 and len(outcomes) == 2


@pytest.mark.fuzz
def test_members_of_tars_are_indexed_where_they_lie_and_shards_are_plain(victim):
    outcomes = Counter()
    for name in names():
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for member in (tarfile.TarInfo(f"{name}.jpg"), tarfile.TarInfo(f"{name}.cls")):
                member.size = 1
                tar.addfile(member, io.BytesIO(b"1"))
        write(victim / "a.tar", buffer.getvalue())
        outcome(index_shard, Folder(victim), "a.tar")
        one = np.zeros(1, np.int32)
        index = ShardIndex(np.array([name]), np.ones(1, np.int64), one, one + 512, one + 1, one)
        np.savez(victim / "index.npz", **index._asdict())
        outcomes[result := outcome(open_index, str(victim / "index.npz"), str(victim))] += 1
        assert (result == "accepted") == (outcome(plain_name, name.rstrip("\0"), "an index") == "accepted")
    assert min(outcomes.values()) > CASES / 20 and {*os.listdir(victim)} == {"a.tar", "index.npz"}
