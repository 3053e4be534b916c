"""What every project on frozen features shares: a checked config, results.json."""

import logging
from argparse import Namespace
from itertools import chain
from pathlib import Path

from revisit.checkpoint import RANDOM
from revisit.checkpoint.named_weights import is_named
from revisit.checkpoint.start import start
from revisit.engine.environment import record_environment
from revisit.engine.freed_memory import keep_freed_memory
from revisit.engine.run_log import open_log
from revisit.engine.same_experiment import config_text
from revisit.engine.setup import has_run, make_config
from revisit.errors import expect, without_secrets
from revisit.files import make_folder, strict_json, write_whole

from detectron2.config import CfgNode


def load_project(args: Namespace) -> CfgNode:
    """The config of an evaluation, checked and frozen; OUTPUT_DIR, which is --output, has its records.

    --weights becomes MODEL.WEIGHTS, empty for a network drawn from SEED. A name, such as imagenet:NAME, brings its
    backbone in place of the recipe's.
    """
    # Without its plain backbone the recipe of a name looks like a detector's.
    builder = start(args.weights).builder if is_named(args.weights) else {}
    cfg = make_config(
        args.config_file,
        (*chain(*builder.items()), *args.opts, "MODEL.WEIGHTS", args.weights),
        seed=0,  # repeatable unless it is changed
    )
    cfg.OUTPUT_DIR = str(args.output)
    cfg.freeze()
    make_folder(args.output, "--output")
    expect(not has_run(args.output), f"--output {args.output} is the folder of a training: give another one")
    keep_freed_memory(cfg.MODEL.DEVICE)
    open_log(str(args.output))
    write_whole(args.output / "config.yaml", config_text(cfg))
    record_environment(args.output, again=False)
    logging.getLogger(__name__).info(f"SEED {cfg.SEED}, weights {args.weights}")
    return cfg


def only_dataset(cfg: CfgNode, split: str) -> str:
    """The data set of DATASETS.TRAIN or DATASETS.TEST. Raises UserError unless it is one."""
    names = cfg.DATASETS[split]
    expect(len(names) == 1, f"DATASETS.{split} is {tuple(names)}: expected one data set")
    return names[0]


def write_results(cfg: CfgNode, protocol: str, results: dict, *, network: bool = True) -> None:
    """OUTPUT_DIR/results.json, whole or not at all: what the numbers mean, of which weights they are, the numbers."""
    weights = {"weights": cfg.MODEL.WEIGHTS or RANDOM} if network else {}
    content = strict_json({"protocol": protocol, **weights, **results})
    write_whole(Path(cfg.OUTPUT_DIR) / "results.json", f"{without_secrets(content)}\n")
    print(f"results.json, and what was drawn, is in {cfg.OUTPUT_DIR}")
