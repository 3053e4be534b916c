"""Whether windows fit what is to be learned or scored, before a run begins."""

from itertools import chain

import numpy as np

from projects.Tiles.tiled_names import tiling_and_name, whole_of
from projects.Tiles.tiled_sets import is_scored_whole
from projects.Tiles.windows import Tiling
from revisit.boxes.boxes import Boxes, sides_of
from revisit.data.sources.catalog import get_records
from revisit.data.sources.inspection import LABEL_CHECK_REGISTRY, LEARNT_FROM
from revisit.data.sources.records import LABEL_FILES, Records
from revisit.data.sources.subsets import objects_of
from revisit.errors import expect
from revisit.keys import DETECTORS, architecture_of

from detectron2.config import CfgNode

MOST_LARGER = 0.1  # share of the objects that may be longer than a window
_STEP = 64  # px, of which a size that is named has a multiple


@LABEL_CHECK_REGISTRY.register()
def windows_fit(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """Raises UserError for labels that are not cut, and for windows that are smaller than the objects to learn."""
    tiling, whole = tiling_and_name(name)
    if tiling is None or architecture_of(cfg) not in DETECTORS:
        return
    images = get_records(whole)
    files = [field for field in LABEL_FILES if field in images[0]]
    problem = f"{name}: maps of labels and depths are not cut into windows for detectors"
    expect(not files, f"{problem}: expected boxes or masks of objects")
    if to_learn:
        check_size(name, tiling, images)


@LABEL_CHECK_REGISTRY.register()
def all_windows_are_scored(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """Raises UserError for some of the windows of images where whole images are scored."""
    if not to_learn and architecture_of(cfg) in LEARNT_FROM and is_scored_whole(name):
        whole_of(name)


def check_size(name: str, tiling: Tiling, images: Records) -> None:
    """Raises UserError where more than MOST_LARGER of the objects are longer than a window, which shows none of them
    whole."""
    objects = list(chain.from_iterable(map(objects_of, images)))
    if not objects:
        return
    longest = sides_of(Boxes.of_annotations(objects).xyxy).max(axis=1)
    larger = (longest > tiling.side).mean()
    fits = np.quantile(longest, 1 - MOST_LARGER, method="higher") * tiling.scale
    expected = -(-int(np.ceil(fits)) // _STEP) * _STEP
    problem = f"{name}: {larger:.0%} of {len(objects):,} objects are longer than a window, {tiling.side:,} px of a file"
    expect(larger <= MOST_LARGER, f"{problem}: expected tiles of {expected:,} px or more, or a smaller @scale")
