"""Tar files of strangers: read in their places, never unpacked."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from revisit.data.reader import read_sample
from revisit.data.shards import INDEX, load_shards, write_index
from revisit.errors import UserError


def write_tar(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_names_that_lead_out_of_the_folder_write_nothing(tmp_path):
    folder = tmp_path / "inner" / "shards"
    folder.mkdir(parents=True)
    outside = ["../../owned.jpg", f"{tmp_path}/owned2.jpg", "a/../../../owned3.jpg"]
    write_index(folder, [write_tar(folder / "a.tar", *((name, b"pixels") for name in outside))])
    assert [read_sample(record) for record in load_shards(str(folder))] == [b"pixels"] * 3
    assert {path.name for path in tmp_path.rglob("*")} == {"inner", "shards", "a.tar", INDEX}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_no_images(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("1.jpg")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(UserError, match="has no image"):
        write_index(tmp_path, [tmp_path / "a.tar"])


def test_a_class_of_any_length_takes_no_memory(tmp_path):
    write_tar(tmp_path / "a.tar", ("1.jpg", b"pixels"), ("1.cls", b"x" * 10_000_000))
    with pytest.raises(UserError, match="the class of 1 is no number") as error:
        write_index(tmp_path, [tmp_path / "a.tar"])
    assert len(str(error.value)) < 300


def test_an_index_that_unpacks_to_any_size_is_refused(tmp_path):
    write_index(tmp_path, [write_tar(tmp_path / "a.tar", ("1.jpg", b"pixels"))])
    with np.load(tmp_path / INDEX) as arrays:
        content = dict(arrays)
    with open(tmp_path / INDEX, "wb") as file:
        np.savez_compressed(file, **content)
    assert zipfile.ZipFile(tmp_path / INDEX).infolist()[0].compress_type == zipfile.ZIP_DEFLATED
    with pytest.raises(UserError, match="it is compressed"):
        load_shards(str(tmp_path))
