"""Names of files that commands of version 0.1 have still work, and warn once."""

import json
import logging
from pathlib import Path

import pytest
from commands import ROOT, run

from revisit.compat.moved import EVALUATIONS, now_at, warn_once
from revisit.data.loading.upcoming import register_reader
from revisit.data.views.mapper import register_mapper
from revisit.engine.run_copies import register_copy
from revisit.jobs.commands import Job
from revisit.plugins import find_config, find_file

from fvcore.common.registry import Registry

OLD = [f"projects/{name}/run.py" for name in EVALUATIONS]
OLD += ["projects/LinearClassification/configs/voc07_svm.yaml", "projects/LabelPropagation/configs/toy.yaml"]
OLD += ["projects/Planning/scale.py"]


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_finds_the_file_and_warns_once(name, caplog):
    warn_once.cache_clear()
    find = find_config if name.endswith(".yaml") else find_file
    with caplog.at_level(logging.WARNING):
        assert Path(find(name)).is_file() and find(name) == str(ROOT / now_at(name))
    assert [record.message for record in caplog.records] == [
        f"{name} is now {now_at(name)}; the old name works until version 0.3"
    ]


@pytest.mark.parametrize("name", ["projects/LargeData/plugin.py", "LinearClassification", "projects", "x/run.py", ""])
def test_other_names_stay(name):
    assert now_at(name) == name


@pytest.mark.parametrize("name", EVALUATIONS)
def test_a_script_of_an_old_name_is_the_new_one(name, tmp_path):
    text = run(f"python projects/{name}/run.py --help", tmp_path)
    script = EVALUATIONS[name]
    assert text.count(f"projects/{name}/run.py is now {script}") == 1
    assert f"usage: {Path(script).name}" in text and f"python {script}" in text


def test_a_project_script_that_is_a_study_now_runs_and_warns_once(tmp_path):
    text = run("python projects/Planning/scale.py --help", tmp_path)
    assert text.count("projects/Planning/scale.py is now studies/benchmarks/scale.py; the old name works until") == 1
    assert "usage: scale.py" in text and "python studies/benchmarks/scale.py" in text


def test_revisit_study_takes_an_old_name(tmp_path):
    text = run("python -m revisit study LinearClassification --help", tmp_path)
    assert "revisit study LinearClassification is now revisit study linear" in text
    assert "usage: revisit study linear" in text


def test_a_job_begun_by_the_old_commands_is_still_its_own(tmp_path):
    config = "projects/FrozenEvaluations/configs/linear/toy.yaml"
    command = ("projects/FrozenEvaluations/linear.py", "--config-file", config, "SEED", "1")
    before = ["projects/LinearClassification/run.py", "--config-file", "projects/LinearClassification/configs/toy.yaml"]
    job = Job("linear", (command,), tmp_path / "results.json")
    (tmp_path / "job.json").write_text(json.dumps({"commands": [[*before, "SEED", "1"]], "facts": []}))
    assert job.owns_result
    (tmp_path / "job.json").write_text(json.dumps({"commands": [[*before, "SEED", "2"]], "facts": []}))
    assert not job.owns_result


class Elsewhere:
    """A copy that an old plug-in keeps."""


@pytest.mark.parametrize(
    ("register", "registry", "entry"),
    [
        (register_reader, "READ_AHEAD_REGISTRY", len),
        (register_mapper, "VIEW_MAPPER_REGISTRY", len),
        (register_copy, "RUN_COPY_REGISTRY", Elsewhere()),
    ],
)
def test_an_old_way_to_plug_in_is_an_entry_of_the_registry(register, registry, entry, monkeypatch, caplog):
    warn_once.cache_clear()
    entries = Registry("TEST")
    monkeypatch.setitem(register.__globals__, registry, entries)
    register(entry)
    ((_, found),) = entries
    assert (found() if registry == "RUN_COPY_REGISTRY" else found) is entry
    line = f"{register.__name__} is now {registry}.register; the old name works until version 0.3"
    assert [record.message for record in caplog.records] == [line]
