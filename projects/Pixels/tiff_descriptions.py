"""What the descriptions in a TIFF say: which of its pages are channels (OME, ImageJ, tifffile), and names of channels.

They are texts that anybody may have written: XML without entities, JSON, or lines.
"""

import json
import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from revisit.data.images.image_bytes import DeepImageError

_AXES = {"T": "times", "Z": "slices", "Q": "series", "R": "series", "P": "positions"}  # whose first place is read
# GDAL's items that name a band, the better one first, and what names none there: a colour may be "gray" of any band.
_ROLES = {"description": {""}, "colorinterp": {"", "gray", "undefined"}}


class Planes(NamedTuple):
    """The pages of one image."""

    places: tuple[int, ...]  # among those of full resolution, one for each channel
    names: tuple[str, ...] = ()  # of the channels
    left_out: tuple[str, ...] = ()  # axes of which the first place is taken


def says_planes(description: str) -> bool:
    """Whether a page's description is one of those that say what the pages are."""
    text = description.strip()
    return text.endswith("OME>") or text.startswith(("ImageJ=", "{"))


def stated_planes(description: str, count: int) -> Planes | None:
    """What the first page's description says of ``count`` pages; None where it says nothing.

    Raises:
        DeepImageError: it says something of another number of pages.
    """
    text = description.strip()
    if text.endswith("OME>"):
        return _of_ome(_parsed(text), count)
    if text.startswith("ImageJ="):
        return _of_imagej(text, count)
    if text.startswith("{"):
        return _of_tifffile(text, count)
    return None


def _parsed(text: str) -> ElementTree.Element:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise DeepImageError("a TIFF whose description declares entities: expected plain XML")
    root = ElementTree.fromstring(text.strip().strip("\0"))
    for element in root.iter():  # versions of OME differ by their namespaces
        element.tag = element.tag.rpartition("}")[2]
    return root


def _planes(axes: str, sizes: Sequence[int], count: int, names: tuple[str, ...] = ()) -> Planes:
    """By the axes over the pages, the slowest first."""
    if min(sizes, default=1) < 1 or math.prod(sizes) != count:
        stated = " x ".join(f"{size} {axis}" for axis, size in zip(axes, sizes, strict=True)) or "one"
        raise DeepImageError(f"a TIFF whose description says {stated}, and it has {count} pages: expected as many")
    pages = np.arange(count).reshape(tuple(sizes))
    first = pages[tuple(slice(None) if axis == "C" else 0 for axis in axes)].ravel()
    left_out = [_AXES.get(axis, axis) for axis, size in zip(axes, sizes, strict=True) if axis != "C" and size > 1]
    return Planes(tuple(map(int, first)), names, tuple(left_out))


def _of_ome(root: ElementTree.Element, count: int) -> Planes:
    """Of the first image; OME counts samples of a page as channels too, and may say which page is which plane."""
    images = root.findall("Image")
    pixels = images[0].find("Pixels")
    sizes = {axis: int(pixels.get(f"Size{axis}")) for axis in "CZT"}
    sizes["C"], names = _channels_of_ome(pixels, sizes["C"])
    axes = pixels.get("DimensionOrder")[:1:-1]
    shape = [sizes[axis] for axis in axes]
    total = math.prod(shape)
    planes = _planes(axes, shape, total if len(images) > 1 and total <= count else count, names)
    page_of = _pages_of_planes(pixels, axes, shape)
    places = tuple(page_of.get(place, place) for place in planes.places)
    if min(places) < 0 or max(places) >= count:
        raise DeepImageError(f"a TIFF whose OME names page {max(places)} of {count}: expected all in one file")
    further = ("images",) if len(images) > 1 else ()
    return planes._replace(places=places, left_out=planes.left_out + further)


def _channels_of_ome(pixels: ElementTree.Element, count: int) -> tuple[int, tuple[str, ...]]:
    """On how many pages ``count`` channels lie, and their names where each has a page and a name."""
    channels = pixels.findall("Channel")
    samples = [int(channel.get("SamplesPerPixel", 1)) for channel in channels]
    if sum(samples) != count:
        return count, ()
    names = tuple(channel.get("Name", "") for channel in channels)
    return len(samples), names if len(samples) == count and all(names) else ()


def _pages_of_planes(pixels: ElementTree.Element, axes: str, shape: Sequence[int]) -> dict[int, int]:
    """By the plane's number, in the order of the axes, where TiffData says it."""
    total, pages = math.prod(shape), {}
    for block in pixels.findall("TiffData"):
        page = block.get("IFD")
        first = [int(block.get(f"First{axis}", 0)) for axis in axes]
        if page is None or any(not 0 <= place < size for place, size in zip(first, shape, strict=True)):
            continue
        start = int(np.ravel_multi_index(first, shape))
        length = min(int(block.get("PlaneCount", 1)), total - start)
        pages |= {start + step: int(page) + step for step in range(length)}
    return pages


def _of_imagej(text: str, count: int) -> Planes:
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    sizes = [int(lines.get(key, 1)) for key in ("frames", "slices", "channels")]
    return _planes("TZC", sizes, count)


def _of_tifffile(text: str, count: int) -> Planes | None:
    """A JSON object with the axes of all pages and their samples, of which the pages' are the first."""
    try:
        stated = json.loads(text)
    except ValueError:
        return None
    axes, shape = stated.get("axes"), stated.get("shape")
    if not isinstance(axes, str) or not isinstance(shape, list) or len(axes) != len(shape) or "Y" not in axes:
        return None
    over_pages = axes[: axes.index("Y")]
    sizes = [int(size) for size in shape[: len(over_pages)]]
    names = stated.get("channel_names", ())
    if count == 1 and over_pages in ("C", "S") and not stated.get("truncated"):  # planes of one page
        return None
    return _planes(over_pages, sizes, count, tuple(map(str, names)))


def names_of_bands(text: str, count: int) -> tuple[str, ...]:
    """Of ``count`` samples of a page, by GDAL's metadata: their descriptions, else what colours they are; () where one
    has none, or two have the same."""
    items = _parsed(text).iter("Item") if text else ()
    bands = {(item.get("role"), item.get("sample")): (item.text or "").strip() for item in items}
    for role, unnamed in _ROLES.items():
        names = tuple(bands.get((role, str(sample)), "") for sample in range(count))
        if len(set(names)) == count and not unnamed & {name.lower() for name in names}:
            return names
    return ()
