"""The one vocabulary: every option of every command, its kind and what it means; no command has a word of its own.

A command asks for words by name, ``add(parser, "weights", "data")``, and may say in its help what they do there. One
word means one thing everywhere. ``parser_of`` also takes the words of version 0.1 (revisit/compat/old_options.py).
"""

import argparse
import ast
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from revisit import __version__
from revisit.compat.old_options import current_words
from revisit.engine.command import natural, pairs_of, whole
from revisit.errors import UserError, did_you_mean
from revisit.files import input_file, output_path

DEFAULT = "(default: %(default)s)"
_KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)*")


class Parser(argparse.ArgumentParser):
    """Of the command of a file, whose name without suffix ``tool`` is."""

    takes_pairs = False  # KEY VALUE at the end

    def __init__(self, description: str | None = None, file: str = "", **how: Any):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, **how)
        self.tool = Path(file).stem

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(current_words(self.tool, words), namespace)


def parser_of(description: str | None, file: str = "") -> Parser:
    """A command's parser, of its docstring and its ``__file__``, with what every command has."""
    parser = Parser(description, file)
    add(parser, "debug", "version")
    return parser


def add(parser: Any, *names: str, **changes: Any) -> None:
    """Add words of the vocabulary to a parser or to a group of one; ``changes`` are ``help`` and what else argparse has
    for an option, for each of them."""
    for name in names:
        parser.add_argument(f"--{name}", **WORDS[name] | changes)
        if name == "opts":
            parser.takes_pairs = True


def parse(parser: Any, words: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of this process or ``words``. Of a command that takes a config, KEY VALUE pairs that end them,
    after ``--opts`` or not, are ``opts``.

    Without --opts the pairs are as many as look so: a name in capitals that is no file, and what is no option. What
    follows ``--`` stays with the parser.
    """
    words = list(sys.argv[1:] if words is None else words)
    if not parser.takes_pairs:
        return parser.parse_args(words)
    start = _start_of_pairs(words)
    args, stray = parser.parse_known_args(words[:start])
    if stray and stray[0].startswith("-"):
        parser.error(f"unrecognized arguments: {' '.join(stray)}")
    before = words[words.index(stray[0]) : start] if stray else []
    args.opts = [*before, *words[start + (words[start : start + 1] == ["--opts"]) :]]
    pairs_of(args.opts)
    return args


def _start_of_pairs(words: Sequence[str]) -> int:
    options = words[: words.index("--")] if "--" in words else words
    if "--opts" in options:
        return options.index("--opts")
    start = len(words)
    while options is words and start > 1:
        key, value = words[start - 2 : start]
        if not _KEY.fullmatch(key) or value.startswith("--") or os.path.exists(key):
            break
        start -= 2
    return start


def data_set(text: str | Path) -> str:
    """The name of the data set that a word means, as a type of argparse: a folder of photographs, a list of images
    (.txt) or COCO annotations (.json) next to their images, KIND:PATH, a fixed name, or one of these as configs or a
    shell have them, ``"('folder:photos',)"``."""
    text = str(text) if os.path.exists(text) else str(text).strip("\"'")
    if text.startswith("("):
        try:
            named = ast.literal_eval(text)
            (text,) = [named] if isinstance(named, str) else named
        except (ValueError, SyntaxError, TypeError) as error:
            raise UserError(f"{text}: expected one data set, such as ('folder:photos',)") from error
    if os.path.isdir(text):
        return f"folder:{text}"
    if os.path.isfile(text) and text.endswith(".json"):
        return f"coco:{os.path.dirname(text) or '.'}:{text}"
    return f"list:{text}" if os.path.isfile(text) and text.endswith(".txt") else text


def count(text: str) -> int:
    """How many, as a type of argparse: a whole number above 0, also as 1e9."""
    is_power = re.fullmatch(r"[1-9]e\d\d?", text)
    return int(float(text)) if is_power else natural(text)


def count_or_all(text: str) -> str:
    """A type of argparse."""
    count = text.removesuffix("/class")
    ending = "/class" * text.endswith("/class")
    return text if text == "all" else str(natural(count)) + ending


def minutes(text: str) -> float:
    """A type of argparse: ``90m`` or ``1.5h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mh])", text)
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r}: expected minutes or hours, such as 60m or 8h")
    return float(match[1]) * {"m": 1, "h": 60}[match[2]]


