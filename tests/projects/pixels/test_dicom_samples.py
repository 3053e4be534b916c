"""DICOM files as samples, each against pydicom's own functions or numbers written here; and which files are listed."""

import hashlib
import io
import logging
import os
import random
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom import Dataset, dcmread, pixels, uid
from pydicom.data import get_testdata_file, get_testdata_files
from trees import refusal, refused, spoil_bytes

from projects.Labels.belonging import kept_together
from projects.Objectives.image_groups import numbered_groups
from projects.Pixels.dicom import HEAD, kind_of, patient_of
from projects.Pixels.sample_files import read_samples, size_of
from revisit.data.images.image_bytes import DeepImageError, UnreadableImageError
from revisit.data.images.opening import MAX_MEMORY
from revisit.data.images.reader import read_size
from revisit.data.sources.image_folders import load_folder

CASES = int(os.environ.get("FUZZ_CASES", 300))
CT, CAPTURE, ENDOSCOPE = uid.CTImageStorage, uid.SecondaryCaptureImageStorage, uid.VLEndoscopicImageStorage
NAME = "Doe^Jane"


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    monkeypatch.setattr("detectron2.utils.logger._LOG_COUNTER", Counter())


def dicom(stored, storage=CT, bits=None, **tags) -> bytes:
    """Of (H, W) or (H, W, 3) integers."""
    file, meta = Dataset(), pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = uid.ExplicitVRLittleEndian, storage
    meta.MediaStorageSOPInstanceUID = file.SOPInstanceUID = "1.2.3"
    file.SOPClassUID, file.file_meta, file.PatientID, file.PatientName = storage, meta, "P-17", NAME
    file.Rows, file.Columns = stored.shape[:2]
    file.SamplesPerPixel = 3 if stored.ndim == 3 else 1
    file.PhotometricInterpretation = "RGB" if stored.ndim == 3 else "MONOCHROME2"
    file.BitsAllocated = 8 * stored.itemsize
    file.BitsStored = bits or file.BitsAllocated
    file.HighBit = file.BitsStored - 1
    file.PixelRepresentation = int(stored.dtype.kind == "i")
    if stored.ndim == 3:
        file.PlanarConfiguration = 0
    file.PixelData = stored.tobytes()
    for name, value in tags.items():
        setattr(file, name, value)
    data = io.BytesIO()
    file.save_as(data, enforce_file_format=True)
    return data.getvalue()


def numbers(low, high, kind="uint16", shape=(20, 30)):
    return np.random.default_rng(0).integers(low, high, shape, endpoint=True).astype(kind)


def same(data, values, missing=None):
    samples = read_samples(data)
    assert samples.values.dtype == values.dtype
    np.testing.assert_array_equal(samples.values, values)
    assert (samples.missing is None) == (missing is None) and (missing is None or (samples.missing == missing).all())
    assert size_of(data) == values.shape[:2]
    return samples


def test_numbers_are_those_after_the_rescale_and_without_one_those_stored():
    stored = numbers(-1000, 3000, "int16")
    same(dicom(stored), stored[..., None])
    same(
        dicom(stored, RescaleSlope="2.5", RescaleIntercept="-1024"), (stored * 2.5 - 1024)[..., None].astype(np.float32)
    )
    enhanced, item = Dataset(), Dataset()
    item.RescaleSlope, item.RescaleIntercept = "3", "7"
    enhanced.PixelValueTransformationSequence = [item]
    of_frame = dicom(stored, PerFrameFunctionalGroupsSequence=[enhanced])
    same(of_frame, (stored * 3.0 + 7)[..., None].astype(np.float32))
    table = Dataset()
    table.LUTDescriptor, table.LUTData = [4, 0, 16], np.array([500, 600, 800, 60000], np.uint16).tobytes()
    stored = numbers(0, 3)
    expected = np.array([500, 600, 800, 60000])[stored].astype(np.float32)
    same(dicom(stored, ModalityLUTSequence=[table]), expected[..., None])


