#!/usr/bin/env python
"""Copy weights, with what describes them, to where others find them: Hugging Face's hub, or any URL of fsspec's.

SOURCE is a file of weights, .safetensors or .pth, with the .yaml of tools/convert_to_d2.py or the .md of
tools/export_weights.py next to it, or a folder of such files. A repository on the hub has to be there, and be yours
to write to: make it at huggingface.co/new, and log in once by `hf auth login`. Everybody may read a public one.

    python tools/push.py output/knn_moco/resnet50.safetensors hf://USER/NAME
    python tools/push.py output/knn_moco/share s3://bucket/knn_moco

tools/pull.py copies them back, bit for bit.
"""

from pathlib import Path

from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command


def main() -> None:
    parser = parser_of(__doc__, __file__)
    parser.add_argument("source", metavar="SOURCE", help="weights, or a folder with weights")
    parser.add_argument("url", metavar="URL", help="hf://USER/NAME, or s3://, gs://, file:// ...")
    add(parser, "replace", help="replace files of these names that are there")
    args = parse(parser)
    from projects.Weights.sharing import push

    names = push(Path(args.source).expanduser(), args.url, replace=args.replace)
    print(f"wrote {', '.join(names)} to {args.url}")


if __name__ == "__main__":
    run_command(main)
