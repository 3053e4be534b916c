"""Shards: the same bytes, each image once, whoever reads; damage is named."""

import io
import os
import shutil
import tarfile
from functools import partial
from itertools import islice
from tarfile import CHRTYPE, FIFOTYPE, LNKTYPE, SYMTYPE

import cv2
import fsspec
import numpy as np
import pytest
import torch
from commands import run
from fsspec.implementations.memory import MemoryFileSystem
from tiny import tiny_config
from trees import pack, refusal, touch, write

from projects.LargeData import shards as shards_module
from projects.LargeData.places import Folder, place_of
from projects.LargeData.shards import load_shards, write_index
from revisit.data.images.image_bytes import read_sample
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import UnreadableImageError, read_image, read_record
from revisit.data.loading.loader import ResumableLoader
from revisit.data.sources.catalog import get_records
from revisit.data.sources.image_folders import load_class_folders
from revisit.jobs.processes import HERE

from detectron2.utils import comm

NUM_IMAGES = 22
COMMAND = "python tools/make_shards.py --data {data} --output {shards} --count 5"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """22 small JPEGs of random sizes in three class folders."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for n in range(NUM_IMAGES):
        _, jpeg = cv2.imencode(".jpg", rng.integers(0, 256, (*rng.integers(8, 40, 2), 3), np.uint8))
        write(root / f"class{n % 3}/{n:02d}.jpg", jpeg.tobytes())
    return root


@pytest.fixture(scope="module")
def made(images, tmp_path_factory):
    """The shards of ``images`` and what the command said."""
    folder = tmp_path_factory.mktemp("shards")
    return folder, run(COMMAND.format(data=f"class_folders:{images}", shards=folder), folder)


@pytest.fixture
def shards(made, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(made[0], tmp_path / "shards")


def samples_of(place):
    return [read_sample(record) for record in load_shards(str(place)).records]


def test_shards_hold_the_bytes_and_classes_of_their_files(images, made):
    folder, text = made
    assert f"{NUM_IMAGES} images in 5 shards" in text
    records, originals = load_shards(str(folder)).records, load_class_folders(images)
    assert len({(r["file_name"], r["offset"]) for r in records}) == NUM_IMAGES
    for record, original in zip(records, originals, strict=True):
        with open(original["file_name"], "rb") as file:
            assert read_sample(record) == file.read()
        assert record["label"] == original["label"]
        assert np.array_equal(read_record(record, PHOTOGRAPHS), read_image(original["file_name"]))
    with tarfile.open(folder / "shard-000001.tar") as tar:  # what WebDataset reads
        assert tar.getnames() == [f"{n:09d}.{suffix}" for n in range(5, 10) for suffix in ("jpg", "cls")]


def test_shards_know_the_names_of_their_classes(images, made, shards):
    """So that a kNN with a bank in another order of classes compares the same ones; index.npz made again, too."""
    pack(f"--output {shards}")
    for place in (made[0], shards):
        classes = load_shards(str(place)).metadata["thing_classes"]
        assert classes == ["class0", "class1", "class2"] and {type(name) for name in classes} == {str}
    records = get_records(f"shards:{shards}", ("class2", "class0", "class1"))
    expected = {"class0": 1, "class1": 2, "class2": 0}
    originals = load_class_folders(images)
    names = [str(original["file_name"]).rpartition("/")[0].rpartition("/")[2] for original in originals]
    assert [record["label"] for record in records] == [expected[name] for name in names]


def test_an_interrupted_call_goes_on_and_gives_the_same_bytes(images, made, shards):
    kept = (shards / "shard-000000.tar").stat().st_mtime_ns
    for name in ("shard-000002.tar", "shard-000004.tar", "index.npz"):
        (shards / name).unlink()
    write(shards / "shard-000002.tar.tmp", b"torn")
    run(COMMAND.format(data=f"class_folders:{images}", shards=shards), shards)
    assert (shards / "shard-000000.tar").stat().st_mtime_ns == kept
    for path in made[0].glob("*.tar"):
        assert path.read_bytes() == (shards / path.name).read_bytes()
    moved = [
        {**r, "file_name": r["file_name"].replace(str(made[0]), str(shards))} for r in load_shards(str(made[0])).records
    ]
    assert list(load_shards(str(shards)).records) == moved


def test_of_two_commands_that_begin_in_one_folder_one_is_refused(images, tmp_path):
    """Each found an empty folder, and both wrote shard-000000.tar and those after it."""
    options = f"--data class_folders:{images} --output {tmp_path}/out --count 5"
    (tmp_path / "out").mkdir()
    with HERE.in_charge(tmp_path / "out/.in_charge"):
        assert "another command works in" in refusal(pack, options)
        assert not list((tmp_path / "out").glob("*.tar")) and not (tmp_path / "out/shards.json").exists()
    pack(options)
    assert not (tmp_path / "out/.in_charge").exists()


def test_shards_of_other_images_are_not_added_to(images, tmp_path):
    shutil.copytree(images, tmp_path / "images")
    words = f"--data class_folders:{tmp_path}/images --output {tmp_path}/out --count 5"
    pack(words)
    file = min((tmp_path / "images").rglob("*.*"))
    file.write_bytes(file.read_bytes() + b"more")
    assert "files' sizes" in refusal(pack, words)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("class_folders:{images} --output {shards} --count 7", "--count"),
        ("class_folders:{images} --output {root}/theirs", "tar files of somebody else"),
        ("shards:{shards} --output {root}/s", "in shards already"),
        ("toy_voc_test --output {root}/s", "annotations"),
        ("list:{root}/list.txt --output {root}/s", "a.tga"),
    ],
)
def test_what_shards_cannot_hold_is_refused(images, shards, toy_datasets, tmp_path, words, named):
    write(tmp_path / "list.txt", ["a.tga"])
    touch(tmp_path / "a.tga", tmp_path / "theirs/shard-000000.tar")
    assert named in refusal(pack, f"--data {words.format(images=images, shards=shards, root=tmp_path)}")


@pytest.fixture
def photos(images, tmp_path):
    """A folder that is itself a link, with a link to one of its images, links out of it, and what is no image."""
    root = tmp_path / "photos"
    shutil.copytree(images, root)
    (root / "class0/inside.jpg").symlink_to("00.jpg")
    (root / "class0/outside.jpg").symlink_to(images / "class0/00.jpg")
    (root / "class0/secret.jpg").symlink_to("/etc/passwd")
    (root / "others").symlink_to(images / "class1")
    write(root / "class0/text.jpg", b"root:x:0:0")
    write(root / "class0/torn.jpg", (root / "class0/03.jpg").read_bytes()[:-20])
    (tmp_path / "link").symlink_to(root)
    return tmp_path / "link"


def test_links_out_of_the_folder_and_what_is_no_whole_image_are_left_out_and_counted(photos, tmp_path, capsys, caplog):
    count = NUM_IMAGES + 1  # and the link inside
    for number, name in enumerate((f"folder:{photos}", f"folder:{photos.resolve()}", f"folder:{photos}/")):
        caplog.clear()
        pack(f"--data {name} --output {tmp_path}/out{number}")
        said = [record.getMessage() for record in caplog.records]
        assert [line for line in said if f"left out {2 + len(list((photos / 'others').iterdir()))} of " in line]
        assert [line for line in said if "left out 2 of 25 files, which are no whole images" in line]
        assert f"{count} images in 1 shards; 2 files of {count + 2} were no whole images" in capsys.readouterr().out
        packed = {read_sample(record) for record in load_shards(f"{tmp_path}/out{number}").records}
        assert not any(b"root:" in data for data in packed)


def test_links_in_a_list_are_named_by_their_targets(photos, tmp_path, capsys):
    write(tmp_path / "list.txt", [f"{photos}/class0/outside.jpg", f"{photos}/class0/inside.jpg"])
    pack(f"--data list:{tmp_path}/list.txt --output {tmp_path}/out")
    assert "1 images in 1 shards\n" in capsys.readouterr().out
    write(tmp_path / "list.txt", [f"{photos}/class0/outside.jpg"])
    message = refusal(pack, f"--data list:{tmp_path}/list.txt --output {tmp_path}/other")
    assert "left out 1 of 1 images, links out" in message and "name that folder itself, or in a list" in message


class Silent(MemoryFileSystem):
    """A server that lists nothing and sends what it is asked for."""

    protocol = "silent"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("silent://", "memory://"))

    def ls(self, path, detail=True, **options):
        raise PermissionError(path)


def test_shards_lie_at_a_url_whose_server_need_not_list_its_files(made):
    fsspec.register_implementation("silent", Silent, clobber=True)
    fsspec.filesystem("memory").put(f"{made[0]}/", "/listless/", recursive=True)
    for url in ("memory://listless", "silent://listless"):
        records = get_records(f"shards:{url}")
        assert records[0]["file_name"].startswith(f"{url}/shard-")
        assert [read_sample(record) for record in records] == samples_of(made[0])


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_from_shards_is_the_run_from_files(made, images, monkeypatch, world_size, workers):
    """The same batches for 3 epochs: which of 1 to 8 readers reads what of 5 shards does not depend on the shards."""
    monkeypatch.setattr(comm, "get_world_size", lambda: world_size)
    options = ("DATALOADER.NUM_WORKERS", workers, "VIEWS.NUM_SMALL", 0)
    files, shards = (
        ResumableLoader(tiny_config("DATASETS.TRAIN", (name,), *options))
        for name in (f"class_folders:{images}", f"shards:{made[0]}")
    )
    for rank in range(world_size):
        monkeypatch.setattr(comm, "get_rank", lambda rank=rank: rank)
        for one, other in islice(zip(files, shards, strict=False), 6):
            assert len(one["anchor"]) == 8 // world_size
            assert all(torch.equal(one[name], other[name]) for name in ("anchor", "positive", "label"))


def write_tar(path, *members):
    """Files by name and content; what has a type for content is a link or a device."""
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            if isinstance(data, bytes):
                member.size = len(data)
            else:
                (member.type,), member.linkname = data, "/etc/passwd"
            tar.addfile(member, io.BytesIO(data) if member.size else None)


def test_names_with_dots_are_images_and_further_parts_of_a_sample_are_left_out_with_a_line(tmp_path, caplog):
    photographs = ["2026-06-01 12.30.45.jpg", "2026-06-01 12.31.00.jpg", "PXL_1.MP.jpg", "a.b/x.y.png", "a.b/z.png"]
    named = [(name, name.encode()) for name in photographs]
    classes = [(f"{name.rpartition('.')[0]}.cls", str(n).encode()) for n, name in enumerate(photographs)]
    write_tar(tmp_path / "a.tar", *named, *classes, ("a.b/z.seg.png", b"mask"), ("a.b/z.left.png", b"other"))
    write_index(Folder(tmp_path), ["a.tar"])
    assert samples_of(tmp_path) == [name.encode() for name in photographs]
    assert [record["label"] for record in load_shards(str(tmp_path)).records] == [*range(len(photographs))]
    (line,) = (record.getMessage() for record in caplog.records)
    assert "a.tar: left out 2 images such as a.b/z.seg.png: further parts of a sample" in line


def test_what_a_mac_adds_to_an_archive_and_to_a_disk_is_neither_an_image_nor_a_shard(tmp_path):
    added = [(f"{folder}._{n}.jpg", b"resource fork") for folder in ("", "x/", "__MACOSX/") for n in (1, 2)]
    write_tar(tmp_path / "a.tar", *added, ("1.jpg", b"one"), ("1.cls", b"0"), ("x/2.jpg", b"two"), ("x/2.cls", b"1"))
    write(tmp_path / "._a.tar", b"resource fork")
    run(f"python tools/make_shards.py --output {tmp_path}", tmp_path)
    assert samples_of(tmp_path) == [b"one", b"two"]


def test_links_within_a_tar_file_are_the_images_that_they_lead_to(tmp_path, caplog):
    (tmp_path / "x").mkdir()
    write(tmp_path / "x/1.png", b"one")
    (tmp_path / "x/2.png").symlink_to("1.png")
    (tmp_path / "3.png").symlink_to("x/2.png")
    (tmp_path / "4.png").hardlink_to(tmp_path / "x/1.png")
    (tmp_path / "5.png").symlink_to("5.png")
    (tmp_path / "6.png").symlink_to("../6.png")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("x/1.png", "x/2.png", "3.png", "4.png", "5.png", "6.png"):
            tar.add(tmp_path / name, name)
    write_index(Folder(tmp_path), ["a.tar"])
    assert samples_of(tmp_path) == [b"one"] * 4
    assert "left out 2 images such as 5.png" in caplog.text and "links to no file" in caplog.text


def test_links_within_a_tar_file_of_a_folder_itself_are_images_too(tmp_path, caplog):
    """As ``tar -cf a.tar .`` names its members."""
    write(tmp_path / "1.png", b"one")
    (tmp_path / "2.png").symlink_to("1.png")
    (tmp_path / "3.png").hardlink_to(tmp_path / "1.png")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("1.png", "2.png", "3.png"):
            tar.add(tmp_path / name, f"./{name}")
    write_index(Folder(tmp_path), ["a.tar"])
    assert samples_of(tmp_path) == [b"one"] * 3 and "left out" not in caplog.text


def test_tar_files_of_others_are_indexed(tmp_path):
    """Folders in names, members that are no images, no classes."""
    members = ("x/1.png", b"one"), ("x/1.json", b"{}"), ("x/1.left.png", b"no"), ("y/1.JPEG", b"two!")
    write_tar(tmp_path / "a.tar", *members)
    run(f"python tools/make_shards.py --output {tmp_path}", tmp_path)
    assert samples_of(tmp_path) == [b"one", b"two!"] and "label" not in load_shards(str(tmp_path)).records[0]


@pytest.mark.parametrize("place", ["{}", "memory://noted"])
def test_a_tar_file_that_is_replaced_by_one_of_its_size_is_indexed_again(tmp_path, monkeypatch, place):
    """After an interrupted call, which has noted what it had indexed."""
    monkeypatch.setattr(shards_module, "NOTED", 1)
    place = place_of(place.format(tmp_path))

    def put(name: str, label: bytes) -> None:
        write_tar(tmp_path / name, ("1.png", b"one"), ("1.cls", label))
        if not place.folder:
            with place.written(name) as temporary:
                shutil.copy(tmp_path / name, temporary)

    put("a.tar", b"1")
    put("b.tar", b"cat")
    assert "b.tar: the class of 1 is 'cat'" in refusal(write_index, place, ["a.tar", "b.tar"])
    put("a.tar", b"2")
    put("b.tar", b"3")
    assert write_index(place, ["a.tar", "b.tar"]).label.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ([("1.jpg", b""), ("1.png", b"")], "two images called 1"),
        *(([("1.png", b"one"), ("1.cls", text.encode())], f"'{text}'") for text in ("cat", "", "-1", "1_0", "\u0663")),
        ([("1.png", b"one"), ("1.cls", b"3"), ("2.png", b"two")], "1 of 2 images"),
        ([("1.png", b"one"), ("1.cls", b"x" * 10_000_000)], "'xxx"),
        ([("1.txt", b"one")], "no image"),
        *(([("1.jpg", [kind])], "no image") for kind in (SYMTYPE, LNKTYPE, CHRTYPE, FIFOTYPE)),
    ],
)
def test_what_cannot_be_indexed_is_named(tmp_path, members, named):
    write_tar(tmp_path / "a.tar", *members)
    line = refusal(write_index, Folder(tmp_path), ["a.tar"])
    assert named in line and "a.tar" in line and len(line) < 300


def test_a_tar_file_that_leaves_out_zeros_of_its_images_is_not_indexed(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("1.png")
        member.size, member.pax_headers = 1024, {"GNU.sparse.map": "0,512,2000,512", "GNU.sparse.size": "2512"}
        tar.addfile(member, io.BytesIO(b"x" * 1024))
    line = refusal(write_index, Folder(tmp_path), ["a.tar"])
    assert "a.tar has 1.png without the zeros in it" in line and "again without --sparse" in line


def test_a_tar_file_without_images_is_named_and_the_others_are_indexed(tmp_path, caplog):
    """Such as a shard all of whose files were damaged."""
    write_tar(tmp_path / "a.tar")
    write_tar(tmp_path / "b.tar", ("1.png", b"one"), ("2.png", b"two!"))
    index = write_index(Folder(tmp_path), ["a.tar", "b.tar"])
    assert index.shard.tolist() == [1, 1] and index.size.tolist() == [3, 4]
    assert "a.tar has no image" in caplog.text and "b.tar has" not in caplog.text
    assert samples_of(tmp_path) == [b"one", b"two!"]


def test_names_that_lead_out_of_the_folder_write_nothing(tmp_path):
    folder = tmp_path / "inner/shards"
    folder.mkdir(parents=True)
    outside = ["../../owned.jpg", f"{tmp_path}/owned2.jpg", "a/../../../owned3.jpg"]
    write_tar(folder / "a.tar", *((name, b"pixels") for name in outside))
    write_index(Folder(folder), ["a.tar"])
    assert samples_of(folder) == [b"pixels"] * 3
    assert {path.name for path in tmp_path.rglob("*")} == {"inner", "shards", "a.tar", "index.npz"}


def cut(name, size, shards):
    write(shards / name, (shards / name).read_bytes()[:size])


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (partial(cut, "shard-000002.tar", -700), "shard-000002.tar"),
        (lambda shards: (shards / "shard-000003.tar").unlink(), "shard-000003.tar"),
        (lambda shards: touch(shards / "b.tar"), "b.tar"),
        (partial(cut, "index.npz", 100), "shards/index.npz"),
        (lambda shards: (shards / "index.npz").unlink(), "shards/index.npz"),
    ],
)
def test_damage_is_named_when_shards_are_opened(shards, damage, named):
    damage(shards)
    assert named in refusal(load_shards, str(shards))
    assert "nowhere://bucket" in refusal(load_shards, "nowhere://bucket")


def test_an_index_that_is_older_than_a_class_of_its_shards_is_refused(shards):
    """Of as many bytes; a copy, which is newer too, is as good as the shard."""
    path = shards / "shard-000003.tar"
    content = path.read_bytes()
    write(path, content)
    before = [record["label"] for record in load_shards(str(shards)).records]
    with tarfile.open(path) as tar:
        place = next(member.offset_data for member in tar if member.name.endswith(".cls"))
    write(path, content[:place] + b"1" + content[place + 1 :])
    assert "shard-000003.tar has changed since index.npz was made" in refusal(load_shards, str(shards))
    pack(f"--output {shards}")
    after = [record["label"] for record in load_shards(str(shards)).records]
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_the_newest_shards_of_a_copy_are_compared_with_its_index_once(shards, tmp_path, monkeypatch):
    copy, read = tmp_path / "copy", []
    shutil.copytree(shards, copy)
    for path in copy.glob("*.tar"):
        os.utime(path, (2e9, 2e9))
    index_shard = shards_module.index_shard
    monkeypatch.setattr(shards_module, "index_shard", lambda *names: read.append(names) or index_shard(*names))
    for _ in range(2):
        load_shards(str(copy))
    assert len(read) == shards_module.NEWEST
    os.utime(copy / "shard-000000.tar", (2e9 + 1, 2e9 + 1))
    load_shards(str(copy))
    assert len(read) == 2 * shards_module.NEWEST
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")  # where nothing can be written
    load_shards(str(copy))


def test_an_index_of_other_shards_is_found_out_by_the_first_image(shards):
    """Same name, same size: only the headers tell."""
    records = load_shards(str(shards)).records
    path = shards / "shard-000000.tar"
    whole = path.read_bytes()
    start = records[0]["offset"] - 512 + 124
    for record, data in (
        (records[0], whole[:start] + b"0" * 12 + whole[start + 12 :]),
        (records[1] | {"size": records[1]["size"] - 1}, whole),
        (records[1], whole[:600]),
    ):
        write(path, data)
        with pytest.raises(UnreadableImageError, match=f"shard-000000.tar, byte {record['offset']}: "):
            read_sample(record)


def test_a_truncated_tar_is_not_indexed(shards):
    path = shards / "shard-000001.tar"
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    for length in (700, last.offset + 100, last.offset_data, last.offset_data + 512, 0):
        write(path, whole[:length])
        assert "shard-000001.tar" in refusal(write_index, Folder(shards), list(Folder(shards).states()))


@pytest.mark.parametrize("wrong", ["compressed", "of int8"])
def test_an_index_that_would_take_more_memory_than_its_bytes_is_refused(shards, wrong):
    """200 kB of it would become 80 MB of arrays."""
    path = shards / "index.npz"
    with np.load(path) as arrays:
        fields = dict(arrays)
    dtype = np.int8 if wrong == "of int8" else np.int64
    zeros = {name: np.zeros(2 * 10**6, dtype) for name in ("shard", "offset", "size", "label")}
    (np.savez_compressed if wrong == "compressed" else np.savez)(path, **fields | zeros)
    expected = "compressed" if wrong == "compressed" else "label of another type than int32 and int64"
    assert expected in refusal(load_shards, str(shards))
