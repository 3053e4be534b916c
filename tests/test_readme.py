"""What README.md and the pages under docs/ name exists: files, links, configs, options and keys."""

from __future__ import annotations

import argparse
import importlib
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from commands import ROOT, documented

from revisit.data.sources import KINDS
from revisit.engine.setup import make_config

PAGES = ("README.md", "datasets/README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
READMES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "projects").glob("*/README.md"))
CONFIGS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.yaml"))
PROJECT_CONFIGS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "projects").glob("*/configs/*.yaml"))
RINGS = ("revisit", "tools", "configs", "datasets", "docs", "projects", "tests")
PLACEHOLDERS = {"projects/NAME/run.py"}


def read(page: str) -> str:
    return (ROOT / page).read_text()


def header(config: str) -> str:
    return "\n".join(line for line in read(config).splitlines() if line.startswith("#"))


def anchors(page: Path) -> set[str]:
    """The links' targets in a page, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short():
    lines = read("README.md").splitlines()
    assert len(lines) <= 110
    assert [line for line in lines if len(line) > 100 and not line.startswith(("|", "    "))] == []
    assert len(list((ROOT / "docs").glob("*.md"))) <= 9


@pytest.mark.parametrize("page", [*PAGES, *READMES])
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        path, _, anchor = target.partition("#")
        if not path.startswith("http"):
            file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page):
    names = set(re.findall(rf"(?:{'|'.join(RINGS)})/[\w./-]+\.(?:py|yaml|md)", read(page)))
    assert [name for name in sorted(names - PLACEHOLDERS) if not (ROOT / name).is_file()] == []


def test_the_tour_and_the_runs_name_files():
    sections = dict(re.findall(r"^## (.+)\n([^#]+)", read("docs/method.md"), re.MULTILINE))
    files = " ".join(re.findall(r"^\| [^|]+\| ([^|]+) \|", sections["A tour of the code"], re.MULTILINE))
    for name in re.findall(r"`(.+?)/?`", files):
        assert len([*(ROOT / "revisit").rglob(name), *ROOT.glob(name)]) == 1, name
    runs = re.findall(r"^\|.* \| `([\w/]+)`[^|]* \|$", sections["The runs"], re.MULTILINE)
    assert len(runs) > 10
    for name in runs:
        assert (ROOT / "configs/pretrain" / (name if name.endswith("/") else f"{name}.yaml")).exists(), name


@pytest.mark.parametrize("config", CONFIGS)
def test_every_config_loads_and_opens_with_its_command(config):
    make_config(config, [])
    assert "Base-" in config or f"--config-file {config}" in header(config)


@pytest.mark.parametrize("config", PROJECT_CONFIGS)
def test_every_config_of_a_project_loads_and_opens_with_its_command(config):
    project = Path(config).parts[1]
    module = importlib.import_module(f"projects.{project}.config")
    (add_keys,) = (value for name, value in vars(module).items() if name.startswith("add_"))
    make_config(config, [], add_keys=add_keys)
    assert f"python projects/{project}/run.py --config-file {config}" in header(config)
    assert f"projects/{project}/run.py" in read(f"projects/{project}/README.md")


def test_the_readme_lists_every_project():
    assert [readme for readme in READMES if f"]({readme})" not in read("README.md")] == []


def test_datasets_readme_explains_every_kind():
    assert all(f"| `{kind}` |" in read("datasets/README.md") for kind in KINDS)


class Parsed(BaseException):
    """A program has understood its command line."""


@pytest.mark.parametrize("page", [*PAGES, *READMES])
def test_every_command_has_options_and_keys_that_exist(page, monkeypatch):
    understand = argparse.ArgumentParser.parse_args

    def parse_args(parser, args=None, namespace=None):
        raise Parsed(understand(parser, args, namespace))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    for command in documented(page):
        tool, *words = shlex.split(command)[1:]
        monkeypatch.setattr(sys, "argv", [tool, *words])
        monkeypatch.syspath_prepend(ROOT / Path(tool).parent)
        with pytest.raises(Parsed) as parsed:
            runpy.run_path(tool, run_name="__main__")
        (args,) = parsed.value.args
        if tool == "tools/train_net.py" and args.config_file != "F" and "IMPORTS" not in args.opts:
            make_config(args.config_file, [*args.opts, "MODEL.WEIGHTS", ""], for_here=False)
