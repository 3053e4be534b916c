"""Which network a command uses: the options that ``predictions.finetuned_config`` reads, understood before torch."""

import argparse


def add_network_options(parser: argparse.ArgumentParser, scores: str = "") -> None:
    """--weights, --config-file and, where ``scores`` says in words what has them, --score-threshold."""
    add = parser.add_argument
    weights = "checkpoint of a finetuning, such as model_final.pth, which knows its network, classes and input"
    add("--weights", default="", metavar="FILE", help=f"{weights}; as MODEL.WEIGHTS FILE")
    add("--config-file", default="", metavar="FILE", help="for weights that hold no config, or to test otherwise")
    if scores:
        default = "(default: what KEY VALUE says of SCORE_THRESH_TEST, else 0.5)"
        add("--score-threshold", type=float, metavar="S", help=f"{scores} that score at least this, 0 to 1 {default}")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """The KEY VALUE pairs at the end of a command line, for ``parse_with_pairs``."""
    pairs = "KEY VALUE pairs over the config, such as INPUT.MIN_SIZE_TEST 800, come last, after --opts or not"
    parser.add_argument("--opts", nargs=argparse.REMAINDER, help=pairs)
