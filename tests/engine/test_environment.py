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


def test_a_repository_of_its_own_has_a_commit_and_no_or_a_slow_git_is_no_error(tmp_path, monkeypatch):
    source = tmp_path.resolve() / "source"
    (source / "site-packages").mkdir(parents=True)
    (source / "code.py").write_text("one")
    for words in (("init", "--quiet"), ("add", "code.py"), ("commit", "--quiet", "--message", "one")):
        git(source, *words)
    commit = git(source, "rev-parse", "HEAD")
    (source / "notes.txt").write_text("untracked files are the user's own")
    assert git_state(source) == {"commit": commit, "dirty": False}
    (source / "code.py").write_text("two")
    assert git_state(source) == {"commit": commit, "dirty": True}
    assert git_state(source / "site-packages") == git_state(tmp_path) == UNKNOWN

    def hang(command: list[str], timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(environment.subprocess, "run", hang)
        assert git_state(source) == UNKNOWN
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(source) == UNKNOWN


@pytest.mark.parametrize("starts", [(False, True, True), (False, True, False)])
def test_a_run_that_goes_on_adds_a_line_and_a_new_one_starts_over(tmp_path, starts):
    for again in starts:
        record_environment(tmp_path, again=again)
    written = [json.loads(line) for line in (tmp_path / "environment.json").read_text().splitlines()]
    assert written == [describe_environment()] * (3 if all(starts[1:]) else 1)
    assert written[0]["torch"] == torch.__version__ and written[0].keys() >= {"commit", "dirty", "python", "detectron2"}
