"""What an output was made from, kept in its folder, so that a command that continues never mixes two."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from revisit.compat.moved import now_at
from revisit.errors import UserError, expect, first_few, is_no_defect, without_secrets, words_of
from revisit.files import read_json, write_whole

_OWN_FILE = re.compile('"(projects/[^"]*)"')


@contextmanager
def left_by_earlier_call(path: Path) -> Iterator[None]:
    """A block that reads such a file. Raises UserError for whatever damaged or changed bytes trip."""
    try:
        yield
    except Exception as error:
        if is_no_defect(error):
            raise
        raise UserError(f"{path} is damaged ({words_of(error)}): remove it, and give the same command again") from error


class Record(NamedTuple):
    """The facts that results in a folder follow from, as JSON has them."""

    folder: Path
    facts: dict[str, Any]
    name: str = "settings.json"  # of the file

    @property
    def _file(self) -> Path:
        return self.folder / self.name

    def claim(self, way_out: str = "give another --output") -> None:
        """Write the facts. Raises UserError where others are there, because results would be of both."""
        self.write()
        other = self.differences()
        expect(not other, f"{self.folder} was made with other settings ({first_few(other)}): {way_out}")

    def write(self) -> None:
        """Where there are none."""
        if not self._file.is_file():
            write_whole(self._file, json.dumps(_comparable(self.facts), indent=2))

    def before(self) -> dict[str, Any]:
        """Those in the folder. Raises UserError where there are none."""
        before = _comparable(read_json(self._file))
        expect(isinstance(before, dict), f"{self._file} has no settings: give another folder, or remove it")
        return before

    def differences(self, before: dict[str, Any] | None = None) -> list[str]:
        """Which facts are others in the folder, or in ``before``, in words. One that is None may be lacking."""
        before = before or self.before()
        now = _comparable(self.facts)
        changes = []
        for name in now | before:
            earlier = before.get(name)
            if earlier == now.get(name):
                continue
            is_short = isinstance(earlier, int | float)  # other values are long, or digests
            changes.append(f"{name} {earlier}, now {now.get(name)}" if is_short else name)
        return changes


def _comparable(facts: Any) -> Any:
    """As a file has them: without secrets, and with the present names of our own files."""
    text = without_secrets(json.dumps(facts))
    return json.loads(_OWN_FILE.sub(lambda found: f'"{now_at(found[1])}"', text))
