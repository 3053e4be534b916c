"""Images of named channels as TIFFs that ``tiff.py``, GDAL and others read again."""

import io
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np

from projects.Pixels.tiff import GDAL_METADATA, tifffile
from revisit.data.images.pixel_format import COLOURS
from revisit.errors import expect


def check_tifffile() -> None:
    """Raises UserError where tifffile is not installed."""
    expect(tifffile is not None, "writing a TIFF needs tifffile: pip install 'revisit-detectron2[tiff]'")


def tiff_bytes(image: np.ndarray, names: Sequence[str]) -> bytes:
    """A file of an (H, W, C) image, deflated, without a date: the same image has the same bytes.

    Its tags say the channels' names as GDAL's descriptions do. Those after red, green and blue are data, no alpha.
    """
    is_colour = tuple(names[: len(COLOURS)]) == COLOURS
    further = image.shape[2] - (len(COLOURS) if is_colour else 1)
    file = io.BytesIO()
    tifffile.imwrite(
        file,
        image,
        photometric="rgb" if is_colour else "minisblack",
        planarconfig="contig",
        extrasamples=["unspecified"] * further,
        compression="zlib",
        metadata=None,
        software=False,
        extratags=[(GDAL_METADATA, "s", 0, _descriptions(names), True)],
    )
    return file.getvalue()


def _descriptions(names: Sequence[str]) -> str:
    """XML of GDAL's."""
    root = ElementTree.Element("GDALMetadata")
    for sample, name in enumerate(names):
        item = ElementTree.SubElement(root, "Item", name="DESCRIPTION", sample=str(sample), role="description")
        item.text = name
    return ElementTree.tostring(root, "unicode")
