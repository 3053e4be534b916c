#!/usr/bin/env python
"""Verify published weights: convert them, evaluate them as they were published, and say whether the score agrees.

    python tools/verify.py
    python tools/verify.py moco-v2-200 moco_v2_200ep_pretrain.pth.tar --dry-run
    python tools/verify.py efficientnet-lite0 imagenet:efficientnet_lite0
    python tools/verify.py paper-all-800 reference.pth.tar --only VOC_SVM_mAP DAVIS_JF

The file is yours: its hash and its layout are checked first. A published score agrees where ours lies within its range,
which projects/Paper/published.yaml states with its source. Exit code 0: all agree; 1: one disagrees; 2: the file, its
layout or the data are wrong. OUTPUT/verify.json and verify.md have every score with commit, versions and seconds. What
is done is not done again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from projects.Paper.published import PUBLISHED, original_copy, read_published
from revisit.command.options import add, parse, parser_of
from revisit.engine.command import natural, run_command
from revisit.errors import expect, translated
from revisit.files import is_url, make_folder, read_yaml
from revisit.jobs.command_options import show_jobs


def main() -> None:
    parser = parser_of(__doc__, __file__)
    parser.add_argument(
        "name", nargs="?", help="which published weights; without it all are listed, with licences and columns"
    )
    parser.add_argument("file", nargs="?", help="your copy of them, or imagenet:NAME, which is in a package")
    add(parser, "how", choices=("fetch",), help="fetch: download the file from its published URL")
    add(parser, "only", help="columns: scores to verify (default: all)")
    add(parser, "table", default=PUBLISHED, help="YAML of what was published (default: the project's)")
    add(parser, "seed", type=natural, default=1, help="of a finetuning (default: %(default)s)")
    add(parser, "num-gpus", help="of a finetuning (default: %(default)s)")
    add(parser, "output", help="(default: output/verify/NAME)")
    add(parser, "dry-run", help="check the file, show the evaluations and missing data; run nothing")
    args = parse(parser)
    if not args.name:
        print(_overview(args.table))
        return
    published = read_published(args.table, args.name)
    fetches = args.how == "fetch"
    expect(bool(args.file) != fetches, f"expected your copy of {args.name}, or --how fetch ({published.url})")
    if fetches:
        expect(is_url(published.url), f"{args.name} has no URL of a file: {published.url}")
    file = original_copy(published.url if fetches else args.file)
    expect(file.is_file(), f"{file} not found: expected a copy of {published.url}")
    root = (args.output or Path("output/verify") / args.name).resolve()
    make_folder(root, "--output")

    from projects.Paper.verify import Verification

    print(f"{published.title}. Licence: {published.licence}", flush=True)
    options = {"root": root, "seed": args.seed, "gpus": args.num_gpus}
    verification = Verification(published, file.resolve(), args.only, **options)
    if args.dry_run:
        jobs = verification.jobs().values()
        show_jobs(list(jobs), {})
        print(f"missing: {verification.missing() or 'nothing'}")
        return
    missing = verification.missing()
    expect(not missing, f"{args.name} cannot be evaluated here; missing: {missing} (datasets/README.md); or --only")
    verdicts = verification.run()
    verification.write(verdicts)
    print(f"wrote {root / 'verify.json'} and verify.md")
    if not all(verdict.agrees for verdict in verdicts):
        sys.exit(1)


def _overview(path: Path) -> str:
    lines = []
    with translated(f"reading {path}", content=True):
        for name, facts in read_yaml(path)["files"].items():
            scores = ", ".join(f"{column} {score['value']}" for column, score in facts["scores"].items())
            lines.append(f"{name:26}{facts['title']}; {facts.get('licence', 'no licence')}; {scores}")
    return "\n".join(lines)


if __name__ == "__main__":
    run_command(main)