def test_a_linear_window_is_a_range_of_these_numbers():
    """docs: INPUT.RANGE c-w/2 c+w/2-1 of the standard's LINEAR, whose ends are half a number off."""
    stored = numbers(0, 4095)
    data = dicom(stored, RescaleSlope="1", RescaleIntercept="-1024", WindowCenter="40", WindowWidth="400")
    by_pydicom = pixels.apply_windowing(
        pixels.apply_rescale(stored, dcmread(io.BytesIO(data))), dcmread(io.BytesIO(data))
    )
    low, high = 40 - 400 / 2, 40 + 400 / 2 - 1
    levels = (read_samples(data).values[..., 0] - low).clip(0, high - low) / (high - low)
    span = np.ptp(by_pydicom)
    np.testing.assert_allclose(levels, (by_pydicom - by_pydicom.min()) / span, atol=1e-6)


def test_where_white_is_the_lowest_number_it_becomes_the_highest():
    for kind, bits, low, high in (("uint16", 12, 0, 4095), ("int16", 16, -32768, 32767), ("uint8", 8, 0, 255)):
        stored = numbers(low, high, kind)
        expected = (low + high - stored.astype(np.int64)).astype(kind)
        same(dicom(stored, bits=bits, PhotometricInterpretation="MONOCHROME1"), expected[..., None])
    stored = numbers(0, 4095)
    tags = {"RescaleSlope": "2", "RescaleIntercept": "-1000", "PhotometricInterpretation": "MONOCHROME1"}
    expected = (-1000 + (4095 * 2 - 1000) - (stored * 2.0 - 1000)).astype(np.float32)
    turned = same(dicom(stored, bits=12, **tags), expected[..., None]).values[..., 0]
    # The window first and then the inversion, as the standard says, is the mirrored window after it.
    center, width = 1500.0, 600.0
    window = ((stored * 2.0 - 1000 - center) / width + 0.5).clip(0, 1)
    mirrored = ((turned - (-1000 + 7190 - center)) / width + 0.5).clip(0, 1)
    np.testing.assert_allclose(1 - window, mirrored, atol=1e-6)


def test_bits_that_are_no_part_of_a_value_do_not_count():
    stored = numbers(0, 4095)
    overlay = stored | np.uint16(0xA000)
    same(dicom(overlay, bits=12), stored[..., None])


def test_padding_is_missing():
    stored = numbers(0, 100)
    stored[:3], stored[3:5] = 4000, 4010
    hole = stored >= 4000
    same(dicom(stored, PixelPaddingValue=4000), stored[..., None], stored == 4000)
    same(dicom(stored, PixelPaddingValue=4000, PixelPaddingRangeLimit=4010), stored[..., None], hole)
    data = dicom(stored, bits=12, PixelPaddingValue=4000, PhotometricInterpretation="MONOCHROME1")
    same(data, 4095 - stored[..., None], stored == 4000)


@pytest.mark.parametrize(("kind", "own", "other"), [("int16", b"SS", b"US"), ("uint16", b"US", b"SS")])
def test_padding_counts_whatever_sign_its_tag_has(kind, own, other):
    mark = -2000 if kind == "int16" else 63536
    stored = numbers(0, 1000, kind)
    stored[:3] = mark
    data = dicom(stored, PixelPaddingValue=mark)
    tag = b"\x28\x00\x20\x01" + own
    assert data.count(tag) == 1
    same(data.replace(tag, tag[:4] + other), stored[..., None], stored == mark)


