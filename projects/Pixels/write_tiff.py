"""Images of named channels as TIFFs that ``tiff.py``, GDAL and others read again."""

import io
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np

from projects.Pixels.samples import Samples
from projects.Pixels.tiff import GDAL_METADATA, MASK, tifffile
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
    values, layout = tiff_layout(Samples(image, names=tuple(names), is_colour=is_colour))
    file = io.BytesIO()
    tifffile.imwrite(file, values, compression="zlib", metadata=None, software=False, **layout)
    return file.getvalue()


def samples_bytes(samples: Samples) -> bytes:
    """A file, not compressed, of which ``read_samples`` gives the same again; a PPM where that says it all.

    Raises:
        UserError: tifffile is needed, and not installed.
    """
    values = samples.values
    height, width, count = values.shape
    is_photograph = values.dtype == np.uint8 and count == _colours(samples)
    says_more = samples.names or samples.marked is not None or samples.alpha is not None
    if is_photograph and not says_more:
        return b"P%d %d %d 255\n" % (6 if samples.is_colour else 5, width, height) + values.tobytes()
    check_tifffile()
    return _whole_tiff(samples)


def _colours(samples: Samples) -> int:
    return len(COLOURS) if samples.is_colour else 1


def tiff_layout(samples: Samples) -> tuple[np.ndarray, dict]:
    """The (H, W) or (H, W, C) samples of a page, transparency last, and what tifffile writes with them."""
    values, _, names, is_colour, alpha, is_premultiplied = samples
    kinds = ["unspecified"] * (values.shape[2] - _colours(samples))
    if alpha is not None:
        values = np.concatenate([values, alpha[..., None]], axis=2)
        kinds.append("assocalpha" if is_premultiplied else "unassalpha")
    layout = {"planarconfig": "contig", "extrasamples": kinds} if values.shape[2] > 1 else {}
    described = (*names, "alpha")[: values.shape[2]]
    tags = [(GDAL_METADATA, "s", 0, _descriptions(described), True)] if names else []
    colours = {"photometric": "rgb" if is_colour else "minisblack", "extratags": tags}
    return values if layout else values[..., 0], colours | layout


def _whole_tiff(samples: Samples) -> bytes:
    values, layout = tiff_layout(samples)
    options = {"metadata": None, "software": False}
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        writer.write(values, **layout, **options)
        if samples.marked is not None:
            writer.write(~samples.marked, subfiletype=MASK, **options)
    return file.getvalue()


def _descriptions(names: Sequence[str]) -> str:
    """XML of GDAL's, in ASCII, as tags have it."""
    root = ElementTree.Element("GDALMetadata")
    for sample, name in enumerate(names):
        item = ElementTree.SubElement(root, "Item", name="DESCRIPTION", sample=str(sample), role="description")
        item.text = name
    return ElementTree.tostring(root, "us-ascii").decode()
