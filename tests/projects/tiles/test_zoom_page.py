"""Pages that zoom into scans: tiles are means of the scan, made a piece at a time, and the page in a browser."""

import json
import os
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from browser import seen_in_browser
from test_tiled_predictions import Exact, detector, planted
from trees import refused

from projects.Predict import file_predictions
from projects.Predict.file_predictions import find_sources
from projects.Tiles import tiled_predictions, window_files, zoom_levels
from projects.Tiles.tiled_predictions import TiledPredictor
from projects.Tiles.windows import Tiling
from projects.Tiles.zoom_levels import Levels, halved
from projects.Tiles.zoom_page import content_of
from revisit.jobs.processes import HERE
from revisit.jobs.runner import Runner
from revisit.jobs.shares import Share

NASTY = "<img src=x onerror=alert(1)>'\"#%41\udcff&amp;"
LOOK = """<script>
const seen = { images: document.images.length, title: document.title };
seen.heading = document.querySelector("h1").textContent;
const corner = canvas.getBoundingClientRect();
const there = (x, y) => ({ clientX: x + corner.left, clientY: y + corner.top, bubbles: true, cancelable: true });
const at = (kind, x, y, more = {}) => canvas.dispatchEvent(
  new PointerEvent(kind, { pointerId: 1, ...there(x, y), ...more }));
const click = (x, y) => { at("pointerdown", x, y); at("pointerup", x, y); return byId("chosen").textContent; };
const placed = (x, y) => [(x - view.x) * view.scale, (y - view.y) * view.scale];
const loaded = () => [...tiles].filter(([, image]) => image.naturalWidth)
  .map(([source]) => source.split("/").slice(-2).join("/"));
const wheel = (x, y, deltaY) => canvas.dispatchEvent(new WheelEvent("wheel", { ...there(x, y), deltaY }));
const wait = () => new Promise((done) => setTimeout(done, 100));
const waiting = () => [...tiles].some(([, image]) => !image.complete);
const later = async () => { for (let n = 0; n < 4 || (n < 250 && waiting()); n++) await wait(); };
const drawn = () => { draw(); return pixels.reduce((sum, each) => sum + (each !== 0), 0); };
(async () => {
  await later();
  draw();
  seen.whole = loaded();
  seen.count = byId("count").textContent;
  seen.classes = [...byId("classes").children].map((each) => each.textContent);
  seen.object = click(...placed(20, 17));
  seen.nothing = click(...placed(90, 40));
  const before = [view.x + 100 / view.scale, view.y + 80 / view.scale];
  for (let n = 0; n < 9; n++) wheel(100, 80, -200);
  seen.stays = Math.hypot(before[0] - view.x - 100 / view.scale, before[1] - view.y - 80 / view.scale);
  draw();
  await later();
  draw();
  seen.closest = loaded();
  const from = view.x;
  at("pointerdown", 200, 200); at("pointermove", 150, 200); at("pointerup", 150, 200);
  seen.dragged = (view.x - from) * view.scale;
  const scale = view.scale;
  at("pointerdown", 100, 100); at("pointerdown", 200, 100, { pointerId: 2 });
  at("pointermove", 150, 100, { pointerId: 2 }); at("pointerup", 100, 100); at("pointerup", 150, 100, { pointerId: 2 });
  seen.pinched = view.scale / scale;
  window.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
  seen.all = view.scale === all();
  const ink = drawn();
  byId("grid").click();
  seen.grid = drawn() > ink;
  byId("grid").click();
  byId("classes").querySelector("input").click();
  draw();
  seen.filtered = byId("count").textContent;
  byId("least").value = 950;
  byId("least").dispatchEvent(new Event("input"));
  seen.inked = drawn();
  seen.none = byId("count").textContent;
  const report = document.createElement("pre");
  report.id = "seen";
  report.textContent = JSON.stringify(seen);
  document.body.append(report);
})();
</script></body>"""


@pytest.fixture
def small(monkeypatch):
    """Tiles of 32 px, so blocks of 128 px, and pages from 150 px on, of an exact detector's."""
    monkeypatch.setattr(zoom_levels, "TILE", 32)
    monkeypatch.setattr("projects.Tiles.zoom_page.TILE", 32)
    monkeypatch.setattr(tiled_predictions, "LARGE", 150)
    monkeypatch.setattr(file_predictions, "Predictor", Exact)


def predict(sources: list[Path], output: Path, runner: Runner = HERE, **how: bool) -> TiledPredictor:
    output.mkdir(exist_ok=True)
    predictor = TiledPredictor(detector("64+16"), output, Tiling(64, 16), **how)
    predictor.run(find_sources(sources, output), runner)
    return predictor


