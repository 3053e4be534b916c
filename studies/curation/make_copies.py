#!/usr/bin/env python
"""Copy images with small changes, to measure what tools/curate.py finds: other crops, brightness, JPEG quality.

    python studies/curation/make_copies.py --data folder:/data/photos --output output/copies

Of each image there are --copies: the first whole, the others with 90 to 100 % of each side, 0.7 to 1.3 times as
bright, in JPEG's qualities 30 to 95 (the first 98). OUTPUT/truth.csv says in groups.csv's format which are of one
image. The same seed gives the same bytes.
"""

from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import natural, run_command
from revisit.files import make_folder, write_whole


def main() -> None:
    parser = parser_of(__doc__, __file__)
    add(parser, "data", "output", required=True)
    parser.add_argument("--copies", type=natural, default=10, metavar="N", help=f"of each image {DEFAULT}")
    parser.add_argument("--first", type=natural, metavar="N", help="so many images, evenly spread (default: all)")
    add(parser, "seed", help=f"of the changes {DEFAULT}")
    args = parse(parser)
    import numpy as np

    from revisit.data.images.pixel_format import PHOTOGRAPHS
    from revisit.data.images.reader import require_record
    from revisit.data.sources.catalog import get_records
    from revisit.data.sources.records import sample
    from revisit.markdown import csv_table
    from revisit.progress import progress
    from studies.curation.jitter import BEST, jittered, save_jpeg

    records = list(get_records(args.data))
    records = sample(records, args.first) if args.first else records
    make_folder(args.output, "--output")
    rng = np.random.default_rng(args.seed)
    lines = []
    for number, record in enumerate(progress("copying", "image", records)):
        image = require_record(record, PHOTOGRAPHS)
        for copy in range(args.copies):
            name = f"{number:05d}_{copy:02d}.jpg"
            changed, quality = jittered(image, rng) if copy else (image, BEST)
            save_jpeg(args.output / name, changed, quality)
            lines.append((name, number))
    write_whole(args.output / "truth.csv", csv_table(("file_name", "group"), lines))
    print(f"{len(lines)} copies of {len(records)} images: {args.output}")


if __name__ == "__main__":
    run_command(main)
