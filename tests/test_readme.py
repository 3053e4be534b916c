"""What README.md and the pages under docs/ name exists: files, links, configs, options and keys."""

import argparse
import importlib
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from commands import ROOT, documented

from revisit.checkpoint.source_layout import SOURCE_LAYOUT_REGISTRY
from revisit.command.options import parse
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY
from revisit.engine.setup import make_config
from revisit.plugins import load_plugins


def found(*patterns: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


READMES = found("projects/*/*.md", "studies/**/*.md", "revisit/**/*.md")
PAGES = [*found("README.md", "docs/**/*.md", "datasets/README.md", "projects/README.md"), *READMES]
NAMED = r"(?:revisit|tools|configs|datasets|docs|projects|tests)/[\w./-]+\.(?:py|yaml|md)"
TRAINS = ("tools/train_net.py", "tools/compare_starts.py")  # by the recipe of --config-file
TEACHER = ["DISTILLATION.TEACHER", __file__]  # any file


def read(page: str | Path) -> str:
    return (ROOT / page).read_text()


def test_the_readme_is_short():
    lines = read("README.md").splitlines()
    assert len(lines) <= 110
    assert [line for line in lines if len(line) > 100 and not line.startswith(("|", "    "))] == []


@pytest.mark.parametrize("page", READMES)
def test_files_that_a_table_lists_lie_next_to_their_page(page):
    for cells in re.findall(r"^\| *((?:`[\w/]+\.py`(?:, )?)+) *\|", read(page), re.MULTILINE):
        for name in re.findall(r"`(.+?)`", cells):
            assert ((ROOT / page).parent / name).is_file() or (ROOT / name).is_file(), name


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_file_that_a_page_names_exists(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        path, _, anchor = target.partition("#")
        if not path.startswith("http"):
            file = (ROOT / page).parent / path if path else ROOT / page
            assert file.exists(), target
            headings = re.findall(r"^#+ (.+)$", read(file), re.MULTILINE) if anchor else []
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert not anchor or anchor in slugs, target
    names = set(re.findall(NAMED, read(page))) - {"projects/NAME/plugin.py"}
    places = ROOT, (ROOT / page).parent
    assert [name for name in sorted(names) if not any((place / name).is_file() for place in places)] == []


def test_the_tour_and_the_runs_name_files():
    sections = dict(re.findall(r"^## (.+)\n([^#]+)", read("docs/method.md"), re.MULTILINE))
    files = " ".join(re.findall(r"^\| [^|]+\| ([^|]+) \|", sections["A tour of the code"], re.MULTILINE))
    for name in re.findall(r"`(.+?)/?`", files):
        assert len([*(ROOT / "revisit").rglob(name), *ROOT.glob(name)]) == 1, name
    runs = re.findall(r"^\|.* \| `([\w/]+)`[^|]* \|$", sections["The runs"], re.MULTILINE)
    assert len(runs) > 10
    assert [name for name in runs if not found(f"configs/pretrain/{name}.yaml", f"configs/pretrain/{name}*.yaml")] == []


def test_every_study_has_a_row_in_the_results():
    links = [str(Path(page).relative_to("docs")) for page in found("docs/results/*.md")]
    assert links and [link for link in links if f"]({link}) |" not in read("docs/results.md")] == []


def test_the_site_leads_to_every_page():
    nav = str(yaml.safe_load(read("mkdocs.yml"))["nav"])
    assert [page for page in PAGES if page != "README.md" and page not in nav] == []


def test_the_site_has_its_styles_and_scripts():
    site = yaml.safe_load(read("mkdocs.yml"))
    tracked = r"docs/site\.css|projects/Pictures/templates/tables\.\w+"  # what `make docs` copies
    for file in (*site["extra_css"], *site["extra_javascript"]):
        assert (ROOT / file).is_file() and re.fullmatch(tracked, file)
    assert "docs/site.css 'projects/Pictures/templates/tables.*'" in read("Makefile")


def sentences(page: str) -> Iterator[tuple[frozenset[str], str]]:
    """The different words of each sentence of a page's prose, where there are eight or more; the sentence."""
    prose = re.sub(r"(?ms)^```.+?^```|^(?: {4}|\||#|!\[)[^\n]*|(?<=\])\([^)\s]+\)", "", read(page))
    for sentence in re.split(r"(?<=[.:?])\s+|\n\n|\n- ", prose):
        words = frozenset(re.findall(r"[a-z0-9_.]{2,}", sentence.lower()))
        if len(words) >= 8:
            yield words, " ".join(sentence.split())


def test_no_two_pages_say_the_same():
    generated = {"docs/config.md", "docs/api.md"}
    pages = [*found("README.md", "docs/*.md", "docs/tasks/*.md"), "datasets/README.md"]
    said = [(page, *each) for page in pages if page not in generated for each in sentences(page)]
    assert len(said) > 500
    alike = [
        (page, one, elsewhere, other)
        for (page, words, one), (elsewhere, others, other) in combinations(said, 2)
        if page != elsewhere and len(words & others) > 0.55 * len(words | others)
    ]
    assert alike == []


@pytest.mark.parametrize("config", found("configs/**/*.yaml", "projects/*/configs/*/*.yaml"))
def test_every_config_loads_and_opens_with_its_command(config):
    ring, room, *rest = Path(config).parts
    tool = "tools/train_net.py"
    if ring == "projects":
        _, script, _ = rest
        tool = f"projects/{room}/{script}.py"
        importlib.import_module(f"projects.{room}.{script}")  # declares its keys
        assert tool in read(f"projects/{room}/{script}.md")
    make_config(config, TEACHER if "DISTILLATION.TEACHER" in read(config) else [])
    command = rf"^# .*python {tool} --config-file {config}"
    assert room.startswith("Base-") or re.search(command, read(config), re.MULTILINE)


def test_datasets_readme_explains_every_kind():
    load_plugins()
    assert [kind for kind, _ in LABEL_LAYOUT_REGISTRY if f"| `{kind}` |" not in read("datasets/README.md")] == []


class Parsed(BaseException):
    """A program has understood its command line."""


@pytest.mark.parametrize("page", PAGES)
def test_every_command_has_options_and_keys_that_exist(page, monkeypatch):
    understand = argparse.ArgumentParser.parse_args

    def parse_args(parser, args=None, namespace=None):
        raise Parsed(understand(parser, args, namespace))

    def with_pairs(parser):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(argparse.ArgumentParser, "parse_args", understand)
            raise Parsed(parse(parser))

    load_plugins()
    layouts = {**SOURCE_LAYOUT_REGISTRY._obj_map}
    monkeypatch.setattr(SOURCE_LAYOUT_REGISTRY, "_obj_map", layouts)  # what IMPORTS of a study's recipe adds goes again
    importlib.import_module("projects.FrozenEvaluations.linear")  # whose keys a comparison of frozen features has
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    for module in ("revisit.command.options", "revisit.command.evaluation_options"):
        monkeypatch.setattr(f"{module}.parse", with_pairs)
    for command in documented(page):
        tool, *words = shlex.split(command.replace("teacher.pth", TEACHER[1]))[1:]
        monkeypatch.setattr(sys, "argv", [tool, *words])
        monkeypatch.syspath_prepend(ROOT / Path(tool).parent)
        with pytest.raises(Parsed) as parsed:
            runpy.run_path(tool, run_name="__main__")
        (args,) = parsed.value.args
        if tool in TRAINS and args.config_file not in ("F", None) and "IMPORTS" not in args.opts:
            make_config(args.config_file, [*args.opts, "MODEL.WEIGHTS", ""], for_here=False)
