"""What a store says is data: no name in it leaves OUTPUT_DIR or the store."""

import hashlib
import json

import pytest
from runs import run_config
from trees import refused, write

from projects.LargeData import output_sync, run_store
from projects.LargeData.output_sync import OutputSync
from projects.LargeData.run_store import RunStore

CONTENT = b"planted"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(output_sync, "SILENCE", 0.0)
    monkeypatch.setattr(run_store, "FIRST_WAIT", 0.0)


def planted(store, *files: dict, content: str = "") -> None:
    """A run's list in a store, with a checkpoint that is whole."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    entry = {"place": "model_0000001.pth", "size": len(CONTENT), "sha256": digest, "iteration": 1}
    entries = [{"name": "model_0000001.pth", **entry}, *({**entry, "iteration": -1, **file} for file in files)]
    write(store / "model_0000001.pth", CONTENT)
    write(store / "run.json", content or json.dumps({"run": "theirs", "files": entries}))


def resume(tmp_path) -> None:
    OutputSync().prepare(run_config(tmp_path / "run", "OUTPUT_SYNC", f"file://{tmp_path}/store"), resume=True)


def files_of(folder) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    ["../../home/.bashrc", "/tmp/planted", "..", ".", "", "a/b", "a\nb", "\x1b]0;x", "a\\b", 7, None, "a\u2028b"],
)
def test_a_list_with_a_name_that_leaves_output_dir_is_refused(tmp_path, toy_datasets, name):
    planted(tmp_path / "store", {"name": name})
    before = files_of(tmp_path)
    refused("run.json names a file .*expected a plain name", resume, tmp_path)
    assert {name for name in files_of(tmp_path) - before if not name.startswith("run/")} == set()


@pytest.mark.parametrize("place", ["../victim.txt", "/etc/hosts", "owner.json", "run.json", "config.yaml.3"])
def test_a_list_whose_file_lies_elsewhere_is_refused(tmp_path, toy_datasets, place):
    write(tmp_path / "victim.txt", b"mine")
    planted(tmp_path / "store", {"name": "config.yaml", "place": place})
    refused("it has config.yaml as .*expected config.yaml or config.yaml.2", resume, tmp_path)
    assert (tmp_path / "victim.txt").read_bytes() == b"mine"


def test_only_files_of_a_run_come_back(tmp_path, toy_datasets):
    write(tmp_path / "store/sitecustomize.py", CONTENT)
    planted(tmp_path / "store", {"name": "sitecustomize.py", "place": "sitecustomize.py"})
    resume(tmp_path)
    assert (tmp_path / "run/model_0000001.pth").read_bytes() == CONTENT
    assert not (tmp_path / "run/sitecustomize.py").exists()


def test_what_a_store_says_of_its_owner_is_printed_escaped(tmp_path, toy_datasets, capsys):
    write(tmp_path / "store/owner.json", json.dumps({"folder": "a", "process": "b", "words": "\x1b[2J\nerror: x"}))
    resume(tmp_path)
    said = capsys.readouterr().out
    assert r"\x1b[2J\nerror: x" in said and "\x1b" not in said


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"run": 1, "files": []}', '{"run": "a", "files": [{"name": "a", "place": 1}]}', "7"]
)
def test_a_list_of_another_form_is_refused(tmp_path, toy_datasets, content):
    planted(tmp_path / "store", content=content)
    refused("run.json is no list of a run's files", RunStore(f"file://{tmp_path}/store").listing)
