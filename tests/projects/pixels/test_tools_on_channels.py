"""Tools around training on PNGs of 16 bits and on TIFFs of five channels, by weights of photographs and of these
channels: each sheet shows something."""

import base64
import io
import json
import re

import cv2
import numpy as np
import pytest
import tifffile
import torch
from checkpoints import run_checkpoint, write_converted
from commands import run
from PIL import Image
from trees import pack, refusal

from projects.Labels.near_copies import alike_images
from projects.LargeData.shards import _keys_of
from projects.Rows.row_table import load_table
from revisit.api import embed, load_backbone
from revisit.checkpoint.stem import stem_for
from revisit.data.images.deep_images import format_of
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import read_record
from revisit.data.sources.catalog import get_records
from revisit.network.network import load_network

NAMES = ["red", "green", "blue", "nir", "swir"]
SEEN = ("INPUT.CHANNELS", NAMES, "INPUT.RANGE", [[0.0, 4096.0]], "VIEWS.POLICY", "channels")
SEEN += ("MODEL.PIXEL_MEAN", [90.0, 90.0, 90.0, 90.0, 90.0], "MODEL.PIXEL_STD", [50.0, 50.0, 50.0, 50.0, 50.0])
VISIBLE = 12  # grey levels, the deviation in every picture of a sheet
SIDE = 96  # px
KINDS = ("png", "tif")


