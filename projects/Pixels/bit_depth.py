"""The key INPUT.BIT_DEPTH, and how it decides itself."""

from projects.Pixels.channels import RANGE
from projects.Pixels.grey_levels import find_bits
from revisit.checkpoint.start import start
from revisit.data.images.deep_images import pixel_format
from revisit.errors import expect
from revisit.keys import Decision, Facts, declare, one_of

from detectron2.config import CfgNode

BIT_DEPTH = "INPUT.BIT_DEPTH"


def bit_depth_of_run(cfg: CfgNode, facts: Facts) -> Decision | None:
    """As MODEL.WEIGHTS were trained, else as the images ask; None where no image is deep. UserError where these ask for
    another one than the weights."""
    pixels = pixel_format(cfg)
    if not pixels.is_of_photographs:
        return None
    asked = find_bits(facts.records) if pixels.bits is None else None
    if asked is None:
        is_open = cfg.INPUT.BIT_DEPTH == "auto"  # of the two words for it, None is the one that a checkpoint has
        return Decision(None, "8 bits, unless images have more") if is_open else None
    bits, reason = asked
    trained = start(cfg.MODEL.WEIGHTS).flags.get(BIT_DEPTH)
    if trained:
        fits = bits == trained if 1 in (bits, trained) else bits <= trained
        expect(fits, f"{reason}: they ask for {BIT_DEPTH} {bits}, but {cfg.MODEL.WEIGHTS} was trained with {trained}")
        bits, reason = trained, f"as {cfg.MODEL.WEIGHTS} was trained; {reason}"
    return Decision(bits, f"values of 0 to {2**bits - 1} become 0 to 255, because {reason}", kept=True)


BIT_DEPTHS = (None, "auto", 1, *range(8, 17))
# yacs lets a key whose default is None become a word or a number.
declare(
    "INPUT.BIT_DEPTH",
    None,
    "Of images with more than 8 bits a sample: values of 0 to 2**BIT_DEPTH - 1 become grey levels of 0 to 255. auto or "
    "None (by the images), 8 to 16, or 1 (floats of 0 to 1).",
    one_of(*BIT_DEPTHS),
    resolve=bit_depth_of_run,
    after=("MODEL.WEIGHTS", RANGE),
)
