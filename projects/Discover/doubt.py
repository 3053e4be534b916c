"""What a file of found boxes says against them, without an import of what finds boxes: every run imports this."""

import re
from pathlib import Path

_HEAD = re.compile(r'\{"info": \{"verdict": "(doubtful|background)", "evidence": ([\d.]+)\}')


def doubt_of(data_set: Path) -> str:
    """What the info at the beginning of a COCO file says against its boxes; "" where it says nothing."""
    if not data_set.is_file():
        return ""
    with data_set.open(encoding="utf-8", errors="replace") as file:
        head = _HEAD.match(file.read(200))
    return f"{head[1]} (evidence {head[2]})" if head else ""
