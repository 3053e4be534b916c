"""The one shape of every study on frozen features: the same command line, a checked config, results.json."""

from __future__ import annotations

import argparse
import json
import logging
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from revisit.engine.environment import record_environment
from revisit.engine.setup import make_config
from revisit.errors import UserError
from revisit.files import written_whole

from detectron2.config import CfgNode
from detectron2.utils.logger import setup_logger

RANDOM = "random"


def parse_study_args(description: str, *, weights: bool = True) -> argparse.Namespace:
    """The command line of projects/NAME/run.py.

    Args:
        weights: whether the study looks at a network.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-file", required=True, metavar="FILE", help="network and protocol")
    what = f"what tools/convert_to_d2.py writes; {RANDOM}: a network drawn from SEED"
    parser.add_argument(
        "--weights",
        required=weights,
        default=RANDOM,
        metavar="FILE",
        help=what if weights else "not used: this study looks at no network",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="results.json and pictures go there")
    parser.add_argument("opts", nargs=argparse.REMAINDER, metavar="KEY VALUE", help="override the config, in pairs")
    return parser.parse_args()


def load_study(args: argparse.Namespace, add_keys: Callable[[CfgNode], None]) -> CfgNode:
    """The study's config, checked and frozen. OUTPUT holds log.txt, config.yaml and environment.json from now on.

    Args:
        args: of ``parse_study_args``; ``--weights`` and ``--output`` become MODEL.WEIGHTS and OUTPUT_DIR.
        add_keys: adds the study's own keys.
    """
    if args.output.exists() and not args.output.is_dir():
        raise UserError(f"--output {args.output} is a file: expected a folder")
    if args.weights != RANDOM and not Path(args.weights).is_file():
        raise UserError(f"--weights {args.weights} not found: expected a file of weights, or {RANDOM}")

    def add_all_keys(cfg: CfgNode) -> None:
        add_keys(cfg)
        cfg.SEED = 0  # a study is repeatable unless its seed is changed

    cfg = make_config(args.config_file, args.opts, add_keys=add_all_keys)
    cfg.MODEL.WEIGHTS = "" if args.weights == RANDOM else args.weights
    cfg.OUTPUT_DIR = str(args.output)
    cfg.freeze()
    args.output.mkdir(parents=True, exist_ok=True)
    for name in ("revisit", "projects", "fvcore"):
        setup_logger(str(args.output), name=name)
    (args.output / "config.yaml").write_text(cfg.dump())
    record_environment(args.output, again=False)
    logging.getLogger(__name__).info(f"SEED {cfg.SEED}, weights {args.weights}")
    return cfg


def write_results(folder: Path, results: dict) -> None:
    """FOLDER/results.json, whole or not at all."""
    with written_whole(folder / "results.json") as temporary:
        temporary.write_text(json.dumps(results, indent=2) + "\n")


def peak_memory_gb() -> float:
    """The most memory that this process has held so far, GB."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
