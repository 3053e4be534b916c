#!/usr/bin/env python
"""Pretrain a backbone or finetune a Detectron2 model from one.

The config file says what; KEY VALUE pairs at the end override it, as in Detectron2:

    python tools/train_net.py --config-file configs/pretrain/knn_moco.yaml --num-gpus 2
    python tools/train_net.py --config-file configs/toy/pretrain.yaml --dry-run
    python tools/train_net.py --config-file configs/pretrain/knn_moco.yaml \\
        DATASETS.TRAIN "('folder:/data/photos',)" OUTPUT_DIR output/photos SOLVER.EPOCHS 100

On a machine without a GPU, --num-gpus N starts N processes on the CPU. On several machines, which share OUTPUT_DIR:

    python tools/train_net.py --config-file F --num-gpus 8 --num-machines 2 --machine-rank 0 --dist-url tcp://HOST0:29500
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST0:29500 \\
        tools/train_net.py --config-file F
    python tools/slurm.py --nodes 2 --gpus-per-node 8 -- --config-file F
"""

import argparse

from revisit.engine.command import run_command
from revisit.engine.dry_run import dry_run
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.launch import TIMEOUT, find_processes, launch
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.setup import check_evaluation_data, count_images, load_config, setup_run
from revisit.engine.solver import resolve_schedule
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode
from detectron2.engine import default_argument_parser


def parse_args() -> argparse.Namespace:
    parser = default_argument_parser(epilog=__doc__)
    parser.description = "Pretrain a backbone or finetune a Detectron2 model."
    parser.set_defaults(dist_url="auto")
    plan = "train nothing: print the resolved recipe, shapes, memory and iterations, write them to "
    plan += "OUTPUT_DIR/dry_run.json, and a sheet of the views to OUTPUT_DIR/views.png"
    parser.add_argument("--dry-run", action="store_true", help=plan)
    patience, default = "how long a process waits for the others before it gives up", TIMEOUT.total_seconds() / 60
    patience += " (exit code 75; default: %(default)g)"
    parser.add_argument("--timeout", type=minutes, default=default, metavar="MINUTES", help=patience)
    return parser.parse_args()


def minutes(text: str) -> float:
    """A type of argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected minutes above 0, got {text}")
    return value


def run(cfg: CfgNode, args: argparse.Namespace) -> None:
    """What every process does."""
    setup_run(cfg, args)
    trainer_class = PretrainTrainer if method_of(cfg) else FinetuneTrainer
    if args.eval_only:
        trainer_class.evaluate(cfg, resume=args.resume)
    else:
        trainer = trainer_class(cfg)
        trainer.resume_or_load(resume=args.resume)
        trainer.train()


def main() -> None:
    args = parse_args()
    processes = find_processes(args)
    args.num_gpus, args.num_machines, args.machine_rank = processes[:3]
    cfg = load_config(args)
    args.notes = []
    if not args.eval_only:
        num_images = count_images(cfg, args.notes, assume_missing=args.dry_run)
        resolve_schedule(cfg, num_images)
    cfg.freeze()
    check_evaluation_data(cfg, args.notes, assume_missing=args.dry_run)
    if args.dry_run:
        dry_run(cfg, num_images, processes.world_size, args.notes)
    else:
        launch(run, processes, device=cfg.MODEL.DEVICE, args=(cfg, args))


if __name__ == "__main__":
    run_command(main)
