"""DICOM files: numbers after the rescale of their file (Hounsfield units of a CT), by pydicom's own functions.

A window is no part of them: by the full range networks learn, and ``INPUT.RANGE "c-w/2 c+w/2"`` states another. White
is the highest number of every file, as MONOCHROME2 has it: of MONOCHROME1, values are turned round within the range
that their bits allow after the rescale, and a window with them (c becomes low + high - c). No name, date or number of a
person is read, logged or kept: of a patient there is but a digest.
"""

import hashlib
import io
import logging
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from projects.Pixels.samples import Samples, with_missing
from revisit.data.images.image_bytes import DeepImageError, Size, UnreadableImageError
from revisit.data.images.opening import MAX_MEMORY, check_pixel_count

try:
    import pydicom
    from pydicom import pixels
    from pydicom.dataset import Dataset

    from projects.Pixels import dicom_codecs

    dicom_codecs.offer_to_pydicom()
except ImportError:  # said where a file is to be read
    pydicom = None

_MAGIC, _PLACE = b"DICM", 128  # bytes before it
HEAD = _PLACE + len(_MAGIC)
_COPIES = 3  # of the values, of which one is in float64
_COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
_FUNCTIONS = ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence")
_TRANSFORMATION = "PixelValueTransformationSequence"
_RESCALE = {"RescaleSlope": 1, "RescaleIntercept": 0}  # where one of them alone is stated
_DEFLATED, _PLAIN = b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.1".ljust(22, b"\0")  # transfer syntaxes
_CONVERT = "gdcmconv --raw"
_DIGITS = 16  # of a patient's digest
DIRECTORIES, WITHOUT_PIXELS = "directories", "without pixels"
# By what a file's class begins with, and a dot.
_KINDS = {"1.2.840.10008.5.1.4.1.1.7.": "secondary captures", "1.2.840.10008.1.3.10.": DIRECTORIES}
# Waveforms, presentation states, registrations, surfaces, reports, documents; structure sets and plans of radiotherapy.
_NO_PIXELS = ("9", "11", "67", "88", "104", *(f"66.{n}" for n in (1, 2, 3, 5, 6)), *(f"481.{n}" for n in range(3, 10)))
_KINDS |= {f"1.2.840.10008.5.1.4.1.1.{number}.": WITHOUT_PIXELS for number in _NO_PIXELS}
_KIND, _PATIENT = 0x00080008, 0x00100020  # tags of ImageType and PatientID


def can_read() -> bool:
    """Whether pydicom is installed."""
    return pydicom is not None


def is_dicom(data: bytes) -> bool:
    """By the first HEAD bytes of a file."""
    return data[_PLACE:HEAD] == _MAGIC


def read_dicom(data: bytes) -> Samples:
    """Of a file of one frame: stored integers, float32 after a rescale, or RGB; the padding value is missing.

    Raises:
        DeepImageError: several frames, other colours, or pydicom is not installed.
        UnreadableImageError: damaged, without pixels, or compressed in a way that nothing installed decodes.
    """
    with _reading():
        file = _opened(data, stop_before_pixels=False)
        _check(file)
        stored = pixels.pixel_array(file, index=0)
        if file.PhotometricInterpretation == "PALETTE COLOR":
            return with_missing(Samples(pixels.apply_color_lut(stored, file)[..., :3], is_colour=True))
        if file.SamplesPerPixel > 1:
            return with_missing(Samples(stored, is_colour=True))
        values = _rescaled(file, stored)
        if file.PhotometricInterpretation == "MONOCHROME1":
            low, high = _possible(file, stored)
            values = (values.dtype.type(low) + values.dtype.type(high) - values).astype(values.dtype)
        return with_missing(Samples(values[..., None]), _padding(file, stored))


def dicom_size(data: bytes) -> Size:
    """(height, width) in px, by the tags alone. Raises as read_dicom."""
    with _reading():
        file = _opened(data, stop_before_pixels=True)
        return int(file.Rows), int(file.Columns)


def patient_of(data: bytes) -> str:
    """The first 16 hexadecimal digits of the PatientID's SHA-256, by which images of one patient are a group. Of
    ``data`` the first bytes are enough.

    Raises:
        DeepImageError: none is given. And as read_dicom.
    """
    with _reading():
        file = _tags_up_to(_PATIENT, data, specific_tags=[_PATIENT])
        patient = str(file.get("PatientID") or "")
    if not patient.strip():
        raise DeepImageError("a DICOM file without a PatientID: expected one, or a CSV file of groups")
    return hashlib.sha256(patient.encode()).hexdigest()[:_DIGITS]


def kind_of(head: bytes) -> str:
    """What its first bytes say that a file is, where it is no usual image: a word of many such, or ""."""
    with _reading():
        file = _tags_up_to(_KIND, head)
        if "LOCALIZER" in (file.get("ImageType") or ()):
            return "localisers"
        stored = f"{file.file_meta.get('MediaStorageSOPClassUID')}."
        return next((word for start, word in _KINDS.items() if stored.startswith(start)), "")


def _tags_up_to(last: int, data: bytes, **options: object) -> "Dataset":
    """Those of a file, of which ``data`` are the first bytes."""
    file = io.BytesIO(data)
    return pydicom.filereader.read_partial(file, stop_when=lambda tag, vr, length: tag > last, **options)


