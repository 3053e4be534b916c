#!/usr/bin/env python
"""Compare starting points by the labelled images that they save: the same recipe, more and more labels, several seeds.

    python tools/compare_starts.py --config-file configs/toy/detection.yaml --weights random backbone.pth \\
        --labels 50 200 800 all --seeds 1 2 3 --output output/compare
    python tools/compare_starts.py --config-file projects/FrozenEvaluations/configs/linear/toy.yaml --how frozen \\
        --weights random backbone.pth --labels 50 200 all --output output/compare_frozen
    python tools/compare_starts.py --config-file configs/toy/detection.yaml --weights random backbone.pth \\
        run:output/other/detection continue:backbone.pth --how probe --output output/probe
    python tools/compare_starts.py --config-file configs/toy/detection.yaml --weights random backbone.pth \\
        run:output/other/detection --time 60m --output output/choice

--how probe looks at the frozen features of the labelled images, seconds a start, and trains nothing. --time measures a
short training, probes, then finetunes all starts for a short while and the better half for longer, until the time is
used.

A seed draws one order of the labelled images, and every subset is the beginning of it: 50 images are among the 200, and
all starts learn from the same ones. What is done is skipped, what was interrupted resumes from its checkpoint: give the
same command again. OUTPUT/comparison/ holds table.md, scores.csv, labels.png and results.json as far as they have come,
OUTPUT/probe/ and OUTPUT/choice/ those of --how probe and --time; tools/report.py makes a page of them.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from revisit.command.options import add, named, parse, parser_of
from revisit.engine.command import natural, run_command
from revisit.errors import expect
from revisit.jobs.command_options import add_job_options, do_jobs, show_jobs


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    group = parser.add_argument_group("What is compared: one recipe from several starts")
    add(group, "config-file", required=True, help="a recipe that learns from labels, for all starts")
    starts = (
        "random: random init. FILE: a converted backbone, {seed} in it is the seed; or a name as of MODEL.WEIGHTS, "
        "such as imagenet:efficientnet_lite0. run:DIR: the whole network of a "
        "finetuning. zoo:FILE: a whole detector of Detectron2's. pretrain:CONFIG: what this recipe of pretraining "
        "first makes of the training images without their labels. continue:FILE, continue:imagenet:NAME: a backbone, "
        "continued on them first"
    )
    add(group, "weights", nargs="+", required=True, metavar="START", help=starts)
    add(group, "continue-config", default="configs/own_images/continue.yaml")
    add(group, "score", help="such as bbox/AP50 (default: AP, mIoU, rmse, top-1 or mAP)")
    group = parser.add_argument_group("On which labels: all starts learn from the same images")
    add(group, "labels", default=["all"], help="numbers of labelled images, such as 50, or 10/class (default: all)")
    pick = "images that get the labels, first those at its top: selected.txt of tools/select_images.py (default: drawn)"
    add(group, "labelled", metavar="LIST", help=f"{pick}; {{seed}} in its name is the seed")
    add(group, "seeds", default=[1, 2, 3], help="(default: 1 2 3)")
    twice = (
        "photographs, such as folder:/data/photos: train from every start twice, plainly and with a teacher that finds "
        "boxes in them (projects/Teacher), whose iterations cost about 2.3 times as much"
    )
    add(group, "unlabelled", help=twice)
    group = parser.add_argument_group("How: whole trainings show most, a probe takes seconds")
    ways = (
        "finetune: as the recipe says. probe: judge frozen features of labelled regions, train nothing. until-flat: "
        "train for 1, 3, 10 ... times the recipe's length, with the best of three rates, until the score is flat. "
        "frozen: classify by frozen features, with a config of projects/FrozenEvaluations (default: %(default)s)"
    )
    add(group, "how", choices=("finetune", "probe", "until-flat", "frozen"), default="finetune", help=ways)
    add(group, "time", help="such as 60m or 8h: probe, then finetune by successive halving until the time is used")
    group = parser.add_argument_group("With --how until-flat: when a score no longer rises, and what a start cost")
    held = "share of the labelled images to choose by, or a data set (default: 0.2)"
    add(group, "held-out", help=held)
    rule = (
        "tolerance=SCORE, a rise on them that counts (default: 1, of scores that are no percentages 0.01); "
        "patience=N, lengths without a rise that end it (1); longest=N, no training is longer than N recipes (100)"
    )
    kinds = named({"tolerance": float, "patience": natural, "longest": natural})
    add(group, "rule", type=kinds, help=rule)
    add(group, "spent")
    whose = "start whose last score the others' times are for (default: imagenet:'s, else the first)"
    add(group, "reference", help=whose)
    group = parser.add_argument_group("Where the runs lie, and who does them: the same command continues")
    add(group, "output", required=True, help="folder of all runs of this comparison")
    add_job_options(group, processes="one; without a GPU one per core")
    add(parser, "opts")
    args = parse(parser)
    args.weights, args.seeds = (list(dict.fromkeys(given)) for given in (args.weights, args.seeds))
    is_comparison = len(args.weights) > 1 or args.unlabelled
    expect(is_comparison, f"--weights {args.weights[0]}: expected two or more, such as random and a backbone")
    is_short = args.how == "probe" or args.time is not None
    expect(
        args.time is None or args.how in ("finetune", "frozen"), f"--time decides by finetuning: no --how {args.how}"
    )
    shorter = "--unlabelled compares whole trainings: expected neither --how probe nor --time"
    expect(not (args.unlabelled and is_short), shorter)
    args.by_class = any("/" in count for count in args.labels)
    expect(not (args.labelled and args.by_class), "--labels N/class draws the images: expected no --labelled")
    drawn = "--how until-flat draws the images to choose by: expected no --labelled, and --labels N"
    expect(args.how != "until-flat" or not (args.labelled or args.by_class), drawn)
    of_flat = {"--held-out": args.held_out, "--rule": args.rule, "--spent": args.spent, "--reference": args.reference}
    given = [option for option, value in of_flat.items() if value]
    expect(args.how == "until-flat" or not given, f"{', '.join(given)}: expected with --how until-flat alone")
    args.held_out = args.held_out or "0.2"
    return args


def main() -> None:
    args = parse_args()
    import torch

    from projects.CompareStarts.comparison import check_labels, check_starts, make_cells, read_labels
    from projects.CompareStarts.probe_and_budget import check_options, choose, probe, result_of, show_plan
    from projects.CompareStarts.starts import read_starts
    from projects.CompareStarts.task import read_task, with_pick
    from projects.CompareStarts.unlabelled import with_teachers
    from projects.CompareStarts.until_flat_command import compare_until_flat
    from projects.CompareStarts.write_comparison import tables_in, write_comparison
    from revisit.jobs.commands import with_needs

    task = read_task(args.config_file, args.opts, frozen=args.how == "frozen", score=args.score)
    task = with_pick(task, args.labelled, args.seeds) if args.labelled else replace(task, by_class=args.by_class)
    labels, root = read_labels(args.labels, task, args.seeds), args.output.resolve()
    starts = read_starts(args.weights, task.load(task.options), args.continue_config)
    starts = with_teachers(task, starts, args.unlabelled) if args.unlabelled else starts
    check_starts(task, starts, args.seeds)
    parallel = args.processes or (1 if torch.cuda.is_available() else os.cpu_count() or 1)
    is_short = args.how == "probe" or args.time is not None
    if is_short:
        check_options(task, labels, slurm=args.on == "slurm")
    if args.how not in ("probe", "until-flat"):
        check_labels(task, labels, args.seeds)
    if args.dry_run and is_short:
        show_plan(task, starts, labels[0], args.seeds, root, minutes=args.time, gpus=args.num_gpus)
        return
    if args.how == "probe":
        probe(task, starts, labels[0], args.seeds[0], root, parallel=parallel, gpus=args.num_gpus)
        return
    if args.time:
        at_a_time = {"minutes": args.time, "parallel": parallel, "gpus": args.num_gpus}
        choose(task, starts, labels[0], args.seeds, root, **at_a_time)
        return
    if args.how == "until-flat":
        compare_until_flat(task, starts, labels, root, args, parallel=parallel)
        return
    cells = make_cells(task, starts, labels, args.seeds, root=root, gpus=args.num_gpus)
    jobs = with_needs(job for jobs in zip(*(cell.jobs for cell in cells), strict=True) for job in jobs)  # seed by seed
    if args.dry_run:
        show_jobs(jobs, {})
        return
    folder = tables_in(root, args.how)

    def write() -> None:
        print(f"\n{write_comparison(task, cells, args.seeds, folder)}\n\nwritten to {folder}")

    do_jobs(jobs, root, args, parallel=parallel, write=write, result_of=lambda job: result_of(job, task))


if __name__ == "__main__":
    run_command(main)
