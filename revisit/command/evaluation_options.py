"""The command line of an evaluation of frozen features, understood before seconds of imports."""

import argparse
import sys
from importlib import import_module
from typing import NoReturn

from revisit.checkpoint import RANDOM
from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.plugins import NAME


def run_project(name: str, description: str, *, network: bool = True) -> NoReturn:
    """What a script projects/NAME.py does first: call the ``main`` of its own module, and end the process. NAME is
    dotted."""

    def understand_and_call() -> None:
        args = parse_args(description, network=network)
        from revisit.command.evaluation_config import load_project  # not before: this takes seconds

        main = import_module(f"{NAME}.{name}").main  # its keys are declared
        main(load_project(args))

    run_command(understand_and_call)
    sys.exit()


def parse_args(description: str | None, *, network: bool = True) -> argparse.Namespace:
    """The options that all projects have. One without ``network`` needs no --weights."""
    parser = parser_of(description)
    add(parser, "config-file", required=True, help="network and protocol")
    what = f"output of tools/convert_to_d2.py, a name such as imagenet:NAME, or {RANDOM}: a network drawn from SEED"
    what = what if network else "not used: this project needs no network"
    add(parser, "weights", required=network, default=RANDOM, help=what)
    add(parser, "output", required=True, help="folder for results.json and pictures")
    add(parser, "opts")
    return parse(parser)
