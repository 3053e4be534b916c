"""The settings that an output was made with, so that a command that continues never mixes two."""

import json
from pathlib import Path
from typing import Any

from revisit.errors import expect, without_secrets
from revisit.files import read_json, write_whole

SETTINGS = "settings.json"
NAMED = 3  # settings of many that differ


def claim(output: Path, settings: dict[str, Any], way_out: str = "give another --output") -> None:
    """Write SETTINGS. Raises UserError where they are there and differ, because results would be of both."""
    path = output / SETTINGS
    text = without_secrets(json.dumps(settings))
    settings = json.loads(text)
    if not path.is_file():
        write_whole(path, text)
    before = read_json(path)
    expect(isinstance(before, dict), f"{path} has no settings: {way_out}")
    other = [_change(name, before.get(name), now) for name, now in settings.items() if before.get(name) != now]
    more = [f"{len(other) - NAMED} more"] if len(other) > NAMED else []
    expect(not other, f"{output} was made with other settings ({', '.join(other[:NAMED] + more)}): {way_out}")


def _change(name: str, before: Any, now: Any) -> str:
    """A setting that differs, with its values where they are numbers: others are long, or digests."""
    return f"{name} {before}, now {now}" if isinstance(before, int | float) else name
