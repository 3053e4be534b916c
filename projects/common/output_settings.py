"""The settings that an output was made with, so that a command that continues never mixes two."""

import json
from pathlib import Path
from typing import Any

from revisit.errors import expect
from revisit.files import write_whole

SETTINGS = "settings.json"


def claim(output: Path, settings: dict[str, Any]) -> None:
    """Write SETTINGS. Raises UserError where they are there and differ, because results would be of both."""
    path = output / SETTINGS
    if not path.is_file():
        write_whole(path, json.dumps(settings))
    before = json.loads(path.read_text())
    other = ", ".join(name for name, value in settings.items() if before.get(name) != value)
    expect(not other, f"{output} was made with other settings ({other}): give another --output")
