"""INPUT.TILES: which windows a network sees, kept with its weights, and who may see others."""

import logging

from projects.Tiles.tiled_names import TILES, tiling_in
from projects.Tiles.windows import Tiling
from revisit.data.sources.inspection import IMAGE_CHECK_REGISTRY, LEARNT_FROM
from revisit.data.sources.records import Records
from revisit.errors import UserError, expect
from revisit.keys import DETECTORS, NETWORK, Decision, Facts, Rule, architecture_of, declare

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)


def tiling_of_run(cfg: CfgNode, facts: Facts) -> Decision | None:
    """As stated, or as DATASETS.TRAIN has windows; a detector resizes a window to as many px as the tile has."""
    if cfg.INPUT.TILES:
        tiling, why = Tiling.of(str(cfg.INPUT.TILES)), "as stated"
    else:
        name = next(filter(tiling_in, cfg.DATASETS.TRAIN), "")
        tiling, why = tiling_in(name), f"as {name}"
    if tiling is None:
        return None
    return Decision(str(tiling), why, others=_sides(tiling.tile) if architecture_of(cfg) in DETECTORS else {})


def _sides(tile: int) -> dict[str, object]:
    """So that a detector sees a tile as it is."""
    longest = dict.fromkeys(("INPUT.MAX_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST", "INPUT.MAX_SIZE_TEST"), tile)
    return {"INPUT.MIN_SIZE_TRAIN": (tile,), **longest}


def _is_tiling(value: object) -> bool:
    try:
        return value is None or bool(Tiling.of(str(value)))
    except UserError:
        return False


def expect_tiles(cfg: CfgNode, tiling: Tiling | None, what: str) -> None:
    """Raise UserError where a network of INPUT.TILES is to see tiles of another size or scale, or whole images; warn
    of one that knows whole images, and is to see tiles."""
    if not cfg.INPUT.TILES:
        if tiling:
            scale = f"their scale, {tiling.scale:g}, may not fit it"
            logger.warning(f"{what}: the network has not learned from tiles, so {scale}")
        return
    learned = Tiling.of(str(cfg.INPUT.TILES))
    problem = f"{what}: the network sees tiles of INPUT.TILES {learned}"
    expect(tiling, f"{problem}, and would see these images whole: name them {TILES}:{learned}:{what}")
    is_alike = (tiling.tile, tiling.scale) == (learned.tile, learned.scale)
    expect(is_alike, f"{problem}, not {tiling}: expected that size and scale; the overlap may differ")


@IMAGE_CHECK_REGISTRY.register()
def check_tiling(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """See ``expect_tiles``."""
    if architecture_of(cfg) in LEARNT_FROM:
        expect_tiles(cfg, tiling_in(name), name)


declare(
    "INPUT.TILES",
    None,  # yacs lets it become a word or a number
    "Which windows of large images the network sees: px of a tile, +overlap and @scale, such as 1024+128@0.5. None: "
    "as DATASETS.TRAIN has tiles, else whole images. A window becomes as many px as the tile has.",
    Rule("None, or a tiling such as 1024, 1024+128 or 1024+128@0.5", _is_tiling),
    scope=NETWORK,
    resolve=tiling_of_run,
)
