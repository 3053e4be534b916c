"""Windows as files, and images in tiles: the same samples and labels again, by our readers and by others."""

import json

import numpy as np
import pytest
import tifffile
from commands import run
from PIL import Image
from test_tiled_sets import labelled_photographs, photograph, scan, write_scan

from projects.Tiles.window_files import look_at, read_window
from revisit.data.images.reader import read_image
from revisit.data.sources.catalog import get_records

GEO = [(33550, "d", 3, (0.5, 0.5, 0.0), True), (33922, "d", 6, (0.0, 0, 0, 500000.0, 4100000.0, 0), True)]


def files_below(folder) -> dict:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_windows_as_files_have_the_pixels_and_labels_of_the_data_set(tmp_path):
    name = labelled_photographs(tmp_path / "in", [10, 10, 20, 20], [95, 40, 20, 20], [92, 80, 20, 20], size=(300, 200))
    command = f"python tools/tiles.py cut --data {name} --tiles 100 --output {tmp_path}/out"
    said = run(command, tmp_path)
    assert "6 windows of 100 px" in said and "5 objects and parts of such in annotations.json" in said
    written = files_below(tmp_path / "out")
    assert {"a_0_0.png", "a_100_200.png", "annotations.json", "to_learn.json"} < written.keys() and len(written) == 11
    whole = read_image(tmp_path / "in/a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "out/a_100_200.png"), whole[200:, 100:])
    again = get_records(f"coco:{tmp_path}/out:{tmp_path}/out/annotations.json")
    cut = get_records(f"tiles:100:{name}")
    for one, other in zip(again, cut, strict=True):
        crowds = [[each["iscrowd"] for each in record["annotations"]] for record in (one, other)]
        assert crowds[0] == crowds[1] and len(one["annotations"]) == len(other["annotations"])
    assert sum(each["iscrowd"] for record in again for each in record["annotations"]) == 2
    learned = json.loads((tmp_path / "out/to_learn.json").read_text())
    expected = ["a_0_0.png", "a_100_0.png", "a_0_100.png", "a_100_200.png"]
    assert [image["file_name"] for image in learned["images"]] == expected
    (tmp_path / "out/a_0_0.png").unlink()
    run(command, tmp_path)
    now = files_below(tmp_path / "out")
    changed = {name for name, time in now.items() if written[name] != time}
    records = {"annotations.json.sha256", "to_learn.json.sha256"}
    assert changed == {"a_0_0.png", "annotations.json", "to_learn.json", *records} and now.keys() == written.keys()
    refusal = run(command.replace("--tiles 100", "--tiles 120"), tmp_path, expect=2)
    assert "made with other settings (tiles, windows): give another --output" in refusal


def test_windows_of_scans_are_tiffs_of_the_same_samples(tmp_path):
    (tmp_path / "in/sub").mkdir(parents=True)
    values = scan((150, 100))
    write_scan(tmp_path / "in/sub/a.tif", values)
    run(f"python tools/tiles.py cut --data {tmp_path}/in --tiles 100 --output {tmp_path}/out", tmp_path)
    assert files_below(tmp_path / "out").keys() == {"settings.json", "sub/a_0_0.tif", "sub/a_0_50.tif"}
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out/sub/a_0_50.tif"), values[50:])


@pytest.mark.parametrize(
    "kind", ["strips.tif", "masked.tif", "both.tif", "photo.jpg", "alpha.png", "array.npy", "floats.npy"]
)
def test_a_converted_image_is_tiled_and_has_the_same_samples(kind, tmp_path):
    file = tmp_path / kind
    values = scan((700, 1100))
    geo = [*GEO, (42113, "s", 0, "0", True)]
    if kind == "strips.tif":
        values[:40, :30] = 0
        write_scan(file, values, tile=None, rowsperstrip=50, extratags=geo)
    elif kind in ("masked.tif", "both.tif"):
        marks = [geo[-1]] if kind == "both.tif" else []
        values[:40, :30] = 0
        with tifffile.TiffWriter(file) as writer:
            how = {"photometric": "minisblack", "planarconfig": "contig", "extratags": marks}
            writer.write(values, metadata=None, **how)
            writer.write(np.arange(700)[:, None] > np.arange(1100), subfiletype=4, photometric="minisblack")
    elif kind.endswith("npy"):
        floats = values / np.float32(7)
        floats[3, 4] = np.nan
        np.save(file, floats.astype(np.float32) if kind == "floats.npy" else values)
    else:
        picture = photograph((700, 1100))
        picture.putalpha(Image.fromarray(np.uint8(255 * (np.indices((700, 1100)).sum(axis=0) > 99))))
        (picture if kind == "alpha.png" else picture.convert("RGB")).save(file)
    said = run(f"python tools/tiles.py convert --data {file} --output {tmp_path}/out", tmp_path)
    (written,) = (tmp_path / "out").glob("*.tif")
    assert "1 tiled TIFFs" in said and written.stem == file.stem
    with tifffile.TiffFile(written) as tiff:
        page = tiff.pages[0]
        assert page.is_tiled and page.compression == 8 and page.tilewidth == 512 and tiff.is_bigtiff
        if kind == "strips.tif":
            assert [page.tags[code].value for code, *_ in geo] == [value for *_, value, _ in geo]
    assert look_at(str(written))[:2] == (700, 1100)
    window = (0, 0, 1100, 700)
    before, after = read_window(str(file), window), read_window(str(written), window)
    np.testing.assert_array_equal(after.values, before.values)
    assert after.is_colour == before.is_colour and after.names == before.names
    for one, other in ((before.missing, after.missing), (before.alpha, after.alpha)):
        assert (one is None) == (other is None) and (one is None or np.array_equal(one, other))


def test_what_is_converted_stays_and_is_never_its_own_target(tmp_path):
    (tmp_path / "in").mkdir()
    for name in "ab":
        write_scan(tmp_path / f"in/{name}.tif", scan((60, 70)))
    command = f"python tools/tiles.py convert --data {tmp_path}/in --output {tmp_path}/"
    what = run(command.replace(" convert", "") + "out", tmp_path, expect=2)
    assert "the following arguments are required: {cut,convert}" in what
    run(f"{command}out", tmp_path)
    written = files_below(tmp_path / "out")
    (tmp_path / "out/b.tif").unlink()
    run(f"{command}out", tmp_path)
    now = files_below(tmp_path / "out")
    assert now.keys() == written.keys() == {"a.tif", "b.tif"} and now["a.tif"] == written["a.tif"]
    write_scan(tmp_path / "in/b.tif", scan((80, 70)))
    run(f"{command}out", tmp_path)
    assert files_below(tmp_path / "out")["a.tif"] == written["a.tif"]
    assert look_at(f"{tmp_path}/out/b.tif")[:2] == (80, 70)
    assert "has the images themselves" in run(f"{command}in", tmp_path, expect=2)


@pytest.mark.parametrize("command", ["convert", "cut --tiles 100"])
def test_images_with_a_file_for_each_channel_are_refused_where_one_would_be_written(command, tmp_path):
    (tmp_path / "in").mkdir()
    for name in "RN":
        tifffile.imwrite(tmp_path / f"in/x_{name}.tif", np.ones((60, 70), np.uint8))
    options = f"--data files:folder:{tmp_path}/in:{{}}_R.tif,{{}}_N.tif --output {tmp_path}/out"
    text = run(f"python tools/tiles.py {command} {options}", tmp_path, expect=2)
    assert "each channel has a file of its own, of which the first alone would be read" in text
