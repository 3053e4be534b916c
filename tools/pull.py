#!/usr/bin/env python
"""Copy weights, with what describes them, from where tools/push.py put them into a folder, bit for bit.

    python tools/pull.py hf://USER/NAME output/theirs
    python tools/pull.py s3://bucket/knn_moco output/theirs

A private repository on Hugging Face's hub needs `hf auth login` first. Weights with a .yaml next to them can then be
MODEL.WEIGHTS; others go through tools/convert_to_d2.py.
"""

from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.files import output_path


def main() -> None:
    parser = parser_of(__doc__, __file__)
    parser.add_argument("url", metavar="URL", help="hf://USER/NAME, or s3://, gs://, file:// ...")
    parser.add_argument("output", metavar="DIR", type=output_path, help="folder to write to")
    add(parser, "replace", help="replace files of these names that are there")
    args = parse(parser)
    from projects.Weights.sharing import pull

    names = pull(args.url, args.output, replace=args.replace)
    print(f"wrote {', '.join(names)} to {args.output}")


if __name__ == "__main__":
    run_command(main)
