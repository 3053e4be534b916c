#!/usr/bin/env python
"""Choose the checkpoints that a finished run has kept at equal parts of its training, and say how long it took to them.

    python projects/Paper/snapshots.py output/moco output/moco/snapshots --count 4

OUTPUT/checkpoint_1.pth is a link to the checkpoint after about a quarter of the iterations, and so on, for
tools/convert_to_d2.py. OUTPUT/times.json has iterations and seconds of training of each, those of the end last.
"""

import json
from pathlib import Path

from revisit.checkpoint.metrics_file import read_metrics
from revisit.checkpoint.run_folder import FINAL, checkpoints_of_run, iteration_of
from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect, translated
from revisit.files import make_folder, output_path, write_whole


def main() -> None:
    parser = parser_of(__doc__, __file__)
    parser.add_argument("run", type=Path, help="folder of a finished pretraining")
    parser.add_argument("output", type=output_path, help="folder for the links")
    add(parser, "count", default=4, help=f"parts {DEFAULT}")
    args = parse(parser)
    chosen = checkpoints_at_parts(args.run, args.count)
    times = []
    for iterations, _ in chosen:
        seconds = training_seconds(args.run / "metrics.json", iterations)
        times.append({"iterations": iterations, "seconds": round(seconds, 2)})
    make_folder(args.output, "the output folder")
    for part, (_, checkpoint) in enumerate(chosen[:-1], start=1):
        link = checkpoint_file(args.output, part)
        link.unlink(missing_ok=True)
        link.symlink_to(checkpoint.resolve())
    write_whole(args.output / "times.json", json.dumps(times, indent=2) + "\n")


def checkpoint_file(folder: Path, part: int) -> Path:
    return folder / f"checkpoint_{part}.pth"


def snapshot_file(folder: Path, part: int) -> Path:
    """The converted backbone of a part."""
    return folder / f"part_{part}.pth"


def checkpoints_at_parts(run: Path, parts: int) -> list[tuple[int, Path]]:
    """Iterations and checkpoint of each of ``parts`` equal parts of a run: the nearest, at most half a part away.

    Raises UserError where there is none: the run is not finished, or has not kept enough of them.
    """
    kept = [(iteration_of(path) + 1, path) for path in checkpoints_of_run(run)]
    final = next((one for one in kept if one[1].stem == FINAL), None)
    expect(final is not None, f"{run} has no {FINAL}.pth: expected a finished run of tools/train_net.py")
    total, _ = final
    chosen = []
    for part in range(1, parts):
        wanted = total * part / parts
        nearest = min(kept, key=lambda one: abs(one[0] - wanted))
        iterations, _ = nearest
        expect(
            abs(iterations - wanted) < total / (2 * parts),
            f"{run} has no checkpoint near {part}/{parts} of its {total:,} iterations: pretrain with "
            "SOLVER.CHECKPOINTS_KEPT 0, and SOLVER.CHECKPOINT_PERIOD short enough",
        )
        chosen.append(nearest)
    return [*chosen, final]


def training_seconds(metrics: Path, iterations: int) -> float:
    """Seconds that a run's steps took until then, without evaluations and checkpoints.

    Each record of metrics.json has the median time of the last 20 steps; it stands for all since the record before.
    """
    seconds = 0.0
    last = 0
    with translated(f"reading the times of a training in {metrics}"):
        for iteration, step in read_metrics(metrics)["time"]:
            until = min(iteration + 1, iterations)
            seconds += step * (until - last)
            last = until
    return seconds * iterations / last  # the steps after the last record as those before


if __name__ == "__main__":
    run_command(main)
