"""One vocabulary: no command has an option of its own, and words of version 0.1 still work."""

import ast
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import ROOT, one_line_error, run
from test_house import trees
from trees import refused

from revisit import api
from revisit.command.options import WORDS, add, data_set, named, parse, parser_of
from revisit.compat.moved import warn_once
from revisit.compat.old_options import NOTHING, OLD_OPTIONS, current_words
from revisit.errors import UserError

HOME = Path("revisit/command/options.py")
# It runs before this project can be imported, with an option for itself.
APART = Path("tools/install_detectron2.py")
OLD = [(tool, old) for tool, words in OLD_OPTIONS.items() for old in words]
PRODUCT = ("tools", "projects", "revisit")


def calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
            yield node


def asked(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """The words that a file takes of the vocabulary."""
    for call in calls(tree, "add"):
        if isinstance(call.func, ast.Name) and call.args and isinstance(call.args[0], ast.Name):
            yield from ((word.value, call) for word in call.args[1:] if isinstance(word, ast.Constant))


def test_no_command_has_an_option_outside_the_vocabulary():
    own = []
    for path, tree in trees().items():
        if path.parts[0] not in PRODUCT or path in (HOME, APART):
            continue
        firsts = [call.args[0] for call in calls(tree, "add_argument")]
        own += [f"{path}: {ast.unparse(each)}" for each in firsts if "-" in ast.unparse(each)[:3]]
        own += [f"{path}: ArgumentParser" for _ in calls(tree, "ArgumentParser") if path.name != "doctor.py"]
    assert own == []


def test_studies_and_data_sets_have_no_other_meaning_of_a_word_that_takes_a_data_set():
    words = {name for name, how in WORDS.items() if how.get("type") is data_set} | {"labels", "count", "time"}
    for path, tree in trees().items():
        firsts = {ast.unparse(call.args[0]).strip("'-") for call in calls(tree, "add_argument") if call.args}
        firsts -= {"test"} if path.name == "peers.py" else set()  # a folder for each class
        firsts -= {"count"} if path.name == "folder_arguments.py" else set()  # of images
        assert not firsts & words or path == HOME, path


def test_every_word_is_used_and_has_one_kind_of_value():
    """A command may say what a word does there and what follows from leaving it out, not that it is something else."""
    kinds: dict[str, set[str]] = {}
    for path, tree in trees().items():
        for word, call in asked(tree):
            assert word in WORDS, f"{path}: {word}"
            changed = {each.arg: ast.unparse(each.value) for each in call.keywords}
            assert changed.keys() <= {"help", "default", "required", "metavar", "nargs", "choices", "type"}, path
            kinds.setdefault(word, set()).add("flag" if WORDS[word].get("action") == "store_true" else "value")
    assert kinds.keys() == WORDS.keys()
    assert {word: found for word, found in kinds.items() if len(found) > 1} == {}


def test_no_word_is_an_old_one_elsewhere_for_something_else():
    everywhere = OLD_OPTIONS["all"]
    assert not {old.removeprefix("--") for old in everywhere} & WORDS.keys()
    for tool, words in OLD_OPTIONS.items():
        new = {text.partition(" ")[0].removeprefix("--") for text in words.values() if text != NOTHING}
        assert new <= WORDS.keys(), tool


@pytest.mark.parametrize(("tool", "old"), OLD)
def test_an_old_word_stands_for_a_new_one_and_warns_once(tool, old, caplog):
    new = OLD_OPTIONS[tool][old]
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        words = [current_words(tool, [old, "3", "--", old]) for _ in range(2)]
    value = [f"{new}3"[len(new.rpartition(" ")[0]) + 1 :]] if new.endswith("=") else [*new.split()[1:], "3"]
    expected = ["3"] if new == NOTHING else [*new.split()[:1], *value]
    assert words[0] == words[1] == [*expected, "--", old]
    name = new.removesuffix("=")
    assert caplog.messages == [f"{old} is now {name}; the old name works until version 0.3"]


@pytest.mark.parametrize(("tool", "old"), [(tool, old) for tool, old in OLD if tool != "all"])
def test_a_tool_takes_the_words_that_replace_its_old_ones(tool, old):
    homes = ("tools", "projects/ToyScenes", "projects/Paper", "studies/benchmarks", "studies/label_check")
    tree = next(found for home in homes if (found := trees().get(Path(home, f"{tool}.py"))))
    shared = {"on", "processes", "dry-run", "num-gpus", "config-file"}
    new = OLD_OPTIONS[tool][old].partition(" ")[0].removeprefix("--")
    assert new in {word for word, _ in asked(tree)} | shared | {NOTHING.partition(" ")[0]}


def test_values_of_old_words_follow_by_a_space_or_an_equals_sign():
    assert current_words("embed", ["--images=folder:a", "--pyramid"]) == ["--data=folder:a", "--features", "pyramid"]
    assert current_words("curate", ["--similar=0.8", "--bits", "4"]) == ["--rule", "cosine=0.8", "--rule", "bits=4"]


def test_a_command_in_old_words_says_so_and_runs(tmp_path):
    words = f"--output {tmp_path}/toy --num-images 10 --size 64 --workers 1"
    text = run(f"python projects/ToyScenes/make_toy_scenes.py {words}", tmp_path)
    assert text.count("--num-images is now --count; the old name works until version 0.3") == 1
    assert "ToyScenes is in" in text


def test_a_data_set_is_named_in_every_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for name in ("list.txt", "photos/boxes.json", "film.mp4"):
        (tmp_path / name).touch()
    forms = {
        "photos": "folder:photos", "('folder:photos',)": "folder:photos", "('photos',)": "folder:photos",
        "\"('folder:photos',)\"": "folder:photos", "('folder:photos')": "folder:photos", "'photos'": "folder:photos",
        "list.txt": "list:list.txt", "photos/boxes.json": "coco:photos:photos/boxes.json", "film.mp4": "film.mp4",
        "coco:a:b": "coco:a:b", "toy_coco_train": "toy_coco_train", "nowhere": "nowhere",
    }  # fmt: skip
    assert {form: data_set(form) for form in forms} == forms
    refused("expected one data set", data_set, "('folder:a', 'folder:b')")
    refused("expected one data set", data_set, "(folder:a,)")


def test_an_option_that_takes_a_data_set_takes_a_folder(tmp_path, monkeypatch):
    parser = parser_of("")
    add(parser, "data", "unlabelled", "output")
    monkeypatch.setattr(sys, "argv", ["x", "--data", f"{tmp_path}", "--unlabelled", f"('{tmp_path}',)"])
    args = parse(parser)
    assert (args.data, args.unlabelled, args.output) == (f"folder:{tmp_path}", [f"folder:{tmp_path}"], None)


def test_numbers_have_names(capsys):
    kinds = named({"cosine": float, "bits": int})
    assert [kinds("cosine=0.5"), kinds("bits=3")] == [("cosine", 0.5), ("bits", 3)]
    parser = parser_of("")
    add(parser, "rule", type=kinds)
    assert dict(parse(parser, ["--rule", "cosine=1", "bits=3", "--rule", "bits=4"]).rule) == {"cosine": 1, "bits": 4}
    for word in ("cosin=1", "bits", "bits=x"):
        with pytest.raises(SystemExit):
            parse(parser, ["--rule", word])
    error = capsys.readouterr().err
    assert "did you mean cosine?" in error and "bits: expected a number after bits=, got ''" in error


@pytest.mark.parametrize("tool", sorted(path.name for path in (ROOT / "tools").glob("*.py")))
def test_every_help_has_debug_and_version(tool):
    if tool not in ("doctor.py", APART.name):
        source = (ROOT / "tools" / tool).read_text()
        assert re.search(r"parser_of\(__doc__, __file__\)", source)


def test_debug_and_version_stand_in_help(capsys):
    for words in (["--help"], ["--version"]):
        with pytest.raises(SystemExit) as end:
            parse(parser_of("What it does."), words)
        assert not end.value.code
    printed = capsys.readouterr().out
    assert "--debug" in printed and "--version" in printed and printed.splitlines()[-1] == "0.1.0"


def test_functions_take_old_names_of_arguments_and_warn_once(tmp_path, caplog):
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING), pytest.raises(UserError):
        api.pretrain(images=f"{tmp_path}/nowhere", output="s3://b/x", recipe="toy/pretrain.yaml")
    assert sorted(caplog.messages) == [
        "pretrain(images=...) is now pretrain(data=...); the old name works until version 0.3",
        "pretrain(recipe=...) is now pretrain(config_file=...); the old name works until version 0.3",
    ]


def test_a_command_without_anything_to_look_at_says_what_it_takes(tmp_path):
    words = f"--weights x.pth --output {tmp_path}/out"
    assert "expected --data, image files" in one_line_error(f"python tools/predict.py {words}", tmp_path)
    assert not (tmp_path / "out").exists()
