#!/usr/bin/env python
"""Compare starting points by the labelled images that they save: the same recipe, more and more labels, several seeds.

    python tools/compare_starts.py --config-file configs/toy/detection.yaml --starts random backbone.pth \\
        --labels 50 200 800 all --seeds 1 2 3 --output output/compare
    python tools/compare_starts.py --config-file projects/FrozenEvaluations/configs/linear/toy.yaml --frozen \\
        --starts random backbone.pth --labels 50 200 all --output output/compare_frozen
    python tools/compare_starts.py --config-file configs/toy/detection.yaml --starts random backbone.pth \\
        run:output/other/detection continue:backbone.pth --probe --output output/probe
    python tools/compare_starts.py --config-file configs/toy/detection.yaml --starts random backbone.pth \\
        run:output/other/detection --budget 60m --output output/choice

--probe looks at the frozen features of the labelled images, seconds a start, and trains nothing. --budget times a short
training, probes, then finetunes all starts for a short while and the better half for longer, until the time is used.

A seed draws one order of the labelled images, and every subset is the beginning of it: 50 images are among the 200, and
all starts learn from the same ones. What is done is skipped, what was interrupted resumes from its checkpoint: give the
same command again. OUTPUT/comparison/ holds table.md, scores.csv, labels.png and results.json as far as they have come,
OUTPUT/probe/ and OUTPUT/choice/ those of --probe and --budget; tools/report.py makes a page of them.
"""

from __future__ import annotations

import argparse
import os
import re

from revisit.engine.command import natural, parse_with_pairs, run_command
from revisit.errors import expect
from revisit.files import output_path
from revisit.jobs.command_options import add_job_options, do_jobs, show_jobs


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--config-file", required=True, metavar="FILE", help="a recipe that learns from labels, for all starts")
    starts = (
        "random: random init. FILE: a converted backbone, {seed} in it is the seed; or a name as of MODEL.WEIGHTS, "
        "such as imagenet:efficientnet_lite0. run:DIR: the whole network of a "
        "finetuning. zoo:FILE: a whole detector of Detectron2's. pretrain:CONFIG: what this recipe of pretraining "
        "first makes of the training images without their labels. continue:FILE, continue:imagenet:NAME: a backbone, "
        "continued on them first"
    )
    add("--starts", nargs="+", required=True, metavar="START", help=starts)
    labels = "numbers of labelled images (default: all)"
    add("--labels", type=count_or_all, nargs="+", default=["all"], metavar="N|all", help=labels)
    pick = "images that get the labels, first those at its top: selected.txt of tools/select_images.py (default: drawn)"
    add("--pick", default="", metavar="LIST", help=f"{pick}; {{seed}} in its name is the seed")
    add("--seeds", type=natural, nargs="+", default=[1, 2, 3], metavar="N", help="(default: 1 2 3)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--probe", action="store_true", help="judge frozen features of labelled regions; train nothing")
    budget = "such as 60m or 8h: probe, then finetune by successive halving until the time is used"
    what.add_argument("--budget", type=minutes, metavar="TIME", help=budget)
    flat = "train for 1, 3, 10 ... times the recipe's length, with the best of three rates, until the score is flat"
    what.add_argument("--until-flat", action="store_true", help=flat)
    held = "with --until-flat: share of the labelled images to choose by, or a data set (default: %(default)s)"
    add("--held-out", default="0.2", metavar="SHARE|NAME", help=held)
    rises = "with --until-flat: rise on them that counts (default: 1, of scores that are no percentages 0.01)"
    add("--tolerance", type=float, metavar="SCORE", help=rises)
    waits = "with --until-flat: lengths without a rise that end it (default: %(default)s)"
    add("--patience", type=natural, default=1, metavar="N", help=waits)
    most = "with --until-flat: no training is longer than N times the recipe (default: %(default)s)"
    add("--longest", type=natural, default=100, metavar="N", help=most)
    spent = "with --until-flat: what a start has cost, where its folder does not say it"
    add("--spent", nargs="+", default=[], metavar="NAME=SECONDS", help=spent)
    whose = "with --until-flat: start whose last score the others' times are for (default: imagenet:'s, else the first)"
    add("--reference", default="", metavar="START", help=whose)
    add("--continue-config", default="configs/own_images/continue.yaml", metavar="FILE", help="recipe of continue:FILE")
    frozen = "classify by frozen features, with a config of projects/FrozenEvaluations, instead of finetuning"
    add("--frozen", action="store_true", help=frozen)
    twice = (
        "photographs, such as folder:/data/photos: train from every start twice, plainly and with a teacher that finds "
        "boxes in them (projects/Teacher), whose iterations cost about 2.3 times as much"
    )
    add("--unlabelled", nargs="+", default=[], metavar="NAME", help=twice)
    add("--score", default="", metavar="NAME", help="such as bbox/AP50 (default: AP, mIoU, rmse, top-1 or mAP)")
    add("--output", type=output_path, required=True, metavar="DIR", help="folder of all runs of this comparison")
    add_job_options(parser, parallel="one; without a GPU one per core")
    pairs = "KEY VALUE pairs for every training come last, after --opts or not"
    add("--opts", nargs=argparse.REMAINDER, help=pairs)
    args = parse_with_pairs(parser)
    args.starts, args.seeds = (list(dict.fromkeys(given)) for given in (args.starts, args.seeds))
    is_comparison = len(args.starts) > 1 or args.unlabelled
    expect(is_comparison, f"--starts {args.starts[0]}: expected two or more, such as random and a backbone")
    shorter = "--unlabelled compares whole trainings: expected neither --probe nor --budget"
    expect(not (args.unlabelled and (args.probe or args.budget)), shorter)
    expect(not (args.pick and args.until_flat), "--until-flat draws the images to choose by: expected no --pick")
    return args


