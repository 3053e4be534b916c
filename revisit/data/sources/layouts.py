"""Layouts of images and labels on disk, which KIND:PATH names wherever they lie.

A layout is an entry of LABEL_LAYOUT_REGISTRY, registered next to the function that reads it. A plug-in registers its
own (docs/extending.md: A label layout).
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from revisit.data.sources.records import Records
from revisit.errors import expect
from revisit.files import is_url, local_copy

from fvcore.common.registry import Registry

LABEL_LAYOUT_REGISTRY = Registry("LABEL_LAYOUT")
TWO_FOLDERS = "images and labels of two folders are voc_xml:, yolo: or masks:IMAGES:LABELS"

# A part of a name between colons. Those of s3:// and http://host:80/ are its own, and that of a drive, C:/ or C:\.
_BETWEEN_COLONS = re.compile(r"(?:[A-Za-z][\w+.-]*://[^/:]*(?::\d+(?=/))?|[A-Za-z]:(?=[/\\]))?[^:]*:?")


class LabelledSet(NamedTuple):
    """Records, and what their files say of the whole data set, such as ``thing_classes``."""

    records: Records
    metadata: dict


@dataclass(frozen=True)
class LabelLayout:
    """An entry of LABEL_LAYOUT_REGISTRY.

    Attributes:
        kind: the word before the first colon.
        form: what follows, between colons: one of ``texts``, FILE... or a folder; in brackets what may be left out, in
            small letters a word that is meant as it stands.
        load: of these parts: texts for ``texts`` and words, else paths. Raises UserError for files of another layout.
        metadata: Detectron2's, known without loading, or what gives it for the same parts.
        texts: forms of parts that are no paths.
    """

    kind: str
    form: str
    load: Callable[..., Records | LabelledSet]
    metadata: dict | Callable[..., dict] = field(default_factory=dict)
    texts: tuple[str, ...] = ("SPLIT", "URL")

    @property
    def __name__(self) -> str:
        """What the registry knows it by."""
        return self.kind

    def parts_of(self, name: str) -> list[str | Path]:
        """What ``load`` takes, of a data set's name. A file at a URL is the path of its copy on this machine.

        Raises:
            UserError: too few parts, a URL of a folder, or a file that cannot be fetched.
        """
        forms = self.form.replace("[", "").replace("]", "").split(":")
        rest = name.partition(":")[2]
        texts = split_parts(rest, len(forms))
        is_word = forms[-1].islower() and len(texts) == len(forms)
        if is_word and texts[-1] != forms[-1] and os.path.exists(texts[-1]):  # a place, and the word is left out
            texts = split_parts(rest, len(forms) - 1)
        required = len(forms) - self.form.count("[")
        is_complete = required <= len(texts) <= len(forms) and all(texts)
        hint = f"; {TWO_FOLDERS}" if "SPLIT" in forms else ""
        expect(is_complete, f"data set {name!r}: expected {self.kind}:{self.form}{hint}")
        return [_part(name, form, text, form in self.texts) for form, text in zip(forms, texts, strict=False)]

    def metadata_of(self, parts: list[str | Path]) -> dict:
        return self.metadata(*parts) if callable(self.metadata) else self.metadata


def split_parts(rest: str, count: int) -> list[str]:
    """What follows KIND: in a name, at its last ``count`` - 1 colons: an earlier one belongs to the first part."""
    parts = [part.removesuffix(":") for part in _BETWEEN_COLONS.findall(rest) if part]
    first = len(parts) - count + 1
    return [":".join(parts[:first]), *parts[first:]] if first > 0 else parts


def _part(name: str, form: str, text: str, is_text: bool) -> str | Path:
    if is_text:
        is_place = form == "SPLIT" and text.startswith("/")
        expect(not is_place, f"data set {name!r}: expected the name of a list in FOLDER, not {text}; {TWO_FOLDERS}")
        return text
    if form.islower():
        expect(text == form, f"data set {name!r} ends in {text}: expected {form}, or nothing")
        return text
    may_be_url = form.startswith("FILE")
    problem = f"data set {name!r}: {text} is a URL"
    expect(may_be_url or not is_url(text), f"{problem}, expected a folder; only files may be URLs")
    return local_copy(text, f"data set {name!r}:")
