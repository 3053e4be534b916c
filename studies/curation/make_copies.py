#!/usr/bin/env python
"""Copy images with small changes, to measure what tools/curate.py finds: other crops, brightness, JPEG quality.

    python studies/curation/make_copies.py --images folder:/data/photos --output output/copies

Of each image there are --copies: the first whole, the others with 90 to 100 % of each side, 0.7 to 1.3 times as
bright, in JPEG's qualities 30 to 95 (the first 98). OUTPUT/truth.csv says in groups.csv's format which are of one
image. The same seed gives the same bytes.
"""

import argparse

from revisit.engine.command import natural, run_command, whole
from revisit.files import make_folder, output_path, write_whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--images", required=True, metavar="NAME", help="a data set, such as folder:/data/photos")
    add("--output", required=True, type=output_path, metavar="DIR")
    add("--copies", type=natural, default=10, metavar="N", help=f"of each image {default}")
    add("--first", type=natural, metavar="N", help="so many images, evenly spread (default: all)")
    add("--seed", type=whole, default=0, help=f"of the changes {default}")
    args = parser.parse_args()
    import numpy as np

    from revisit.data.images.reader import require_record
    from revisit.data.sources.catalog import get_records
    from revisit.data.sources.records import sample
    from revisit.markdown import csv_table
    from revisit.progress import progress
    from studies.curation.jitter import BEST, jittered, save_jpeg

    records = list(get_records(args.images))
    records = sample(records, args.first) if args.first else records
    make_folder(args.output, "--output")
    rng = np.random.default_rng(args.seed)
    lines = []
    for number, record in enumerate(progress("copying", "image", records)):
        image = require_record(record)
        for copy in range(args.copies):
            name = f"{number:05d}_{copy:02d}.jpg"
            changed, quality = jittered(image, rng) if copy else (image, BEST)
            save_jpeg(args.output / name, changed, quality)
            lines.append((name, number))
    write_whole(args.output / "truth.csv", csv_table(("file_name", "group"), lines))
    print(f"{len(lines)} copies of {len(records)} images: {args.output}")


if __name__ == "__main__":
    run_command(main)
