"""Which network a command uses: the options that ``predictions.finetuned_config`` reads, understood before torch."""

import argparse

from revisit.command.options import add


def add_network_options(parser: argparse.ArgumentParser, scores: str = "") -> None:
    """--weights, --config-file and, where ``scores`` says in words what has them, --score-threshold."""
    add(
        parser,
        "weights",
        help="checkpoint of a finetuning, such as model_final.pth, which knows its network, classes and input; as "
        "MODEL.WEIGHTS FILE",
    )
    add(parser, "config-file", help="for weights that hold no config, or to test otherwise")
    if scores:
        add(
            parser,
            "score-threshold",
            help=f"{scores} that score at least this, 0 to 1 (default: what KEY VALUE says of SCORE_THRESH_TEST, else "
            "0.5)",
        )