def scene(number, channels):
    """(SIDE, SIDE, channels) uint16 of 0 to 4095: discs on a darker ground."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[:SIDE, :SIDE]
    image = np.full((SIDE, SIDE, channels), 0.2) + rng.normal(0, 0.02, (SIDE, SIDE, channels))
    for _ in range(3):
        (row, column), radius = rng.uniform(20, SIDE - 20, 2), rng.uniform(8, 18)
        image[(y - row) ** 2 + (x - column) ** 2 < radius**2] = rng.uniform(0.3, 1, channels)
    return (image.clip(0, 1) * 4095).astype(np.uint16)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder with folders of eight images, and boxes in them."""
    folder = tmp_path_factory.mktemp("images")
    for kind in KINDS:
        (folder / kind).mkdir()
        named = [f"{number:02d}.{kind}" for number in range(8)]
        for number, name in enumerate(named):
            if kind == "png":
                cv2.imwrite(str(folder / kind / name), scene(number, 3))
            else:
                tags = {"photometric": "minisblack", "planarconfig": "contig"}
                tifffile.imwrite(folder / kind / name, scene(number, 5), **tags)
        images = [{"id": n, "file_name": name, "height": SIDE, "width": SIDE} for n, name in enumerate(named)]
        boxes = [
            {"id": n + 1, "image_id": n // 2, "category_id": 1 + (n % 3 == 0), "area": 900, "iscrowd": 0}
            | {"bbox": [10 + 30 * (n % 2), 20, 30, 30 + n]}
            for n in range(16)
        ]
        categories = [{"id": number, "name": name} for number, name in enumerate("ab", start=1)]
        content = {"images": images, "annotations": boxes, "categories": categories}
        (folder / f"{kind}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def of_channels(tmp_path_factory):
    """Weights for the five channels, as they are drawn."""
    torch.manual_seed(0)
    return str(write_converted(run_checkpoint(*SEEN), tmp_path_factory.mktemp("channels") / "backbone.pth"))


@pytest.fixture(scope="module", params=[("png", "rgb"), ("tif", "rgb"), ("tif", "channels")], ids="-".join)
def embedded(request, images, weights, of_channels):
    """Images, weights for them, and the folder of their table."""
    kind, of = request.param
    start, rows = weights if of == "rgb" else of_channels, images / f"rows-{kind}-{of}"
    folder = f"folder:{images / kind}"
    run(f"python tools/embed.py --weights {start} --data {folder} --size 64 --output {rows}", images)
    return images / kind, start, rows


def is_visible(path, top=60):
    """Whether the pictures of a sheet, below a title of ``top`` px, are no areas of one colour."""
    sheet = np.asarray(Image.open(path).convert("RGB"))[top:]
    inner = sheet[(sheet < 225).any(axis=2)]  # neither white nor the ground of tiles
    return len(inner) > SIDE**2 and inner.std(axis=0).max() > VISIBLE


def test_neighbours_and_chosen_images_are_drawn(embedded, tmp_path):
    folder, weights, rows = embedded
    query = sorted(folder.iterdir())[3]
    table = f"--embeddings {rows}"
    words = f"{table} --data {query} --weights {weights} --count 4 --output {tmp_path}/similar.png"
    run(f"python tools/similar.py {words}", tmp_path)
    run(f"python tools/select_images.py {table} --count 4 --output {tmp_path}/selected", tmp_path)
    run(f"python tools/atlas.py {table} --how pca --output {tmp_path}/atlas.html", tmp_path)
    assert is_visible(tmp_path / "similar.png") and is_visible(tmp_path / "selected/selected.png")
    page = (tmp_path / "atlas.html").read_text()
    (sprites,) = re.findall("data:image/webp;base64,([A-Za-z0-9+/=]+)", page)
    assert is_visible(io.BytesIO(base64.b64decode(sprites)), top=0)
    assert ("shown: principal components" in page) == rows.name.endswith("tif-rgb")  # others have colours by name


def test_copies_of_other_channels_are_found_and_drawn(embedded, tmp_path):
    folder, weights, rows = embedded
    words = f"--embeddings {rows} --rule cosine=0.5 bits=40 --output {tmp_path}"
    assert "unique.txt has" in run(f"python tools/curate.py {words}", tmp_path)
    assert is_visible(tmp_path / "pairs.png")


def test_objects_are_found_and_drawn(embedded, tmp_path):
    folder, weights, _ = embedded
    words = f"--weights {weights} --data folder:{folder} --short-side 64 --count 5 --output {tmp_path}"
    run(f"python tools/discover.py {words}", tmp_path)
    assert is_visible(tmp_path / "found.png")


def test_suspects_are_drawn(embedded, tmp_path):
    folder, weights, _ = embedded
    words = f"--weights {weights} --data coco:{folder}:{folder}.json --short-side 96 --output {tmp_path}"
    run(f"python tools/check_labels.py {words}", tmp_path)
    assert is_visible(tmp_path / "suspects.png")


def test_rows_in_python_are_those_of_the_command(embedded):
    folder, weights, rows = embedded
    files = sorted(folder.iterdir())
    ours = embed(load_backbone(weights, files), files, size=64)
    np.testing.assert_allclose(ours, load_table(rows).rows, atol=1e-5)


def test_weights_of_photographs_see_channels_by_the_map_of_starts(embedded):
    folder, weights, rows = embedded
    flags = load_table(rows).about["flags"]
    mapped, plain = load_network(weights, flags).network, load_network(weights).network
    stem = plain.stem.conv1.weight
    if folder.name == "tif" and stem.shape[1] == 3:
        expected = stem_for(stem.double(), ["mean"] * 5)
        torch.testing.assert_close(mapped.stem.conv1.weight.double(), expected)
        files = sorted(folder.iterdir())
        assert "expected load_backbone(weights, data)" in refusal(embed, load_backbone(weights), files)
    else:
        assert torch.equal(mapped.stem.conv1.weight, stem)


def test_images_of_channels_travel_in_shards_and_to_a_store_and_back(images, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    for file in (images / "tif").iterdir():
        np.save(arrays / f"{file.stem}.npy", tifffile.imread(file))
    for folder in (images / "tif", arrays):
        files = list(get_records(f"folder:{folder}"))
        pixels = format_of({}, files)
        for packed in (f"{tmp_path}/shards-{folder.name}", f"memory://channels/{folder.name}"):
            pack(f"--data folder:{folder} --output {packed} --count 3")
            shards = list(get_records(f"shards:{packed}"))
            assert pixels == format_of({}, shards) and pixels.count == 5 and len(shards) == len(files)
            for one, other in zip(shards, files, strict=True):
                np.testing.assert_array_equal(read_record(one, pixels), read_record(other, pixels))
        message = refusal(pack, f"--data folder:{folder} --output {tmp_path}/small --short-side 32")
        assert "5 channels" in message and "no --short-side" in message


def test_arrays_beside_images_in_a_tar_file_are_features():
    assert _keys_of(["a.npy", "b.npy", "b.cls"]).images == {"a.npy": "a", "b.npy": "b"}
    assert _keys_of(["a.jpg", "a.npy"]).images == {"a.jpg": "a"}


def test_images_whose_channels_are_files_are_not_packed(tmp_path):
    for name in ("0_D", "0_F"):
        np.save(tmp_path / f"{name}.npy", scene(0, 1)[..., 0])
    data = f"files:folder:{tmp_path}:{{}}_D.npy,{{}}_F.npy"
    assert "channel_files, which shards do not hold" in refusal(pack, f"--data '{data}' --output {tmp_path}/shards")


def test_copies_in_other_files_are_found_by_all_channels(images, tmp_path):
    files = list(get_records(f"folder:{images / 'tif'}"))
    pixels, copies = format_of({}, files), []
    for number in range(3):
        copies.append({"file_name": str(tmp_path / f"{number}.npy")})
        np.save(copies[-1]["file_name"], tifffile.imread(files[number]["file_name"])[::2, ::2])
    assert alike_images(files[:4], copies, pixels) == (list(zip(copies, files[:3], strict=True)), 3)
    assert alike_images(files[4:], copies, pixels) == ([], 3)


def test_captions_say_which_channels_are_shown():
    of_five = PixelFormat(channels=("a", "b", "c", "d", "e"))
    choice = tuple(tuple(float(place == n) for n in range(6)) for place in (3, 0, 1))
    assert of_five.caption("12 images") == "12 images; shown: a, b, c"
    assert PixelFormat(channels=of_five.channels, shown=choice).caption("") == "shown: d, a, b"
    mix = ((0.5, 0.5, 0.0, 0.0, 0.0, 3.0),) * 3
    mixed = PixelFormat(channels=of_five.channels, shown=mix)
    assert mixed.caption("a") == "a; shown: principal components of the channels"
    for colours in (PixelFormat(), PixelFormat(12), PixelFormat(channels=tuple(NAMES))):
        assert colours.caption("12 images") == "12 images"
