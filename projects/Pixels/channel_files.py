"""Images whose channels are files of their own (INPUT.CHANNEL_FILES): ``files:NAME:{}_D.TIF,{}_F.TIF`` of a set NAME.

Each pattern is of a channel: a file's name, perhaps with the folder that it lies in, where {} stands for what names the
image. A record's ``file_name`` is the first channel's; its ``channel_files`` are all.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from revisit.data.sources.catalog import get_records, metadata_of_part
from revisit.data.sources.class_names import class_metadata
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.records import CHANNEL_FILES, Records
from revisit.errors import UserError, expect, first_few

FILES = "files"


def words_in(text: str) -> tuple[str, ...]:
    """What stands between blanks or commas."""
    return tuple(filter(None, re.split(r"[,\s]+", text)))


def patterns_of(text: str | Sequence[str]) -> tuple[str, ...]:
    """Of words between blanks or commas, or of a list. Raises UserError for one that names no file of a folder."""
    patterns = words_in(text) if isinstance(text, str) else tuple(text)
    for pattern in patterns:
        leaves = os.path.isabs(pattern) or ".." in pattern.split("/")
        sound = pattern.count("{}") == 1 and not leaves
        expect(sound, f"INPUT.CHANNEL_FILES {pattern}: expected a file's name with one {{}}, such as {{}}_nir.tif")
        apart = not re.search(r"[,:\s]", pattern)
        expect(apart, f"INPUT.CHANNEL_FILES {pattern!r}: expected names without blanks, commas and colons: rename them")
    twice = [pattern for pattern, count in Counter(patterns).items() if count > 1]
    expect(not twice, f"INPUT.CHANNEL_FILES names {first_few(twice)} twice")
    return patterns


def names_of_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """What tells the patterns from each other, as names of channels: D and F of {}_D.TIF and {}_F.TIF."""
    start = len(os.path.commonprefix(patterns))
    end = len(os.path.commonprefix([pattern[::-1] for pattern in patterns]))
    names = [pattern[start : len(pattern) - end] for pattern in patterns]
    return tuple(names) if all(names) else tuple(patterns)


def files_of(file_name: str, patterns: Sequence[str]) -> list[str]:
    """The files of an image's channels, by that of its first; [] of a file that is none of a first channel."""
    before, after = map(re.escape, patterns[0].split("{}"))
    match = re.fullmatch(rf"(?s:(.*/)?){before}([^/]+){after}", file_name)
    if not match:
        return []
    folder, name = match[1] or "", match[2]
    return [folder + pattern.replace("{}", name) for pattern in patterns]


def files_of_others(files: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """The files of further channels, of images whose first is among these; none where no channel has its own."""
    return {other for file in files for other in files_of(file, patterns)[1:]} if patterns else set()


def load_channel_files(name: str, text: str) -> LabelledSet:
    """See the module. Raises UserError where no image has a file of the first channel, or one lacks another."""
    patterns, records = patterns_of(text), get_records(name)
    listed = [(record, files_of(str(record["file_name"]), patterns)) for record in records]
    others = files_of_others((str(record["file_name"]) for record in records), patterns)
    # {}.tif has the name of {}_nir.tif, too.
    images = [{**record, CHANNEL_FILES: files} for record, files in listed if files and files[0] not in others]
    expect(images, f"{name} has no image named {patterns[0]}: expected one, as INPUT.CHANNEL_FILES says")
    missing = [file for image in images for file in image[CHANNEL_FILES] if not os.path.isfile(file)]
    if missing:
        raise UserError(f"{name}: of {len(images)} images {len(missing)} files are missing: {first_few(missing)}")
    return LabelledSet(images, class_metadata(name))


def expect_one_file_each(records: Records, name: str, expected: str) -> None:
    """Raise UserError where what is written would have the first channel alone."""
    in_files = any(CHANNEL_FILES in record for record in records)
    problem = f"{name}: each channel has a file of its own, of which the first alone would be read"
    expect(not in_files, f"{problem}: {expected}")


def with_files(name: str, patterns: Sequence[str]) -> str:
    """The name of a data set whose images have a file for each channel."""
    is_known = name.startswith(f"{FILES}:") or not patterns
    return name if is_known else f"{FILES}:{name}:{','.join(patterns)}"


LABEL_LAYOUT_REGISTRY.register(
    LabelLayout(FILES, "NAME:PATTERNS", load_channel_files, metadata_of_part, texts=("NAME", "PATTERNS"))
)
