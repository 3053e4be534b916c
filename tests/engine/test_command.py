"""Command lines that end in KEY VALUE pairs, with --opts before them or not, are read alike by every command."""

import argparse
import shlex
import sys
from pathlib import Path

import pytest
from commands import run
from trees import refusal, refused

from revisit.command.options import add, parse, parser_of
from revisit.engine.command import in_shell, pairs_of, run_command
from revisit.errors import UserError

PAIRS = ["SOLVER.MAX_ITER", "5", "SEED", "-1"]


def parsed(words: list[str], monkeypatch, *, bare: bool) -> argparse.Namespace:
    """By a command as tools/predict.py, or, ``bare``, as tools/train_net.py has it."""
    parser = parser_of("")
    add(parser, "accept", "opts")
    if not bare:
        parser.add_argument("inputs", nargs="+", type=Path)
    monkeypatch.setattr(sys, "argv", ["program", *words])
    return parse(parser)


@pytest.mark.parametrize("before", [[], ["--opts"]])
def test_pairs_end_a_command_after_opts_or_not(before, monkeypatch):
    args = parsed(["--accept=MODEL.X", "photos", *before, *PAIRS], monkeypatch, bare=False)
    assert (args.inputs, args.opts, args.accept) == ([Path("photos")], PAIRS, ["MODEL.X"])
    args = parsed(["--accept", "MODEL.X", *before, *PAIRS], monkeypatch, bare=True)
    assert (args.opts, args.accept) == (PAIRS, ["MODEL.X"])


def test_files_with_names_like_keys_are_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("DSC_1.JPG", "DSC_2.JPG", "--opts"):
        (tmp_path / name).touch()
    assert len(parsed(["DSC_1.JPG", "DSC_2.JPG"], monkeypatch, bare=False).inputs) == 2
    args = parsed(["--", "--opts", "SEED", "1"], monkeypatch, bare=False)
    assert args.opts == [] and args.inputs == [Path("--opts"), Path("SEED"), Path("1")]


@pytest.mark.parametrize(
    "words", ["tools/train_net.py --num-gpus 0", "tools/embed.py --weights x --output y --readers -1"]
)
def test_numbers_that_count_nothing_are_refused(words, tmp_path):
    assert "expected a whole number" in run(f"python {words}", tmp_path, expect=2)


def test_half_a_pair_is_refused(monkeypatch):
    refused("expected pairs KEY VALUE", parsed, ["photos", "--opts", "SEED"], monkeypatch, bare=False)
    refused("expected pairs KEY VALUE", parsed, ["SEED"], monkeypatch, bare=True)
    refused("did you mean SEED 1\\?", parsed, ["SEED=1"], monkeypatch, bare=True)
    refused("did you mean --config-file my.yaml\\?", parsed, ["my.yaml"], monkeypatch, bare=True)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("DATASETS.TRAIN coco:/a b:/x.json", """DATASETS.TRAIN "('coco:/a b:/x.json',)"?"""),
        ("SEED 1 DATASETS.TRAIN folder:/my photos SOLVER.MAX_ITER 3", """DATASETS.TRAIN "('folder:/my photos',)"?"""),
        ("DATASETS.TEST folder:/a folder:/b", """DATASETS.TEST "('folder:/a', 'folder:/b')"?"""),
        ("SEED 1 OUTPUT_DIR my runs", "OUTPUT_DIR 'my runs'?"),
    ],
)
def test_a_value_with_spaces_is_put_between_quotation_marks(words, meant):
    assert refusal(pairs_of, words.split()).endswith(f"; did you mean {meant}")


def test_words_after_no_key_are_no_value_with_spaces(monkeypatch):
    with pytest.raises(UserError, match="expected pairs KEY VALUE") as caught:
        parsed(["my", "nice", "photos"], monkeypatch, bare=True)
    assert "did you mean" not in str(caught.value)


def test_an_option_after_the_pairs_is_told_where_it_belongs(monkeypatch):
    refused("--resume comes after KEY VALUE: options go before", parsed, [*PAIRS, "--resume"], monkeypatch, bare=True)


@pytest.mark.parametrize("word", ["('folder:/data/photos',)", "''", "plain", "two words", "it's $5", 'a "b"', ""])
def test_a_word_is_logged_as_a_shell_reads_it_back(word):
    assert shlex.split(in_shell(word)) == [word]


def test_names_of_data_sets_are_logged_as_the_pages_write_them():
    assert in_shell("('folder:/data/photos',)") == "\"('folder:/data/photos',)\""


@pytest.mark.parametrize(("environment", "speaks"), [({}, True), ({"TORCHELASTIC_RUN_ID": "1"}, False)])
def test_every_process_prints_a_mistake_but_further_ones_of_torchrun(environment, speaks, monkeypatch, capsys):
    def main() -> None:
        raise UserError("no images")

    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for name, value in {"LOCAL_RANK": "1", "PYTHONSAFEPATH": "1", **environment}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        run_command(main)
    assert ("error: no images" in capsys.readouterr().err) is speaks
