#!/usr/bin/env python
"""Submit a training to SLURM, on one machine or many, started again whenever it is preempted.

    python tools/slurm.py --nodes 2 --gpus-per-node 8 --hours 48 --partition gpu -- \\
        --config-file configs/pretrain/knn_moco.yaml OUTPUT_DIR /shared/knn_moco

What follows -- are tools/train_net.py's own options. It runs once on every node with --resume, so a job that SLURM
preempts, requeues or finds on a failed node goes on from its last checkpoint. When it is preempted, and two minutes
before its time is up, the training writes one and ends. OUTPUT_DIR has to be on a disk that all nodes see, and so does
this checkout. --print shows the script of sbatch and submits nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from revisit.engine.command import natural, run_command
from revisit.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
PORTS = 20000, 20000  # the first one, and how many: a job takes the one of its number
WARNING = 120  # seconds between SLURM's signal and the end of a job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=natural, default=1, help="machines (default: %(default)s)")
    parser.add_argument("--gpus-per-node", type=natural, required=True, metavar="N", help="processes on each")
    parser.add_argument("--cpu", action="store_true", help="ask for no GPUs: --gpus-per-node counts processes")
    parser.add_argument("--cpus-per-gpu", type=natural, default=8, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--hours", type=natural, default=24, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--partition", metavar="NAME", help="(default: the cluster's)")
    parser.add_argument("--job-name", default="revisit", metavar="NAME", help="(default: %(default)s)")
    parser.add_argument("--logs", type=Path, default=Path("output/slurm"), metavar="DIR", help="(default: %(default)s)")
    parser.add_argument("--by", choices=("submitit", "sbatch"), help="(default: submitit where it is installed)")
    parser.add_argument("--print", action="store_true", help="print the script of sbatch; submit nothing")
    parser.add_argument("options", nargs="+", metavar="OPTION", help="of tools/train_net.py, after --")
    args = parser.parse_args()
    if args.print:
        print(batch_script(args))
        return
    args.logs.mkdir(parents=True, exist_ok=True)
    by = args.by or ("submitit" if importlib.util.find_spec("submitit") else "sbatch")
    print(submit_by_submitit(args) if by == "submitit" else submit_by_sbatch(args))


def cpus_per_node(args: argparse.Namespace) -> int:
    return args.cpus_per_gpu * args.gpus_per_node


def train_command(args: argparse.Namespace, machine_rank: str, address: str, port: str) -> str:
    """The shell command of one machine; its own rank and the first one's address may be shell variables."""
    machines = f'--num-machines {args.nodes} --machine-rank {machine_rank} --dist-url "tcp://{address}:{port}" '
    return (
        f"{shlex.quote(sys.executable)} tools/train_net.py --resume --num-gpus {args.gpus_per_node} "
        f"{machines if args.nodes > 1 else ''}{shlex.join(args.options)}"
    )


def batch_script(args: argparse.Namespace) -> str:
    """What sbatch runs on the first node; srun starts the command on every one."""
    first, count = PORTS
    command = train_command(args, "$SLURM_NODEID", "$MASTER", "$PORT")
    gpus = "" if args.cpu else f"#SBATCH --gpus-per-node={args.gpus_per_node}\n"
    partition = f"#SBATCH --partition={args.partition}\n" if args.partition else ""
    return f"""#!/bin/bash
#SBATCH --job-name={args.job_name}
#SBATCH --nodes={args.nodes}
#SBATCH --ntasks-per-node=1
{gpus}#SBATCH --cpus-per-task={cpus_per_node(args)}
#SBATCH --time={args.hours}:00:00
{partition}#SBATCH --output={args.logs.resolve()}/%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@{WARNING}
cd {shlex.quote(str(ROOT))}
export MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PORT=$(({first} + SLURM_JOB_ID % {count}))
# The time is up: the training writes a checkpoint and ends, and the same job is queued once more.
time_is_up() {{
    kill -USR1 "$TRAINING"
    for second in $(seq {WARNING - 30}); do kill -0 "$TRAINING" 2>/dev/null || break; sleep 1; done
    scontrol requeue "$SLURM_JOB_ID"
}}
trap time_is_up USR1
srun --kill-on-bad-exit=1 --cpus-per-task={cpus_per_node(args)} bash -c {shlex.quote(command)} &
TRAINING=$!
wait "$TRAINING"
"""


def submit_by_sbatch(args: argparse.Namespace) -> str:
    """What sbatch answers. Raises UserError where there is none, or where it refuses."""
    try:
        done = subprocess.run(["sbatch"], input=batch_script(args), text=True, capture_output=True)
    except FileNotFoundError as error:
        raise UserError("no sbatch on this machine: submit from a login node, or look at --print") from error
    if done.returncode:
        raise UserError(f"sbatch refused the job: {done.stderr.strip()}")
    return done.stdout.strip()


class TrainTask:
    """What submitit runs on every node, and submits again when the job is preempted."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.training: subprocess.Popen | None = None

    def __call__(self) -> None:
        import submitit

        job = submitit.JobEnvironment()
        first, count = PORTS
        port = first + int("".join(filter(str.isdecimal, job.job_id)) or 0) % count
        command = train_command(self.args, str(job.node), job.hostnames[0], str(port))
        self.training = subprocess.Popen(["bash", "-c", command], cwd=ROOT)
        while (code := self.training.poll()) is None:  # wait() would lock out that of checkpoint, which interrupts it
            time.sleep(1)
        if code:
            raise subprocess.CalledProcessError(code, command)

    def checkpoint(self) -> object:
        """What submitit calls, in this process, when the time is up or the job is preempted."""
        from submitit.helpers import DelayedSubmission

        if self.training:
            self.training.send_signal(signal.SIGUSR1)
            while self.training.poll() is None:
                time.sleep(1)
        return DelayedSubmission(TrainTask(self.args))


def submit_by_submitit(args: argparse.Namespace, cluster: str = "slurm") -> str:
    """A line that tells the job's number. Raises UserError where it is not installed or there is no SLURM."""
    try:
        import submitit
    except ImportError as error:
        raise UserError("submitit is not installed: pip install submitit, or --by sbatch") from error

    try:
        # Queued again as often as it takes, as sbatch does it.
        executor = submitit.AutoExecutor(folder=args.logs, cluster=cluster, slurm_max_num_timeout=10**6)
    except RuntimeError as error:
        raise UserError(f"{error}: submit from a login node, or look at --print") from error
    executor.update_parameters(
        name=args.job_name,
        nodes=args.nodes,
        tasks_per_node=1,
        gpus_per_node=0 if args.cpu else args.gpus_per_node,
        cpus_per_task=cpus_per_node(args),
        timeout_min=60 * args.hours,
        **({"slurm_partition": args.partition} if args.partition else {}),
        slurm_signal_delay_s=WARNING,
        slurm_srun_args=[f"--cpus-per-task={cpus_per_node(args)}"],
    )
    return f"Submitted batch job {executor.submit(TrainTask(args)).job_id}"


if __name__ == "__main__":
    run_command(main)