@contextmanager
def _reading() -> Iterator[None]:
    """What pydicom says of odd files may quote them, and so names of people: of its errors there is but the kind."""
    if pydicom is None:
        raise DeepImageError("a DICOM file: expected pydicom, so pip install 'revisit-detectron2[dicom]'")
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except UnreadableImageError:
            raise
        except Exception as error:
            raise UnreadableImageError(
                f"a damaged DICOM file, or one without an image ({type(error).__name__})"
            ) from None


def _opened(data: bytes, **options: object) -> "Dataset":
    return pydicom.dcmread(io.BytesIO(_inflated(data) if _DEFLATED in data else data), **options)


def _inflated(data: bytes) -> bytes:
    """The same file without deflation, for which pydicom has no bound. Raises UnreadableImageError where it would take
    too much memory."""
    length = int.from_bytes(data[HEAD + 8 : HEAD + 12], "little")  # of the group that says how the file is written
    start = HEAD + 12 + length
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    content = inflate.decompress(data[start:], MAX_MEMORY // _COPIES)
    file = data[:start].replace(_DEFLATED, _PLAIN) + content
    if inflate.unconsumed_tail or _DEFLATED in file:
        most = MAX_MEMORY // _COPIES // 2**20
        raise UnreadableImageError(f"a deflated DICOM file of more than {most} MB: convert it, such as by {_CONVERT}")
    return file


def _check(file: "Dataset") -> None:
    """Before anything is decoded."""
    if "Rows" not in file or "Columns" not in file:
        raise UnreadableImageError("a DICOM file without an image")
    frames = int(file.get("NumberOfFrames") or 1)
    if frames > 1:
        expected = "one a file, so split it, such as by dcm4che's emf2sf"
        raise DeepImageError(f"a DICOM file of {frames} frames: expected {expected}")
    kind, syntax = file.PhotometricInterpretation, file.file_meta.TransferSyntaxUID
    if not kind.startswith("MONOCHROME") and kind not in (*_COLOURS, "PALETTE COLOR"):
        raise DeepImageError("a DICOM file of other colours than MONOCHROME1, MONOCHROME2, RGB, YBR and PALETTE COLOR")
    if not _is_decoded(syntax):
        raise DeepImageError(f"a DICOM file compressed as {syntax.name}: convert it, such as by {_CONVERT}")
    bytes_a_pixel = max(int(file.BitsAllocated) // 8, 1) * int(file.SamplesPerPixel)
    try:
        check_pixel_count(int(file.Rows), int(file.Columns), 8 + _COPIES * bytes_a_pixel)
    except ValueError as error:
        raise UnreadableImageError(str(error)) from None


def _is_decoded(syntax: str) -> bool:
    try:
        return pixels.get_decoder(syntax).is_available
    except NotImplementedError:  # of videos
        return False


def _rescaled(file: "Dataset", stored: np.ndarray) -> np.ndarray:
    """By the file's table, or its slope and intercept, which an enhanced file has for each frame; else as stored."""
    if file.get("ModalityLUTSequence") or _says_rescale(file):
        return pixels.apply_modality_lut(stored, file).astype(np.float32)
    for functions in filter(None, map(file.get, _FUNCTIONS)):
        if _TRANSFORMATION in functions[0] and _says_rescale(functions[0][_TRANSFORMATION][0]):
            return pixels.apply_rescale(stored, functions[0][_TRANSFORMATION][0]).astype(np.float32)
    return stored


def _says_rescale(part: "Dataset") -> bool:
    """Whether a part of a file has a slope or an intercept, of which an empty one says nothing. It then has both:
    without one of them pydicom applies none."""
    stated = {name: part.get(name) for name in _RESCALE}
    if set(stated.values()) == {None}:
        return False
    for name, default in _RESCALE.items():
        setattr(part, name, default if stated[name] is None else stated[name])
    return True


def _possible(file: "Dataset", stored: np.ndarray) -> tuple[float, float]:
    """The lowest and the highest number that the bits of a pixel can have after the rescale."""
    if stored.dtype.kind == "f":
        raise DeepImageError("a DICOM file of floats as MONOCHROME1: expected MONOCHROME2, or integers")
    if file.get("ModalityLUTSequence"):
        return 0, 2 ** int(file.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    bits = int(file.BitsStored)
    low = -(2 ** (bits - 1)) if file.PixelRepresentation else 0
    ends = _rescaled(file, np.array([low, low + 2**bits - 1], stored.dtype))
    return float(ends.min()), float(ends.max())


def _padding(file: "Dataset", stored: np.ndarray) -> np.ndarray | None:
    """(H, W), where a pixel is outside of what was seen."""
    values = [file.get(name) for name in ("PixelPaddingValue", "PixelPaddingRangeLimit")]
    if values[0] is None:
        return None
    ends = [_as_stored(file, value, stored.dtype) for value in values if value is not None]
    return (stored >= min(ends)) & (stored <= max(ends))


def _as_stored(file: "Dataset", value: float, kind: np.dtype) -> float:
    """A number of a tag, which some programs write with a sign where pixels have none, or the other way round."""
    if kind.kind == "f":
        return value
    bits = int(file.BitsStored)
    if kind.kind == "i" and value >= 2 ** (bits - 1):
        return (value & (2**bits - 1)) - 2**bits
    return value & (2**bits - 1) if kind.kind == "u" and value < 0 else value
