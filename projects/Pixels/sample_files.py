"""The one door from the bytes of a file to its samples, by what the bytes begin with."""

from collections.abc import Iterator
from contextlib import contextmanager

from PIL import UnidentifiedImageError

from projects.Pixels.arrays import NPY_MAGIC, NPZ_MAGIC, numpy_size, read_numpy
from projects.Pixels.dicom import dicom_size, is_dicom, read_dicom
from projects.Pixels.photographs import read_photograph
from projects.Pixels.samples import Samples
from projects.Pixels.tiff import read_tiff
from revisit.data.images.image_bytes import Size, UnreadableImageError
from revisit.data.images.opening import TIFF_MAGICS
from revisit.errors import UserError, first_line


def read_samples(data: bytes, name: str = "") -> Samples:
    """All channels of a TIFF, an array of numpy's, a DICOM file, or what the core reads as a photograph.

    ``name`` is for what is logged of a file that is read as less than it holds.

    Raises:
        DeepImageError: a whole file, and nothing gives its samples a meaning; or what reads such is not installed.
        UnreadableImageError: damaged, too large, or of another format. Picture.decode gives it the file's name.
    """
    with _damage():
        if is_dicom(data):  # before it a file may have what others begin with
            return read_dicom(data)
        if data.startswith(TIFF_MAGICS):
            return read_tiff(data, name)
        if data.startswith((NPY_MAGIC, NPZ_MAGIC)):
            return read_numpy(data)
        return read_photograph(data)


def size_of(data: bytes) -> Size:
    """(height, width) in px, upright, of a file but no TIFF that PIL cannot open. Raises as read_samples."""
    with _damage():
        if is_dicom(data):
            return dicom_size(data)
        if data.startswith((NPY_MAGIC, NPZ_MAGIC)):
            return numpy_size(data)
        raise UnidentifiedImageError("neither PIL nor a plug-in can decode it")


@contextmanager
def _damage() -> Iterator[None]:
    """Libraries raise whatever damaged bytes trip, a KeyError too, whose words alone say little."""
    try:
        yield
    except UnreadableImageError:
        raise
    except (UserError, ValueError, OSError) as error:
        raise UnreadableImageError(first_line(error)) from error
    except Exception as error:
        raise UnreadableImageError(f"damaged ({type(error).__name__}: {first_line(error)})") from error
