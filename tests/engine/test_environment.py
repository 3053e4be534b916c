"""environment.json says what code a run was made with, and needs no git for it."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from revisit.engine import environment
from revisit.engine.environment import describe_environment, git_state, record_environment

UNKNOWN = {"commit": None, "dirty": None}


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "source"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "code.py").write_text("one")
    git(folder, "add", "code.py")
    git(folder, "commit", "--quiet", "--message", "one")
    return folder


def test_a_commit_is_told_and_whether_files_differ_from_it(repository):
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "notes.txt").write_text("untracked files are the user's own")
    assert git_state(repository) == {"commit": commit, "dirty": False}
    (repository / "code.py").write_text("two")
    assert git_state(repository) == {"commit": commit, "dirty": True}


def test_what_is_no_repository_of_its_own_has_no_commit_and_no_git_is_no_error(tmp_path, repository, monkeypatch):
    (repository / "site-packages").mkdir()
    assert git_state(repository / "site-packages") == git_state(tmp_path) == UNKNOWN
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(repository) == UNKNOWN


def test_a_slow_git_is_not_waited_for(repository, monkeypatch):
    def hang(command: list[str], timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(environment.subprocess, "run", hang)
    assert git_state(repository) == UNKNOWN


def test_a_run_that_goes_on_adds_a_line_and_a_new_one_starts_over(tmp_path):
    for again, lines in ((False, 1), (True, 2), (True, 3), (False, 1)):
        record_environment(tmp_path, again=again)
        written = [json.loads(line) for line in (tmp_path / "environment.json").read_text().splitlines()]
        assert written == [describe_environment()] * lines
    assert written[0]["torch"] == torch.__version__ and written[0].keys() >= {"commit", "dirty", "python", "detectron2"}
