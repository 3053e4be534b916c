"""The options by which commands say who makes their parts, understood before seconds of imports."""

import argparse
from typing import TYPE_CHECKING

from revisit.command.options import add, share_of_gpus
from revisit.errors import expect

if TYPE_CHECKING:
    from revisit.jobs.runner import Runner

RAY = "ray"
OTHERS = ("here", "torchrun", "slurm")


def add_runner_options(parser: argparse.ArgumentParser, processes: int = 1) -> None:
    """--on, --processes and what Ray's tasks need, for ``runner_of``; ``processes`` is the default."""
    add(parser, "on")
    add(parser, "processes", help=f"parts at a time (default: {processes} here, all that fit on Ray)")
    add(parser, "cpus", help="cores of a part on Ray (default: 1)")
    gpus = "of a part on Ray, such as 0.5 or 1 (default: 0)"
    add(parser, "num-gpus", type=share_of_gpus, default=None, metavar="X", help=gpus)


def runner_of(args: argparse.Namespace, processes: int = 1) -> "Runner":
    """Of a command with these options. Raises UserError for options that contradict, or that nothing here can do."""
    if args.on == RAY or args.on.startswith("ray://"):
        return _on_ray(args)
    expect(args.on in OTHERS, f"--on {args.on}: expected {', '.join(OTHERS)}, ray or ray://HOST:PORT")
    expect(
        args.cpus is None and args.num_gpus is None,
        f"--cpus and --num-gpus are for Ray's tasks: expected --on ray, got {args.on}",
    )
    if args.on == "here":
        from revisit.jobs.processes import Processes

        return Processes(args.processes or processes)
    expect(args.processes is None, f"--processes: with --on {args.on} each process is one worker, so expected none")
    from revisit.jobs.shares import share_of_array, share_of_torchrun

    return share_of_array() if args.on == "slurm" else share_of_torchrun()


def _on_ray(args: argparse.Namespace) -> "Runner":
    host, _, port = args.on.removeprefix("ray://").rpartition(":")
    expect(args.on == RAY or (host != "" and port.isdecimal()), f"--on {args.on}: expected ray://HOST:PORT")
    from revisit.jobs.on_ray import OnRay

    return OnRay(args.on, args.processes, args.cpus or 1, args.num_gpus or 0)
