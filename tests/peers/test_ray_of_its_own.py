"""The Ray cluster that a job starts for itself, where there is none."""

import os
import sys

import pytest

from revisit.jobs.on_ray import _cluster
from revisit.jobs.options import RAY

pytestmark = pytest.mark.peers


def listening(pid: int) -> set[str]:
    """The addresses at which a process and those that it has started listen."""
    import psutil

    process = psutil.Process(pid)
    places = [place for each in (process, *process.children(recursive=True)) for place in each.net_connections("tcp")]
    return {place.laddr.ip.removeprefix("::ffff:") for place in places if place.status == psutil.CONN_LISTEN}


def test_its_ports_are_for_this_machine_and_its_tasks_run_no_file_of_the_working_directory(tmp_path, monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    import ray

    for is_asked_for in (False, True):
        with _cluster(ray, RAY):
            assert listening(os.getpid()) == {"127.0.0.1"}
            assert os.environ["RAY_AUTH_MODE"] == "token" and not (tmp_path / ".ray").exists()
            path = ray.get(ray.remote(lambda: sys.path).remote())
            assert (str(tmp_path) in path) == is_asked_for
        sys.path.append(str(tmp_path))  # as IMPORTS does
