"""Which files of a folder are images, which are said to be left out, and which are neither."""

import ast
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from commands import ROOT
from deep import shallow_picture
from PIL import Image, features
from trees import refusal, touch

from projects.Reports.page import Album
from revisit.data.images.opening import FORMATS, formats_of_plugins
from revisit.data.images.reader import UnreadableImageError, read_image, read_size
from revisit.data.sources.image_folders import class_folders, load_class_folders, load_folder, load_list
from revisit.data.sources.labels import read_ids


def names(records):
    return [record["file_name"].rpartition("/")[2] for record in records]


def test_hidden_files_and_what_a_mac_adds_are_no_images(tmp_path, caplog):
    touch(tmp_path / "a.jpg", tmp_path / "._a.jpg", tmp_path / ".hidden.png", tmp_path / "__MACOSX/a.jpg")
    touch(tmp_path / ".thumbnails/a.png", tmp_path / "sub/b.PNG", tmp_path / "notes.txt")
    assert names(load_folder(tmp_path)) == ["a.jpg", "b.PNG"]
    assert not caplog.messages
    root = tmp_path / ".cache/photos"  # what the user names may be hidden
    touch(root / "cat/c.jpg", root / "__MACOSX/cat/c.jpg", root / ".ipynb_checkpoints/c.jpg")
    assert [record["label"] for record in load_class_folders(root)] == [0]


@pytest.mark.parametrize(
    "folder", ["@eaDir", "#recycle", "@Recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found", "RECYCLER"]
)
def test_folders_of_systems_are_neither_images_nor_classes(folder, tmp_path):
    touch(tmp_path / "cat/a.jpg", tmp_path / folder / "b.jpg", tmp_path / "cat" / folder / "a.jpg/thumb.jpg")
    assert names(load_folder(tmp_path)) == ["a.jpg"] and class_folders(tmp_path) == ("cat",)


def test_a_list_that_names_an_image_again_says_so(tmp_path, caplog):
    touch(tmp_path / "a.jpg", tmp_path / "b.jpg")
    (tmp_path / "list.txt").write_text("a.jpg\nb.jpg\na.jpg\na.jpg\n")
    assert len(load_list(tmp_path / "list.txt")) == 4
    (message,) = caplog.messages
    assert "list.txt: 2 of 4 lines name an image again, such as a.jpg: it counts as often" in message


def test_formats_that_cannot_be_read_are_counted_in_one_warning(tmp_path, caplog):
    for label in ("cat", "dog"):
        touch(*(tmp_path / label / name for name in ("a.jpg", "b.JP2", "c.jp2", "d.dng", "e.txt")))
    assert len(load_folder(tmp_path)) == len(load_class_folders(tmp_path)) == len(load_folder(tmp_path)) == 2
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path}: left out 2 .dng and 4 .jp2,")
    touch(tmp_path / "raw/a.jp2", tmp_path / "raw/b.nef")
    assert "1 .jp2 and 1 .nef" in refusal(load_folder, tmp_path / "raw")


def test_the_plugin_of_pil_is_used_where_it_is_installed(monkeypatch):
    registered, avif = [], {"AVIF"} if "avif" in features.get_supported() else set()
    plugin = SimpleNamespace(register_heif_opener=lambda: registered.append("heif"))
    for module, formats in ((plugin, {"HEIF"}), (None, set())):  # None as if it were not installed
        monkeypatch.setitem(sys.modules, "pillow_heif", module)
        assert set(formats_of_plugins()) == avif | formats and registered == ["heif"]


def test_a_pillow_that_does_not_know_avif_is_asked_without_a_warning(monkeypatch):
    monkeypatch.delitem(features.modules, "avif", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "AVIF" not in formats_of_plugins()


@pytest.mark.skipif("avif" not in features.get_supported(), reason="this Pillow reads no AVIF")
def test_avif_is_read_whole_or_refused(tmp_path):
    picture, path = shallow_picture(), tmp_path / "a.avif"
    Image.fromarray(picture).save(path, quality=95)
    assert np.abs(read_image(path).astype(int) - picture).mean() < 5
    assert names(load_folder(tmp_path)) == ["a.avif"]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UnreadableImageError, match=r"a\.avif"):
        read_image(path)


def test_pil_opens_files_in_one_place_alone():
    """Elsewhere it would try all its formats, of which one starts Ghostscript."""
    callers = set()
    for path in (p for room in ("revisit", "projects", "tools", "datasets") for p in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            opens = isinstance(node, ast.Attribute) and node.attr == "open"
            from_there = isinstance(node, ast.ImportFrom) and node.module == "PIL.Image"
            named = isinstance(node, ast.Import) and any(
                each.name == "PIL.Image" and each.asname for each in node.names
            )
            if (opens and ast.unparse(node.value).endswith("Image")) or from_there or named:
                callers.add(str(path.relative_to(ROOT)))
    assert callers == {"revisit/data/images/opening.py"}
    assert "EPS" not in FORMATS and "Image.open" not in (ROOT / "notebooks/own_images.ipynb").read_text()


def test_a_postscript_file_called_jpg_never_reaches_a_program(tmp_path, monkeypatch):
    monkeypatch.setattr("PIL.EpsImagePlugin.EpsImageFile._open", lambda self: pytest.fail("PIL opens PostScript"))
    path = tmp_path / "a.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(UnreadableImageError, match=r"a\.jpg: none of JPEG, PNG"):
        read_image(path)
    for read in (read_size, read_ids):
        assert "a.jpg" in refusal(read, path)
    assert "none of JPEG" in Album(10**6).embed(path, "").problem


def test_files_that_are_images_where_they_are_alone_are_counted_next_to_others(tmp_path, caplog):
    for folder in ("of_both", "alone"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "a.npy", shallow_picture())
    Image.fromarray(shallow_picture()).save(tmp_path / "of_both/b.png")
    (tmp_path / "of_both/c.jp2").touch()
    assert names(load_folder(tmp_path / "of_both")) == ["b.png"] and names(load_folder(tmp_path / "alone")) == ["a.npy"]
    (message,) = caplog.messages
    assert "left out 1 .jp2, which are not read" in message
    assert "; 1 .npy, which are images only where a folder has no others" in message


def test_names_that_end_in_numbers_are_of_one_format(tmp_path, caplog):
    Image.fromarray(shallow_picture()).save(tmp_path / "a.png")
    for number in range(12):
        Image.fromarray(shallow_picture()).save(tmp_path / f"1.2.840.{number}", "PNG")
    assert names(load_folder(tmp_path)) == ["a.png"]
    (message,) = caplog.messages
    assert "left out 12 without a suffix, which" in message


def test_suffixes_of_cameras_and_browsers_are_read_and_others_are_counted(tmp_path, caplog):
    for name in ("a.jfif", "b.JPE", "c.mpo", "d.jif"):
        Image.fromarray(shallow_picture()).save(tmp_path / name, "JPEG")
    Image.fromarray(shallow_picture()).save(tmp_path / "e.tga")
    for name in ("photo", "other", "x.image"):  # JPEGs under names that say nothing
        (tmp_path / name).write_bytes((tmp_path / "a.jfif").read_bytes())
    touch(tmp_path / "notes", tmp_path / "y.txt")
    records = load_folder(tmp_path)
    assert names(records) == ["a.jfif", "b.JPE", "c.mpo", "d.jif"]
    assert all(read_image(record["file_name"]).shape == shallow_picture().shape for record in records)
    assert "left out 1 .image and 1 .tga and" in caplog.text and "3 without a suffix" in caplog.text
