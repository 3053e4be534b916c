"""Trees of files for data sets, and what is said of bad ones."""

import random
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from commands import ROOT
from PIL import Image

from revisit.data.sources.catalog import get_records
from revisit.engine.run_log import log_before_the_log
from revisit.errors import UserError


def write(path: Path, content: bytes | str | Iterable[str] = b"") -> None:
    """A file and its folders; of names it has one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else "".join(f"{name}\n" for name in content)).encode()
    path.write_bytes(content)


def touch(*paths: Path) -> None:
    for path in paths:
        write(path)


def blank_image(path: Path, size: tuple[int, int] = (50, 100)) -> None:
    """A black image of (height, width) px."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size[::-1]).save(path)


def voc_xml_of(*objects: tuple, size: tuple[int, int] | None = (50, 100)) -> str:
    """The text of an annotation as Pascal VOC's: of each object its class and xmin, ymin, xmax, ymax."""
    sides = f"<size><width>{size[1]}</width><height>{size[0]}</height></size>" if size else ""
    box = "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>"
    things = (f"<object><name>{name}</name>{box.format(*corners)}</object>" for name, *corners in objects)
    return f"<annotation>{sides}{''.join(things)}</annotation>"


def refusal(call: Callable[..., object], *args: object, **options: object) -> str:
    """What a UserError says, in one line."""
    with pytest.raises(UserError) as error:
        call(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def refused(pattern: str, call: Callable[..., object], *args: object, **options: object) -> None:
    """A call is refused in one line, in which the pattern is found."""
    message = refusal(call, *args, **options)
    assert re.search(pattern, message), message


def one_line_error(name: str) -> str:
    """What ``get_records`` says of a data set that it refuses."""
    return refusal(get_records, name)


def pack(options: str) -> None:
    """``tools/make_shards.py`` with these options, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["make_shards.py", *shlex.split(options)])
        runpy.run_path(f"{ROOT}/tools/make_shards.py")["main"]()


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """A file cut short, with a hole, joined in the middle, emptied, or with other bits or numbers in its head."""
    spoilt, start = bytearray(data), rng.randrange(len(data) + 1)
    match rng.randrange(6):
        case 0:
            return data[:start]
        case 1:
            return data[:start] + data[rng.randrange(len(data) + 1) :]
        case 2:
            spoilt[start : start + rng.randrange(1, 400)] = bytes(rng.randrange(1, 400))
        case 3:
            return b""
        case 4:
            for _ in range(rng.choice([1, 8, 100]) if data else 0):
                spoilt[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 5:  # headers: sizes, offsets, orientation
            for _ in range(rng.choice([1, 3]) if data else 0):
                spoilt[rng.randrange(min(len(data), 200))] = rng.choice([0, 1, 127, 128, 255])
    return bytes(spoilt)


def logged(call: Callable, *args: object, **options: object) -> list[tuple[int, str]]:
    """What a call logs, by level."""
    with log_before_the_log() as log:
        call(*args, **options)
    return [(record.levelno, record.getMessage()) for record in log]