def count_or_all(text: str) -> str:
    """A type of argparse."""
    return text if text == "all" else str(natural(text))


def minutes(text: str) -> float:
    """A type of argparse: ``90m`` or ``1.5h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mh])", text)
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r}: expected minutes or hours, such as 60m or 8h")
    return float(match[1]) * {"m": 1, "h": 60}[match[2]]


def main() -> None:
    args = parse_args()
    import torch

    from projects.CompareStarts.choice import check_options, choose, probe, result_of, show_plan
    from projects.CompareStarts.comparison import check_labels, check_starts, make_cells, read_labels, read_task
    from projects.CompareStarts.flat_command import compare_until_flat
    from projects.CompareStarts.picked import with_pick
    from projects.CompareStarts.starts import read_starts
    from projects.CompareStarts.unlabelled import with_teachers
    from projects.CompareStarts.write_comparison import write_comparison
    from revisit.jobs.commands import with_needs

    task = read_task(args.config_file, args.opts, frozen=args.frozen, score=args.score)
    task = with_pick(task, args.pick, args.seeds) if args.pick else task
    labels, root = read_labels(args.labels, task), args.output.resolve()
    starts = read_starts(args.starts, task.load(task.options), args.continue_config)
    starts = with_teachers(task, starts, args.unlabelled) if args.unlabelled else starts
    check_starts(task, starts, args.seeds)
    parallel = args.parallel or (1 if torch.cuda.is_available() else os.cpu_count() or 1)
    if args.probe or args.budget:
        check_options(task, labels, slurm=args.slurm)
    if not (args.probe or args.until_flat):
        check_labels(task, labels, args.seeds)
    if args.dry_run and (args.probe or args.budget):
        show_plan(task, starts, labels[0], args.seeds, root, minutes=args.budget, gpus=args.gpus)
        return
    if args.probe:
        probe(task, starts, labels[0], args.seeds[0], root, parallel=parallel, gpus=args.gpus)
        return
    if args.budget:
        at_a_time = {"minutes": args.budget, "parallel": parallel, "gpus": args.gpus}
        choose(task, starts, labels[0], args.seeds, root, **at_a_time)
        return
    if args.until_flat:
        compare_until_flat(task, starts, labels, root, args, parallel=parallel)
        return
    cells = make_cells(task, starts, labels, args.seeds, root=root, gpus=args.gpus)
    jobs = with_needs(job for jobs in zip(*(cell.jobs for cell in cells), strict=True) for job in jobs)  # seed by seed
    if args.dry_run:
        show_jobs(jobs, {})
        return
    folder = root / "comparison"

    def write() -> None:
        folder.mkdir(exist_ok=True)
        print(f"\n{write_comparison(task, cells, args.seeds, folder)}\n\nwritten to {folder}")

    do_jobs(jobs, root, args, parallel=parallel, write=write, result_of=lambda job: result_of(job, task))


if __name__ == "__main__":
    run_command(main)
