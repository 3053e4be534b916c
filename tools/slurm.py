#!/usr/bin/env python
"""Submit a training to SLURM, on one machine or many, started again whenever it is preempted.

    python tools/slurm.py --nodes 2 --gpus-per-node 8 --hours 48 --partition gpu -- \\
        --config-file configs/pretrain/knn_moco.yaml OUTPUT_DIR /shared/knn_moco

What follows -- are the options of tools/train_net.py. It runs once per node with --resume, so a job that SLURM
preempts, requeues or finds on a failed node resumes from its last checkpoint. When it is preempted, and two minutes
before its time is up, the training writes one and ends. OUTPUT_DIR has to be on a disk that all nodes see, and so does
this checkout. --print shows the script for sbatch and submits nothing.
"""

import argparse
import shlex
import sys

from revisit.engine.command import natural, run_command
from revisit.files import output_path
from revisit.jobs.sbatch import BatchJob
from revisit.plugins import find_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--nodes", type=natural, default=1, help=f"machines {default}")
    add("--gpus-per-node", type=natural, required=True, metavar="N", help="processes on each")
    add("--cpu", action="store_true", help="ask for no GPUs: --gpus-per-node counts processes")
    add("--cpus-per-gpu", type=natural, default=8, metavar="N", help=default)
    add("--hours", type=natural, default=24, metavar="N", help=default)
    add("--partition", metavar="NAME", help="(default: the cluster's)")
    add("--job-name", default="revisit", metavar="NAME", help=default)
    add("--logs", type=output_path, default="output/slurm", metavar="DIR", help=default)
    add("--print", action="store_true", help="print the script for sbatch; submit nothing")
    add("options", nargs="+", metavar="OPTION", help="of tools/train_net.py, after --")
    args = parser.parse_args()
    gpus, cpus = (0 if args.cpu else args.gpus_per_node), args.cpus_per_gpu * args.gpus_per_node
    log, where = args.logs.resolve() / "%j.log", {"nodes": args.nodes, "partition": args.partition}
    job = BatchJob(args.job_name, (training(args),), log, args.hours, gpus, cpus, **where)
    print(job.script if args.print else f"Submitted batch job {job.submit()}")


def training(args: argparse.Namespace) -> str:
    """The shell command of every node, which knows its rank and the first node's address by the job's variables."""
    words = [sys.executable, find_file("tools/train_net.py"), "--resume", "--num-gpus", str(args.gpus_per_node)]
    machines = f'--num-machines {args.nodes} --machine-rank $SLURM_NODEID --dist-url "tcp://$MASTER:$PORT"'
    return " ".join((shlex.join(words), *((machines,) if args.nodes > 1 else ()), shlex.join(args.options)))


if __name__ == "__main__":
    run_command(main)