def test_tags_without_a_value_say_nothing():
    stored = numbers(0, 1000)
    empty = dict.fromkeys(("PixelPaddingValue", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"))
    same(dicom(stored, **empty), stored[..., None])
    inverted = dicom(stored, bits=10, PhotometricInterpretation="MONOCHROME1", ModalityLUTSequence=[])
    same(inverted, 1023 - stored[..., None])


def test_a_slope_or_an_intercept_alone_counts():
    stored = numbers(0, 1000)
    same(dicom(stored, RescaleIntercept=-1024), stored[..., None] - np.float32(1024))
    same(dicom(stored, RescaleSlope=2, RescaleIntercept=None), stored[..., None] * np.float32(2))


def test_colours_are_rgb():
    colours = numbers(0, 255, "uint8", (20, 30, 3))
    assert same(dicom(colours), colours).is_colour
    data = dicom(colours, PhotometricInterpretation="YBR_FULL")
    assert same(data, pixels.convert_color_space(colours, "YBR_FULL", "RGB")).is_colour
    tables = {
        f"{name}PaletteColorLookupTableData": numbers(0, 255, "uint8", (256,)).tobytes() for name in ("Red", "Green")
    }
    blue = np.arange(256, dtype=np.uint8)
    tables |= {"BluePaletteColorLookupTableData": blue.tobytes(), "PhotometricInterpretation": "PALETTE COLOR"}
    tables |= {f"{name}PaletteColorLookupTableDescriptor": [256, 0, 8] for name in ("Red", "Green", "Blue")}
    index = numbers(0, 255, "uint8")
    assert same(dicom(index, **tables), np.stack([numbers(0, 255, "uint8", (256,))[index]] * 2 + [index], -1)).is_colour


def test_what_has_several_frames_or_other_colours_is_refused():
    def said(data):
        with pytest.raises(DeepImageError) as error:
            read_samples(data)
        return str(error.value)

    frames = said(dicom(numbers(0, 9, shape=(40, 30)), Rows=20, NumberOfFrames=2))
    assert "2 frames: expected one a file" in frames
    assert "other colours" in said(dicom(numbers(0, 9), PhotometricInterpretation="HSV"))
    for syntax in (uid.HTJ2K, uid.MPEG2MPML):
        file, data = dcmread(io.BytesIO(dicom(numbers(0, 9)))), io.BytesIO()
        file.file_meta.TransferSyntaxUID = syntax
        file.PixelData = pydicom.encaps.encapsulate([b"\0" * 40])
        file.save_as(data)
        assert f"compressed as {syntax.name}: convert it" in said(data.getvalue())


def test_too_many_pixels_are_refused_before_they_are_decoded():
    side = min(65535, int(MAX_MEMORY**0.5) + 1)
    with pytest.raises(UnreadableImageError, match=f"{side} x {side} pixels"):
        read_samples(dicom(numbers(0, 9), Rows=side, Columns=side))


def test_a_deflated_file_is_inflated_within_bounds(monkeypatch):
    data = Path(get_testdata_file("image_dfl.dcm")).read_bytes()
    plain = read_samples(data).values
    assert np.array_equal(plain, expected_of(get_testdata_file("image_dfl.dcm")))
    monkeypatch.setattr("projects.Pixels.dicom.MAX_MEMORY", 10_000)
    with pytest.raises(UnreadableImageError, match="a deflated DICOM file of more than 0 MB: convert it"):
        read_samples(data)
    monkeypatch.undo()
    odd = bytearray(data)
    odd[HEAD + 8 : HEAD + 12] = (20).to_bytes(4, "little")  # another length of what says so
    with pytest.raises(UnreadableImageError):
        read_samples(bytes(odd))


def expected_of(path: str) -> np.ndarray | None:
    """By pydicom alone; None where it has no numbers of one frame."""
    file = dcmread(path)
    if "Rows" not in file or int(file.get("NumberOfFrames") or 1) > 1:
        return None
    stored = pixels.pixel_array(file)
    if file.PhotometricInterpretation == "PALETTE COLOR":
        return pixels.apply_color_lut(stored, file)
    if file.PhotometricInterpretation == "MONOCHROME1":  # turned round before the rescale
        low = -(2 ** (file.BitsStored - 1)) * file.PixelRepresentation
        stored = (2 * low + 2**file.BitsStored - 1 - stored.astype(np.int64)).astype(stored.dtype)
    return np.atleast_3d(pixels.apply_modality_lut(stored, file))


@pytest.mark.filterwarnings("ignore")
def test_the_files_of_pydicoms_own_tests_are_right_or_refused_in_one_line():
    read = refused = 0
    for path in filter(os.path.isfile, get_testdata_files()):
        data = Path(path).read_bytes()
        try:
            values = read_samples(data).values
        except UnreadableImageError as error:
            assert "\n" not in str(error), path
            refused += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    assert expected_of(path) is None, path
                except (AssertionError, KeyboardInterrupt):
                    raise
                except Exception:  # pydicom cannot read it either
                    continue
            continue
        read += 1
        np.testing.assert_allclose(values, expected_of(path), rtol=1e-6, err_msg=path)
    assert read >= 80 and refused >= 20


def test_a_patient_is_a_digest_and_no_name_is_said():
    one, other = dicom(numbers(0, 9)), dicom(numbers(5, 9), PatientID="P-18")
    assert patient_of(one) == hashlib.sha256(b"P-17").hexdigest()[:16]
    assert patient_of(one) == patient_of(dicom(numbers(5, 9))) != patient_of(other)
    with pytest.raises(DeepImageError, match="without a PatientID"):
        patient_of(dicom(numbers(0, 9), PatientID=""))


def test_damaged_files_are_read_or_refused_without_a_name_of_a_person(caplog, capfd):
    rng = random.Random(0)
    whole = [
        dicom(numbers(0, 4095), RescaleSlope="1", RescaleIntercept="-7"),
        dicom(numbers(0, 255, "uint8", (9, 9, 3))),
    ]
    whole += [Path(pydicom.data.get_testdata_file(name)).read_bytes() for name in ("MR_small_RLE.dcm", "JPEG2000.dcm")]
    whole += [Path(pydicom.data.get_testdata_file("JPEG-lossy.dcm")).read_bytes()]
    read = 0
    for case in range(CASES):
        data = spoil_bytes(whole[case % len(whole)], rng)
        try:
            assert read_samples(data).values.ndim == 3
            read += 1
        except UnreadableImageError as error:
            assert "Doe" not in str(error)
    assert read > CASES // 20
    assert "Doe" not in caplog.text and "Doe" not in "".join(capfd.readouterr())


def write(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def files_in(folder: Path) -> list[str]:
    return [str(Path(record["file_name"]).relative_to(folder)) for record in load_folder(folder)]


def test_localisers_captures_and_directories_are_left_out_unless_all_are_such(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    capture, localiser = (
        dicom(numbers(0, 9), CAPTURE),
        dicom(numbers(0, 9), ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]),
    )
    assert kind_of(capture[:4096]) == "secondary captures" and kind_of(localiser[:4096]) == "localisers"
    assert kind_of(dicom(numbers(0, 9))) == kind_of(dicom(numbers(0, 9), ENDOSCOPE)) == ""
    for n in range(2):
        write(tmp_path / f"c{n}.dcm", capture)
    write(tmp_path / "DICOMDIR.dcm", dicom(numbers(0, 9), uid.MediaStorageDirectoryStorage))
    assert files_in(tmp_path) == ["c0.dcm", "c1.dcm"] and not caplog.text
    write(tmp_path / "a/one.DCM", dicom(numbers(0, 9)))
    write(tmp_path / "localiser.dcm", localiser)
    assert files_in(tmp_path) == ["a/one.DCM"]
    assert "of 4 DICOM files, 1 localisers and 2 secondary captures are left out" in caplog.text


def test_files_without_pixels_are_no_images(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    others = [uid.BasicTextSRStorage, uid.RTStructureSetStorage, uid.RTPlanStorage, uid.EncapsulatedPDFStorage]
    others += [uid.GrayscaleSoftcopyPresentationStateStorage, uid.KeyObjectSelectionDocumentStorage]
    images = [uid.RTDoseStorage, uid.SegmentationStorage, uid.RTImageStorage, CT]
    for name, storages in (("other", others), ("image", images)):
        for number, storage in enumerate(storages):
            write(tmp_path / f"{name}{number}.dcm", dicom(numbers(0, 9), storage))
    assert files_in(tmp_path) == [f"image{number}.dcm" for number in range(4)]
    assert "of 10 DICOM files, 6 without pixels are left out" in caplog.text
    for number in range(4):
        (tmp_path / f"image{number}.dcm").unlink()
    refused("no images in", files_in, tmp_path)


def test_files_of_other_names_are_dicom_where_a_folder_has_nothing_else(tmp_path):
    write(tmp_path / "IM0001", dicom(numbers(0, 9)))
    write(tmp_path / "1.2.840.17", dicom(numbers(0, 9)))
    write(tmp_path / "DICOMDIR", dicom(numbers(0, 9), uid.MediaStorageDirectoryStorage))
    write(tmp_path / "notes.txt", b"no image")
    assert files_in(tmp_path) == ["1.2.840.17", "IM0001"]
    write(tmp_path / "more/a.dcm", dicom(numbers(0, 9)))
    assert files_in(tmp_path) == ["more/a.dcm"]


def test_arrays_are_images_where_a_folder_has_no_others(tmp_path):
    for name in ("a.npy", "b/c.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / name, np.zeros((4, 5)))
    np.savez(tmp_path / "d.npz", np.zeros((4, 5)))
    assert files_in(tmp_path) == ["a.npy", "b/c.npy", "d.npz"]
    assert read_size(tmp_path / "a.npy") == read_size(tmp_path / "d.npz") == {"height": 4, "width": 5}
    write(tmp_path / "e.dcm", dicom(numbers(0, 9)))
    assert files_in(tmp_path) == ["e.dcm"] and read_size(tmp_path / "e.dcm") == {"height": 20, "width": 30}
    (tmp_path / "e.dcm").rename(tmp_path / "photograph.png")
    assert files_in(tmp_path) == ["photograph.png"]


def test_without_pydicom_files_are_counted_and_one_line_says_what_to_install(tmp_path, monkeypatch):
    data = dicom(numbers(0, 9))
    path = write(tmp_path / "a.dcm", data)
    monkeypatch.setattr("projects.Pixels.dicom.pydicom", None)
    assert "1 .dcm, which are not read" in refusal(load_folder, tmp_path)
    assert "revisit-detectron2[dicom]" in refusal(read_size, path)
    with pytest.raises(DeepImageError, match=r"pip install 'revisit-detectron2\[dicom\]'"):
        read_samples(data)
    monkeypatch.setattr("projects.Pixels.tiff.tifffile", None)
    with pytest.raises(DeepImageError, match=r"pip install 'revisit-detectron2\[tiff\]'"):
        read_samples(b"II*\0")


def test_images_of_a_patient_are_a_group(tmp_path):
    for name, patient in (("a", "P-17"), ("b", "P-18"), ("c", "P-17")):
        write(tmp_path / f"{name}.dcm", dicom(numbers(0, 9), PatientID=patient))
    one, other, again = numbered_groups("patient", load_folder(tmp_path))
    assert kept_together(load_folder(tmp_path), [("patient", "")]).groups.tolist() == [0, 1, 0]
    assert one == again != other
    path = write(tmp_path / "d.dcm", dicom(numbers(0, 9), PatientID=""))
    said = refusal(numbered_groups, "patient", load_folder(tmp_path))
    assert f"NEIGHBORS.GROUPS patient: {path}: a DICOM file without a PatientID" in said


def test_a_file_that_begins_as_a_tiff_too_has_the_size_of_its_dicom_image():
    (file,) = get_testdata_files("CT_small.dcm")
    assert Path(file).read_bytes()[:4] == b"II*\0"
    assert read_size(file) == {"height": 128, "width": 128}
