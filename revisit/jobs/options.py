"""The options by which commands say who makes their parts, understood before seconds of imports."""

import argparse
from typing import TYPE_CHECKING

from revisit.engine.command import natural
from revisit.errors import expect

if TYPE_CHECKING:
    from revisit.jobs.job import Runner

RAY = "ray"
OTHERS = ("here", "torchrun", "slurm")


def add_runner_options(parser: argparse.ArgumentParser, workers: int = 1) -> None:
    """--on, --workers and what Ray's tasks need, for ``runner_of``; ``workers`` where nothing is said."""
    add = parser.add_argument
    on = "who makes the parts: here (default), torchrun, slurm (a job array), ray, or ray://HOST:PORT"
    add("--on", default="here", metavar="WHO", help=f"{on}; revisit/jobs/README.md")
    add("--workers", type=natural, metavar="N", help=f"parts at a time (default: {workers} here, all that fit on Ray)")
    add("--task-cpus", type=natural, metavar="N", help="of a part on Ray (default: 1)")
    add("--task-gpus", type=share_of_gpus, metavar="X", help="of a part on Ray, such as 0.5 or 1 (default: 0)")


def share_of_gpus(text: str) -> float:
    """A part of a GPU, or whole ones, as a type of argparse."""
    amount = float(text)
    if not (0 <= amount <= 1 or amount >= 1 and amount.is_integer()):
        raise argparse.ArgumentTypeError(f"expected 0 to 1, or a whole number, got {text}")
    return amount


def runner_of(args: argparse.Namespace, workers: int = 1) -> "Runner":
    """Of a command with these options. Raises UserError for options that contradict, or that nothing here can do."""
    if args.on == RAY or args.on.startswith("ray://"):
        return _on_ray(args)
    expect(args.on in OTHERS, f"--on {args.on}: expected {', '.join(OTHERS)}, ray or ray://HOST:PORT")
    needs_nothing = args.task_cpus is None and args.task_gpus is None
    expect(needs_nothing, f"--task-cpus and --task-gpus are for Ray's tasks: expected --on ray, got {args.on}")
    if args.on == "here":
        from revisit.jobs.processes import Processes

        return Processes(args.workers or workers)
    expect(args.workers is None, f"--workers: with --on {args.on} each process is one worker, so expected none")
    from revisit.jobs.shares import share_of_array, share_of_torchrun

    return share_of_array() if args.on == "slurm" else share_of_torchrun()


def _on_ray(args: argparse.Namespace) -> "Runner":
    host, _, port = args.on.removeprefix("ray://").rpartition(":")
    expect(args.on == RAY or (host != "" and port.isdecimal()), f"--on {args.on}: expected ray://HOST:PORT")
    from revisit.jobs.on_ray import OnRay

    return OnRay(args.on, args.workers, args.task_cpus or 1, args.task_gpus or 0)
