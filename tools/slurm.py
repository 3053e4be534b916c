#!/usr/bin/env python
"""Submit a training to SLURM, on one machine or many, started again whenever it is preempted.

    python tools/slurm.py --num-machines 2 --num-gpus 8 --hours 48 --partition gpu -- \\
        --config-file configs/pretrain/knn_moco.yaml OUTPUT_DIR /shared/knn_moco

What follows -- are the options of tools/train_net.py. It runs once per node with --resume, so a job that SLURM
preempts, requeues or finds on a failed node resumes from its last checkpoint. When it is preempted, and two minutes
before its time is up, the training writes one and ends. OUTPUT_DIR has to be on a disk that all nodes see, and so does
this checkout. --dry-run shows the script for sbatch and submits nothing.
"""

import argparse
import shlex
import sys

from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import run_command
from revisit.files import make_folder
from revisit.jobs.sbatch import BatchJob
from revisit.plugins import find_file


def main() -> None:
    parser = parser_of(__doc__, __file__)
    add(parser, "num-machines")
    add(parser, "num-gpus", required=True, help="processes on each machine")
    add(
        parser,
        "device",
        default="cuda",
        choices=("cuda", "cpu"),
        help="cpu asks for no GPUs: --num-gpus counts processes",
    )
    add(parser, "cpus", default=8, help=f"cores of each process {DEFAULT}")
    add(parser, "hours", default=24)
    add(parser, "partition")
    add(parser, "title", default="revisit", help=f"of the job {DEFAULT}")
    add(parser, "output", default="output/slurm", help=f"folder for logs {DEFAULT}")
    add(parser, "dry-run", help="print the script for sbatch; submit nothing")
    parser.add_argument("options", nargs="+", metavar="OPTION", help="of tools/train_net.py, after --")
    if "--" not in sys.argv and any(word.startswith("--config-file") for word in sys.argv):
        parser.error("the options of tools/train_net.py come after --, as in: -- --config-file FILE")
    args = parse(parser)
    gpus, cpus = (args.num_gpus if args.device == "cuda" else 0), args.cpus * args.num_gpus
    log, where = args.output.resolve() / "%j.log", {"nodes": args.num_machines, "partition": args.partition}
    job = BatchJob(args.title, (training(args),), log, args.hours, gpus, cpus, **where)
    make_folder(log.parent, "--output")  # without it SLURM ends the job and says nothing
    print(job.script if args.dry_run else f"Submitted batch job {job.submit()}")


def training(args: argparse.Namespace) -> str:
    """The shell command of every node, which knows its rank and the first node's address by the job's variables."""
    words = [sys.executable, find_file("tools/train_net.py"), "--resume", "--num-gpus", str(args.num_gpus)]
    machines = f'--num-machines {args.num_machines} --machine-rank $SLURM_NODEID --dist-url "tcp://$MASTER:$PORT"'
    return " ".join((shlex.join(words), *((machines,) if args.num_machines > 1 else ()), shlex.join(args.options)))


if __name__ == "__main__":
    run_command(main)