def patience(text: str) -> float:
    """Minutes, as a type of argparse, which takes a ValueError for a refusal."""
    if not 0 < float(text) < 1e6:
        raise ValueError
    return float(text)


def share_of_gpus(text: str) -> float:
    """A part of a GPU, or whole ones, as a type of argparse."""
    amount = float(text)
    if not (0 <= amount <= 1 or amount >= 1 and amount.is_integer()):
        raise argparse.ArgumentTypeError(f"expected 0 to 1, or a whole number, got {text}")
    return amount


def named(kinds: Mapping[str, Callable[[str], Any]]) -> Callable[[str], tuple[str, Any]]:
    """A type of argparse: NAME=VALUE, VALUE of the kind of that name, as the pair (NAME, VALUE)."""

    def pair(text: str) -> tuple[str, Any]:
        name, _, value = text.partition("=")
        if name not in kinds:
            meant = did_you_mean(name, kinds)
            raise argparse.ArgumentTypeError(f"{text}: expected NAME=VALUE with NAME one of {', '.join(kinds)}{meant}")
        try:
            return name, kinds[name](value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text}: expected a number after {name}=, got {value!r}") from error

    return pair


def _flag(meaning: str) -> dict[str, Any]:
    return {"action": "store_true", "help": meaning}


def _number(kind: Any, meaning: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "metavar": "N", "help": meaning, **more}


def _text(metavar: str, meaning: str, **more: Any) -> dict[str, Any]:
    return {"default": "", "metavar": metavar, "help": meaning, **more}


def _several(metavar: str, meaning: str, **more: Any) -> dict[str, Any]:
    return {"nargs": "+", "default": [], "metavar": metavar, "help": meaning, **more}


