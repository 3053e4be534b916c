#!/usr/bin/env python
"""Draw scores of backbones from several moments of pretraining against the time that it had taken.

    python projects/Paper/training_time.py --score sem_seg mIoU --title "VOC mIoU" --output output/time \\
        --run MoCo moco/times.json moco_1/evaluation.json moco_2/evaluation.json \\
        --run +MC mc/times.json mc_1/evaluation.json mc_2/evaluation.json

A run is a name, what projects/Paper/snapshots.py says of its times, and a result for each of them, in their
order. DIR/training_time.png is the picture, DIR/results.json has its numbers.
"""

import json
from pathlib import Path

from projects.Pictures.curves import saved_plot
from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect, translated
from revisit.files import make_folder, write_whole
from revisit.markdown import score_in


def main() -> None:
    parser = parser_of(__doc__, __file__)
    add(parser, "run", required=True)
    add(parser, "score", nargs="+", required=True, metavar="KEY", help="where it stands in a result, level by level")
    add(parser, "title", required=True)
    add(parser, "output", required=True)
    args = parse(parser)
    names = [words[0] for words in args.run]
    expect(len(set(names)) == len(names), f"--run {', '.join(names)}: expected a name of its own for each")
    curves = {words[0]: read_curve(words, args.score) for words in args.run}
    make_folder(args.output, "--output")
    plot_curves_over_time(curves, args.title, args.output / "training_time.png")
    write_whole(args.output / "results.json", json.dumps(curves, indent=2) + "\n")


def read_curve(words: list[str], score: list[str]) -> dict:
    """A run's name, ``seconds`` of pretraining and ``scores``, from its words on the command line."""
    expect(len(words) > 2, f"--run {' '.join(words)}: expected NAME TIMES RESULT ...")
    name, file, *results = words
    with translated(f"--run {name}: reading {' '.join(score)}"):
        seconds = [time["seconds"] for time in json.loads(Path(file).read_text())]
        scores = [score_in(Path(result), score) for result in results]
    expect(len(seconds) == len(scores), f"--run {name}: {len(scores)} results for {len(seconds)} times in {file}")
    return {"name": name, "seconds": seconds, "scores": scores}


def plot_curves_over_time(curves: dict[str, dict], title: str, path: Path) -> None:
    """Scores against training time, one line for each run."""
    longest = max(curve["seconds"][-1] for curve in curves.values())
    unit, length = ("hours", 3600) if longest > 7200 else ("minutes", 60)
    with saved_plot(path, size=(5.5, 4)) as (axis,):
        for name, curve in curves.items():
            axis.plot([second / length for second in curve["seconds"]], curve["scores"], marker="o", label=name)
        axis.set(xlabel=f"time of pretraining ({unit})", ylabel=title)
        axis.set_xlim(left=0)


if __name__ == "__main__":
    run_command(main)
