#!/usr/bin/env python
"""Pretrain a backbone, or finetune a Detectron2 model from one.

The config file says what to train; KEY VALUE pairs at the end override it, as in Detectron2:

    python tools/train_net.py --config-file configs/pretrain/knn_moco.yaml --num-gpus 2
    python tools/train_net.py --config-file configs/toy/pretrain.yaml --dry-run
    python tools/train_net.py --config-file configs/pretrain/knn_moco.yaml \\
        DATASETS.TRAIN "('folder:/data/photos',)" OUTPUT_DIR output/photos SOLVER.EPOCHS 100

On a machine without a GPU, --num-gpus N starts N processes on the CPU. On several machines, which share OUTPUT_DIR:

    python tools/train_net.py --config-file F --num-gpus 8 --num-machines 2 --machine-rank 0 --dist-url tcp://HOST0:29500
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST0:29500 \\
        tools/train_net.py --config-file F
    python tools/slurm.py --num-machines 2 --num-gpus 8 -- --config-file F
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import TYPE_CHECKING

from revisit.command.options import add, parse, parser_of
from revisit.engine.command import TIMEOUT, run_command
from revisit.errors import UserError

if TYPE_CHECKING:  # torch and Detectron2 take seconds to import: not before the command line is understood
    from revisit.engine.setup import Plan


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add(parser, "config-file")
    add(parser, "weights", help="start from these, or score them: MODEL.WEIGHTS FILE")
    add(parser, "resume", "eval-only", "num-gpus", "num-machines", "machine-rank", "dist-url")
    plan = "train nothing: print the resolved recipe and write it to OUTPUT_DIR/dry_run.json; of a pretraining also "
    add(parser, "dry-run", help=f"{plan}tensor shapes, memory, and a sheet of the views, OUTPUT_DIR/views.png")
    force = "with --resume: continue although this key has changed, which is refused otherwise; may be repeated"
    add(parser, "accept", help=force)
    waits = "how long a process waits for the others before it gives up (exit code 75; default: %(default)g)"
    add(parser, "timeout", default=TIMEOUT.total_seconds() / 60, help=waits)
    add(parser, "opts")
    args = parse(parser)
    args.opts = [*(["MODEL.WEIGHTS", args.weights] if args.weights else []), *args.opts]
    return args


def run(planned: Plan, args: argparse.Namespace) -> None:
    """What every process does."""
    from revisit.data.sources.catalog import drop_records, keep_records
    from revisit.engine.finetune_trainer import FinetuneTrainer
    from revisit.engine.pretrain_trainer import PretrainTrainer
    from revisit.engine.setup import start_run
    from revisit.engine.stop_signals import ignore_from_now_on
    from revisit.errors import translated
    from revisit.modeling.meta_arch.pretraining import method_of

    keep_records()
    with start_run(planned, args) as cfg:
        trainer_class = PretrainTrainer if method_of(cfg) else FinetuneTrainer
        if args.eval_only:
            trainer_class.evaluate(cfg, resume=args.resume)
            return
        with translated("building the network, its data and its optimiser"):
            trainer = trainer_class(cfg)
        trainer.resume_or_load(args.resume, accepted=args.accept)
        drop_records()  # not in the memory of a training and its workers
        trainer.train()
        ignore_from_now_on()


def main() -> None:
    args = parse_args()
    if args.accept and not args.resume:
        raise UserError(f"--accept {' '.join(args.accept)} without --resume: it is for resumed runs")
    from revisit.data.sources.catalog import drop_records, keep_records
    from revisit.engine.dry_run import dry_run
    from revisit.engine.launch import ending_all_machines, find_processes, launch
    from revisit.engine.setup import plan
    from revisit.engine.stop_signals import ignore_from_now_on
    from revisit.errors import translated

    processes = find_processes(args)
    keep_records()
    with nullcontext() if args.dry_run else ending_all_machines(processes):
        planned = plan(args, processes.world_size)
    if args.dry_run:
        with translated("making the dry run"):
            dry_run(planned.cfg, planned.facts, planned.log)
    else:
        if processes.world_size > 1:
            drop_records()  # the processes read their own
        launch(run, processes, device=planned.cfg.MODEL.DEVICE, args=(planned, args))
        ignore_from_now_on()


if __name__ == "__main__":
    run_command(main)