_PAIRS = "KEY VALUE pairs over the config, such as SOLVER.MAX_ITER 100, come last, after --opts or not"
_ON = "who does the work: here (default), torchrun, slurm, ray, or ray://HOST:PORT"
WORDS: dict[str, dict[str, Any]] = {
    # What every command has
    "debug": _flag("print the traceback of an error"),
    "version": {"action": "version", "version": __version__, "help": "print the version"},
    # What is read and written
    "config-file": _text("FILE", "recipe, such as configs/toy/pretrain.yaml"),
    "opts": {"nargs": argparse.REMAINDER, "metavar": "KEY VALUE", "help": _PAIRS},
    "weights": _text(
        "FILE", "where a network starts: a converted backbone, a run's checkpoint, or a name such as imagenet:NAME"
    ),
    "imports": {"nargs": "*", "default": [], "help": "modules that describe other backbones, as IMPORTS"},
    "data": _text("NAME", "a folder, a list, or a data set KIND:PATH", type=data_set),
    "test": _text("NAME", "the data set that is tested", type=data_set),
    "unlabelled": _several("NAME", "photographs that nobody labelled", type=data_set),
    "labelled": _text("NAME", "which images are labelled", type=data_set),
    "held-out": _text("SHARE|NAME", "share of the labelled images to choose by, or a data set", type=data_set),
    "boxes": _text("NAME", "boxes: those of a data set, that a detector found, or one by its corners"),
    "frames": _several("PATH", "frames of videos: folders of them, or video files"),
    "masks": _several("PNG|DIR", "masks of objects", type=input_file),
    "embeddings": {"required": True, "type": Path, "metavar": "DIR", "help": "output of tools/embed.py"},
    "table": {"type": input_file, "metavar": "FILE", "help": "a table of your own"},
    "output": {"type": output_path, "metavar": "DIR", "help": "folder to write"},
    "tiles": _text("TILING", "px of a tile, +overlap and @scale, such as 1024+128@0.5"),
    "replace": _flag("replace what is there"),
    "no-zoom": _flag("no pages that zoom into images"),
    "format": {"help": "of what is written"},
    # How much, and which part
    "count": _number(count, "how many"),
    "labels": _several("N|N/class|all", "numbers of labelled images", type=count_or_all),
    "only": _several("NAME", "do only these"),
    "time": {"type": minutes, "metavar": "TIME", "help": "that the work may take, such as 60m or 8h"},
    "seed": _number(whole, f"of draws {DEFAULT}", default=0),
    "seeds": _several("N", "seeds of the runs", type=natural),
    "size": _number(natural, "px of a side of a square image", metavar="PX"),
    "short-side": _number(natural, "px of an image's short side, to which it is resized", metavar="PX"),
    # By what
    "how": {"help": "in which way, of several that the command has"},
    "channels": {"help": "of images"},
    "features": {"default": "backbone", "help": f"of which maps {DEFAULT}"},
    "stride": _number(
        int, f"px of a cell of the finest map {DEFAULT}", default=8, choices=(4, 8, 16, 32), metavar=None
    ),
    "rule": _several("NAME=VALUE", "numbers to go by", action="extend"),
    "score": _text("NAME", "which score"),
    "score-threshold": _number(float, "least score of objects, 0 to 1", metavar="S"),
    "profile": {"help": "on whose data and scale"},
    "full": _flag("with --profile toy: trainings as long as their configs say, not shortened"),
    "reference": _text("START", "the start that others are compared with"),
    "spent": _several("NAME=SECONDS", "what a start has cost, where its folder does not say it"),
    "continue-config": _text("FILE", "recipe of continue:FILE"),
    "run": {"nargs": "+", "action": "append", "metavar": "WORD", "help": "NAME TIMES RESULT ..."},
    "title": {"help": "what the score, or the job, is called where it is shown"},
    # What a file of weights holds
    "source": {"default": "auto", "help": "layout of the input"},
    "drop": _several(
        "PATTERN", "leave out the tensors whose names match; may be repeated", action="append", nargs=None
    ),
    "timm": _text("NAME", "network of timm's that the weights are of"),
    # Who does it: processes, machines, devices
    "on": {"default": "here", "metavar": "WHO", "help": f"{_ON}; revisit/jobs/README.md"},
    "processes": _number(natural, "that work at a time"),
    "readers": _number(whole, f"processes that read images for each network {DEFAULT}", default=2),
    "device": _text("NAME", "cpu or cuda (default: cuda where there is one)"),
    "cpus": _number(natural, "CPU cores of each process"),
    "num-gpus": _number(natural, f"of each training (processes, also on CPUs) or part {DEFAULT}", default=1),
    "num-machines": _number(natural, f"machines of a training {DEFAULT}", default=1),
    "machine-rank": _number(whole, f"of this machine, from 0 {DEFAULT}", default=0, metavar="R"),
    "dist-url": _text("URL", "where machines meet: tcp://ADDRESS:PORT of machine 0", default="auto"),
    "timeout": _number(patience, "how long a process waits for the others before it gives up", metavar="MINUTES"),
    "partition": {"metavar": "NAME", "help": "of SLURM's cluster (default: the cluster's own)"},
    "hours": _number(natural, f"limit of each of SLURM's jobs {DEFAULT}"),
    # What a command does, and where it goes on
    "dry-run": _flag("only show what would be done"),
    "resume": _flag("continue from the last checkpoint in OUTPUT_DIR, or start where there is none"),
    "eval-only": _flag("train nothing: evaluate MODEL.WEIGHTS or, with --resume, the last checkpoint"),
    "accept": _several("KEY", "go on although this key has changed; may be repeated", action="append", nargs=None),
}
