"""What the README says exists, exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from revisit.data.sources import KINDS
from revisit.engine.setup import make_config

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_files_that_the_readme_names_exist():
    names = set(re.findall(r"(?:tools|configs|datasets|docs|projects)/[\w./-]+\.(?:py|yaml|md)", README)) - {
        "projects/NAME/run.py"
    }
    assert len(names) > 6
    assert [name for name in names if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("config", sorted(str(p.relative_to(ROOT)) for p in (ROOT / "configs").rglob("*.yaml")))
def test_every_config_loads(config):
    make_config(config, [])


@pytest.mark.parametrize("config", sorted(str(p.relative_to(ROOT)) for p in (ROOT / "configs").rglob("*/*.yaml")))
def test_every_config_opens_with_its_command(config):
    header = [line for line in (ROOT / config).read_text().splitlines() if line.startswith("#")]
    assert any(f"--config-file {config}" in line for line in header)


@pytest.mark.parametrize(
    "config", sorted(str(p.relative_to(ROOT)) for p in (ROOT / "projects").glob("*/configs/*.yaml"))
)
def test_every_project_opens_its_configs_with_their_command(config):
    project = Path(config).parts[1]
    header = "".join(line for line in (ROOT / config).read_text().splitlines() if line.startswith("#"))
    assert f"python projects/{project}/run.py --config-file {config}" in header
    readme = (ROOT / "projects" / project / "README.md").read_text()
    assert f"projects/{project}/run.py" in readme and f"projects/{project}/README.md" in README


@pytest.mark.parametrize(
    "config", sorted(str(p.relative_to(ROOT)) for p in (ROOT / "projects").glob("*/configs/*.yaml"))
)
def test_every_config_of_a_project_loads(config):
    file = (ROOT / config).parent.parent / "config.py"
    module = importlib.import_module(f"projects.{file.parent.name}.config")
    (add_keys,) = (value for name, value in vars(module).items() if name.startswith("add_"))
    make_config(config, [], add_keys=add_keys)


def test_datasets_readme_explains_every_kind():
    text = (ROOT / "datasets/README.md").read_text()
    assert all(f"| `{kind}` |" in text for kind in KINDS)


def test_the_recipes_that_the_readme_names_exist():
    rows = re.findall(r"^\| (`[^|]+`) \|", README[README.index("## The paper's runs") :], re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([\w/]+)`", row)]
    assert len(names) > 8
    for name in names:
        assert (ROOT / "configs/pretrain" / (name if name.endswith("/") else f"{name}.yaml")).exists(), name
