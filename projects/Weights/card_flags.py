"""The flags of exported weights, in a line of their model card that its page does not show."""

import json
import re
from pathlib import Path

from revisit.checkpoint.flags import expect_flags
from revisit.errors import translated
from revisit.files import file_digest
from revisit.modeling.backbone.description import Flags

_LINE = re.compile(r"^<!-- flags (\{.*\}) -->$", re.M)


def line_of_flags(flags: Flags) -> str:
    """A comment of HTML, which no value can end."""
    text = json.dumps(flags).replace(">", "\\u003e")
    return f"<!-- flags {text} -->"


def flags_on_card(weights: Path) -> Flags:
    """What the card next to weights says of them; {} without a card, of one of other weights by the checksum, and of
    one without such a line. Raises UserError for a line of anything else."""
    line = _LINE.search(text_of_card(weights))
    if line is None:
        return {}
    card = weights.with_suffix(".md")
    with translated(f"the flags in {card}", content=True):
        flags = json.loads(line[1])
    expect_flags(flags, str(card))
    return flags


def text_of_card(weights: Path) -> str:
    """Of the card next to weights; "" without one, and of one of other weights by the checksum."""
    card = weights.with_suffix(".md")
    text = card.read_text(errors="replace") if card.is_file() else ""
    return text if text and file_digest(weights) in text else ""
