#!/usr/bin/env python
"""Does depth as a fourth channel help a detector? Pretraining without labels, then a few labels: 4 against 3 channels.

    export DETECTRON2_DATASETS=datasets/rgbd
    python projects/ToyScenes/make_toy_scenes.py --output $DETECTRON2_DATASETS/toy_scenes --channels rgbd --seed 7
    python studies/channels/rgbd.py --output output/rgbd

Both sides read the same files, draw the same labels and looks, and train equally long; INPUT.CHANNELS is the only
difference. They take turns, one training at a time. KEY VALUE pairs at the end count for all trainings. What is done
is skipped, what was interrupted resumes: give the same command again. Prints a table of the finished ones, which
OUTPUT/table.md keeps. docs/results/rgbd.md has what it found.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from revisit.engine.command import natural, run_command
from revisit.files import output_path
from revisit.jobs.commands import Job, run_jobs, with_needs
from revisit.markdown import markdown_table, mean_and_spread, score_in

SIDES = {"red, green, blue": "red green blue", "red, green, blue, depth": "red green blue depth"}
SCORES = ("AP", "AP50")
# The look of images that are no photographs, for both; a pretraining that evaluates nothing.
PRETRAINING = """
    VIEWS.POLICY channels DATASETS.TRAIN ('toy_scenes_train',) DATASETS.TEST () KNN_EVAL.BANK '' KNN_EVAL.LINEAR False
    TEST.EVAL_EPOCHS 0
"""
BOTH = "DATALOADER.NUM_WORKERS 0 SOLVER.PRECISION '' SOLVER.AMP.ENABLED True MODEL.CHANNELS_LAST True"
MEAN, DEVIATION = (105.6, 103.6, 104.6, 72.0), (52.6, 51.8, 52.3, 48.6)  # of the channels, in 200 scenes of --seed 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--output", type=output_path, default="output/rgbd", metavar="DIR", help=f"folder of all trainings {default}")
    add("--seeds", type=natural, nargs="+", default=[1, 2, 3], metavar="N", help=default)
    add("--labelled", type=natural, default=200, metavar="N", help=f"scenes with labels {default}")
    lengths = f"of a pretraining and of a finetuning {default}"
    add("--iterations", type=natural, nargs=2, default=[500, 400], metavar="N", help=lengths)
    add("opts", nargs="*", metavar="KEY VALUE", help="such as SOLVER.IMS_PER_BATCH 8, for all trainings")
    args = parser.parse_args()
    finetunings = list(trainings(args.output, args.seeds, args.labelled, args.iterations, args.opts))
    jobs = with_needs(finetunings)
    for job in jobs:
        job.claim()
    run_jobs(jobs, 1, lambda job: f"AP {score_of(job, 'AP'):.2f}" if job in finetunings else "")
    table = table_of(finetunings)
    (args.output / "table.md").write_text(f"{table}\n")
    print(table)


def trainings(output: Path, seeds: list[int], labelled: int, iterations: list[int], opts: list[str]) -> Iterator[Job]:
    """The finetunings, whose needs are the pretrainings: the sides of a seed, then the next seed."""
    for seed in seeds:
        for side, channels in SIDES.items():
            name, folder = f"{side}, seed {seed}", output / f"{len(channels.split())}_channels/{seed}"
            alike = (*pixels_of(channels), *words(BOTH), "SEED", str(seed), *opts)
            pretrained, backbone = folder / "pretrain", folder / "pretrain/backbone.pth"
            first = ("SOLVER.MAX_ITER", str(iterations[0]), *words(PRETRAINING), *alike)
            pretrain = train("toy/demo.yaml", pretrained, first)
            convert = ("tools/convert_to_d2.py", str(pretrained / "model_final.pth"), str(backbone))
            needed = Job(f"{name}: pretraining", (pretrain, convert), backbone)
            labels = f"('subset:{labelled}:{seed}:toy_coco_train',)"
            then = ("MODEL.WEIGHTS", str(backbone), "SOLVER.MAX_ITER", str(iterations[1]), "DATASETS.TRAIN", labels)
            finetune = train("toy/faster_rcnn_fpn.yaml", folder / "detector", (*then, *alike))
            yield Job(f"{name}: finetuning", (finetune,), folder / "detector/evaluation.json", needs=(needed,))


def pixels_of(channels: str) -> tuple[str, ...]:
    """Keys that say what a network sees."""
    mean, deviation = (str(list(values[: len(channels.split())])) for values in (MEAN, DEVIATION))
    return ("INPUT.CHANNELS", channels, "MODEL.PIXEL_MEAN", mean, "MODEL.PIXEL_STD", deviation)


def words(text: str) -> list[str]:
    """As a shell has them."""
    return ["" if word == "''" else word for word in text.split()]


def train(recipe: str, folder: Path, opts: tuple[str, ...]) -> tuple[str, ...]:
    """A command that resumes."""
    return ("tools/train_net.py", "--resume", "--config-file", f"configs/{recipe}", *opts, "OUTPUT_DIR", str(folder))


def score_of(job: Job, name: str) -> float:
    """Of COCO's boxes, %."""
    return score_in(job.result, ("bbox", name))


def table_of(finetunings: list[Job]) -> str:
    """Each side's scores, and by how much the second is above the first in each seed."""
    sides = {side: [job for job in finetunings if job.name.startswith(f"{side}, seed")] for side in SIDES}
    values = {side: [[score_of(job, name) for job in jobs] for name in SCORES] for side, jobs in sides.items()}
    less, more = values.values()
    gains = [[high - low for low, high in zip(*pair, strict=True)] for pair in zip(less, more, strict=True)]
    rows = [[side, *map(all_of, columns)] for side, columns in (values | {"difference": gains}).items()]
    return markdown_table(("channels", *SCORES), rows)


def all_of(values: list[float]) -> str:
    return f"{', '.join(f'{value:.1f}' for value in values)}: {mean_and_spread(values, 1)}"


if __name__ == "__main__":
    run_command(main)
