"""Decoders of imagecodecs for what pydicom has none by itself: lossless JPEG, as X-rays have it, 12 bits, and JPEG-LS.

pydicom asks a module of decoders for ``is_available`` and for what it depends on.
"""

import imagecodecs
from pydicom import uid
from pydicom.pixels import get_decoder
from pydicom.pixels.decoders.base import DecodeRunner

from projects.Pixels.jpeg_header import jpeg_size

LABEL = "imagecodecs"
_DECODERS = {
    uid.JPEGExtended12Bit: imagecodecs.jpeg_decode,
    uid.JPEGLossless: imagecodecs.jpegsof3_decode,
    uid.JPEGLosslessSV1: imagecodecs.jpegsof3_decode,
    uid.JPEGLSLossless: imagecodecs.jpegls_decode,
    uid.JPEGLSNearLossless: imagecodecs.jpegls_decode,
}
DECODER_DEPENDENCIES = {syntax: ("imagecodecs",) for syntax in _DECODERS}


def is_available(syntax: str) -> bool:
    """Whether a transfer syntax is decoded here."""
    return syntax in _DECODERS


def offer_to_pydicom() -> None:
    """Have pydicom use these decoders after its own."""
    for syntax in _DECODERS:
        decoder = get_decoder(syntax)
        if LABEL not in decoder.available_plugins:
            decoder.add_plugin(LABEL, (__name__, "decode_frame"))


def decode_frame(frame: bytes, runner: DecodeRunner) -> bytes:
    """The samples of a frame, those of a pixel together. Raises ValueError: of another size than the file says."""
    expected = (runner.rows, runner.columns)
    if (stated := jpeg_size(frame)) != expected:
        raise ValueError(f"a frame of {stated} pixels in a file of {expected}")
    values = _DECODERS[runner.transfer_syntax](frame)
    runner.set_option("bits_allocated", 8 * values.itemsize)
    runner.set_option("planar_configuration", 0)
    return values.tobytes()
