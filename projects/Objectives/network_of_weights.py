"""CONTINUE.NETWORK_OF_WEIGHTS: a recipe for any weights takes its network and its pixels from theirs."""

from pathlib import Path

from revisit.checkpoint.flags import without_pixels_of_photographs
from revisit.checkpoint.start import start
from revisit.errors import expect
from revisit.files import is_url
from revisit.keys import SWITCH, Decision, Facts, declare

from detectron2.config import CfgNode

KEY = "CONTINUE.NETWORK_OF_WEIGHTS"


def network_of_weights(cfg: CfgNode, facts: Facts) -> Decision | None:
    """The keys that MODEL.WEIGHTS is valid under, and the backbone of its family.

    Raises:
        UserError: nothing says which network the weights are of.
    """
    weights = cfg.MODEL.WEIGHTS
    if not cfg.CONTINUE.NETWORK_OF_WEIGHTS or not (is_url(weights) or Path(weights).is_file()):
        return None
    keys = without_pixels_of_photographs(start(weights).keys, cfg)
    expect(keys, f"{KEY}: no flags lie next to {weights}; convert the weights (tools/convert_to_d2.py)")
    return Decision(True, f"as the flags of {weights} say", others=keys)


declare(
    KEY,
    False,
    "Build the network that MODEL.WEIGHTS is of, for its pixels: their flags decide what neither the command line nor "
    "a file that is based on this key's says.",
    SWITCH,
    resolve=network_of_weights,
    after=("MODEL.WEIGHTS", "INPUT.CHANNELS"),
)