def means(scan: np.ndarray, times: int) -> np.ndarray:
    """Float64 means of squares of an image whose sides they divide."""
    height, width, count = scan.shape
    return scan.reshape(height // times, times, width // times, times, count).mean(axis=(1, 3))


@pytest.mark.parametrize(("height", "width"), [(320, 544), (33, 700), (515, 129), (1, 129), (128, 128)])
def test_tiles_are_the_means_of_the_scan_whatever_the_order_of_blocks(small, tmp_path, monkeypatch, height, width):
    written = {}
    write_image = zoom_levels.write_image

    def noted(path: Path, image: np.ndarray, *options: int, **how: bool) -> None:
        written[path] = image
        write_image(path, image, *options, **how)

    monkeypatch.setattr(zoom_levels, "write_image", noted)
    scan = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    levels = Levels(tmp_path / "levels", tmp_path / "kept", height, width)
    for block in reversed(levels.blocks):
        left, top, right, bottom = levels.window(block)
        levels.write_block(block, scan[top:bottom, left:right])
    levels.write_rest()
    whole = scan
    for level in range(levels.depth):
        rows = range(-(-whole.shape[0] // 32))
        columns = range(-(-whole.shape[1] // 32))
        tiles = [[written.pop(levels.folder / str(level) / f"{x}_{y}.jpg") for x in columns] for y in rows]
        assert (np.concatenate([np.concatenate(row, axis=1) for row in tiles]) == whole).all()
        assert len(list((levels.folder / str(level)).iterdir())) == len(rows) * len(columns)
        whole = halved(whole)
    assert len(rows) == len(columns) == 1 and {path.parent.name for path in written} == {"kept"}
    assert levels.depth == len(list(levels.folder.iterdir()))


def test_halved_images_have_means_of_two_by_two_and_at_odd_borders_of_those_that_there_are():
    scan = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
    assert (halved(scan) == np.floor(means(scan, 2) + 0.5)).all()
    thrice = halved(halved(halved(scan)))
    assert np.abs(thrice - means(scan, 8)).max() <= 1.5
    odd = halved(scan[:33, :41])
    assert odd.shape == (17, 21, 3) and (odd[:16, :20] == halved(scan[:32, :40])).all()
    assert (odd[16, 0] == np.floor(scan[32, :2].mean(axis=0) + 0.5)).all() and (odd[16, 20] == scan[32, 40]).all()


def test_no_more_than_a_block_of_a_scan_is_read_at_once(small, tmp_path, monkeypatch):
    sizes, read_window = [], window_files.read_window

    def noted(file_name: str, window: tuple) -> object:
        left, top, right, bottom = window
        sizes.append((right - left, bottom - top))
        return read_window(file_name, window)

    monkeypatch.setattr(window_files, "read_window", noted)
    monkeypatch.setattr(window_files, "_PART", 64)
    tifffile.imwrite(tmp_path / "scan.tif", planted(400, 640)[0], tile=(64, 64), compression="zlib", photometric="rgb")
    assert not predict([tmp_path / "scan.tif"], tmp_path / "found").unreadable
    assert max(map(max, sizes)) == 32 << zoom_levels.BLOCK and len(sizes) > 60
    assert len(list((tmp_path / "found/scan_levels/0").iterdir())) == 13 * 20


def test_shared_and_interrupted_work_has_the_same_bytes_and_a_switch_leaves_pages_out(small, tmp_path, monkeypatch):
    cv2.imwrite(str(tmp_path / "scan.png"), planted(200, 200)[0])
    cv2.imwrite(str(tmp_path / "small.png"), planted(200, 200)[0][:150, :150])
    scans = [tmp_path / "scan.png", tmp_path / "small.png"]
    monkeypatch.setattr(tiled_predictions, "PART", 1)
    one = predict(scans, tmp_path / "one")
    assert len(one.pages) == 1 and re.search(r"one/scan\.html zooms: 70 tiles .* take 0 MB", one.pages[0])
    assert not (tmp_path / "one/small.html").exists() and not (tmp_path / "one/parts").exists()
    with pytest.raises(SystemExit):
        predict(scans, tmp_path / "two", Share(1, 2))
    refused("pages that zoom", predict, scans, tmp_path / "two", Share(0, 2), zooms=False)
    predict(scans, tmp_path / "two", Share(0, 2))
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) > 70 and all(
        (tmp_path / "one" / f).read_bytes() == (tmp_path / "two" / f).read_bytes() for f in files
    )
    assert predict(scans, tmp_path / "one", zooms=False).pages == []
    assert not (tmp_path / "one/scan.html").exists()


def test_the_page_in_a_browser_zooms_and_shows_what_is_clicked(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Exact, "class_names", ["</script><b>'\"&", "b"])
    scan, boxes = planted(200, 200)
    source = os.fsencode(tmp_path / f"{NASTY}.png")
    Path(os.fsdecode(source)).write_bytes(cv2.imencode(".png", scan)[1].tobytes())
    predict([Path(os.fsdecode(source))], tmp_path / "found")
    (page,) = (tmp_path / "found").glob("*.html")
    text = page.read_text(errors="surrogateescape")
    assert not re.search("https?:", text) and "<img" not in text and "</script><b>" not in text
    seen = seen_in_browser(page, LOOK, width=900, height=600)
    assert seen["images"] == 0 and "onerror" in seen["title"] and seen["heading"] == seen["title"]
    found = len(boxes)
    assert seen["count"] == f"{found} of {found} objects"
    assert seen["classes"] == ["</script><b>'\"& (5)", "b (4)"]
    assert (
        seen["object"] == "</script><b>'\"& 0.90, from 10, 10 to 30, 24 px" and seen["nothing"] == "Nothing is there."
    )
    assert "3/0_0.jpg" in seen["whole"] and {each[0] for each in seen["closest"]} == {*"0123"}
    assert seen["stays"] < 1e-6 and seen["dragged"] == pytest.approx(50)
    assert seen["pinched"] == pytest.approx(0.5) and seen["all"] and seen["grid"]
    assert (
        seen["filtered"] == f"4 of {found} objects" and seen["none"] == f"0 of {found} objects" and seen["inked"] == 0
    )


def test_a_hundred_thousand_objects_are_some_megabytes(tmp_path):
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 90_000, (100_000, 2))
    objects = [{"bbox": [*corner, 50.123, 40.456], "score": 0.5, "category_id": 0} for corner in corners.tolist()]
    image = {"file_name": "scan.tif", "objects": objects}
    content = content_of(Levels(tmp_path / "scan_levels", tmp_path, 100_000, 100_000), image, [(0, 0, 9, 9)], ["a"])
    assert len(json.dumps(content)) < 6e6 and len(content["boxes"]) == 400_000 and content["levels"] == 9
