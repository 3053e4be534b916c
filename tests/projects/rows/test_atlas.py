"""The atlas: what its page holds, by loops; and the page in a browser, pointed at and clicked."""

import base64
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from browser import seen_in_browser
from commands import one_line_error, run
from PIL import Image
from trees import touch, write

from projects.Rows import atlas, similar
from projects.Rows.atlas import pairs_of, write_atlas
from projects.Rows.colours import OTHER, column, columns_of
from projects.Rows.coordinates import coordinates
from projects.Rows.row_table import RowTable, save_table
from projects.Rows.thumbnails import BACKGROUND, surroundings, thumbnails
from revisit.errors import UserError

NASTY = "<img src=x onerror=alert(1)>'\".png"
LOOK = """<script>
const [x, y] = placeOf(3);
const mouse = (kind) => canvas.dispatchEvent(new MouseEvent(kind, { clientX: x + canvas.getBoundingClientRect().left,
  clientY: y + canvas.getBoundingClientRect().top, bubbles: true }));
const seen = { images: document.images.length, title: document.title };
mouse("mousemove");
seen.tip = tip.hidden ? null : tip.lastElementChild.textContent;
mouse("mousedown"); window.dispatchEvent(new MouseEvent("mouseup")); mouse("click");
seen.chosen = byId("chosen").textContent;
seen.neighbours = [...byId("neighbours").children].map((each) => each.title);
seen.listed = byId("list").children.length;
byId("pairs").click();
seen.pairs = [...byId("list").children].map((each) => [...each.children].map((one) => one.title));
byId("lonely").click();
seen.lonely = byId("list").firstElementChild.title;
byId("shown").click();
byId("legend").firstElementChild.click();
seen.left = byId("count").textContent;
const report = document.createElement("pre");
report.id = "seen";
report.textContent = JSON.stringify(seen);
document.body.append(report);
</script></body>"""


@pytest.fixture
def table(write_pictures, tmp_path) -> RowTable:
    """30 images of three directions, two of them the same, one alone; a name that would be HTML."""
    pictures = write_pictures(tmp_path / "photos", 30)
    pictures[3] = pictures[3].rename(tmp_path / "photos" / NASTY)
    rng = np.random.default_rng(0)
    rows = np.eye(3)[np.arange(30) % 3] + rng.normal(0, 0.1, (30, 3))
    rows[11] = rows[5]
    rows[29] = (-1, -1, -1)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    boxes = np.tile(np.array([[0, 0, 40, 30]], np.float32), (30, 1))
    classes = np.array(["cat", "dog", "bird"])[np.arange(30) % 3]
    return RowTable(rows, np.array(list(map(str, pictures))), boxes, classes, {"of": "image", "network": "none"})


def test_the_page_in_a_browser_shows_what_is_pointed_at_and_clicked(table, tmp_path):
    assert write_atlas(tmp_path / "atlas.html", table, "pca") == 30
    page = (tmp_path / "atlas.html").read_text()
    assert "http:" not in page and "https:" not in page and NASTY not in page
    seen = seen_in_browser(tmp_path / "atlas.html", LOOK)
    assert seen["images"] == 0 and seen["title"] == "30 images"  # nothing of the name became an element
    assert seen["tip"] == f"{table.files[3]} cat" and seen["chosen"] == table.files[3]
    cosines = table.rows.astype(np.float64) @ table.rows[3]
    nearest = [place for place in np.argsort(-cosines, kind="stable") if place != 3][:12]
    assert seen["neighbours"] == [table.files[3], *table.files[nearest]]
    assert seen["listed"] == 30 and sorted(seen["pairs"][0]) == sorted(table.files[[5, 11]])
    assert seen["lonely"] == table.files[29] and seen["left"] == "20 of 30 shown"


def test_a_narrow_screen_has_the_list_below_the_map(table, tmp_path):
    write_atlas(tmp_path / "atlas.html", table, "pca")
    look = """<pre id="seen"></pre><script>
    const [left, right] = ["left", "right"].map((name) => byId(name).getBoundingClientRect());
    byId("seen").textContent = JSON.stringify({below: right.top - left.bottom, wide: canvas.clientWidth});
    </script></body>"""
    assert seen_in_browser(tmp_path / "atlas.html", look, width=500) == {"below": 0, "wide": 500}
    assert seen_in_browser(tmp_path / "atlas.html", look, width=1000)["below"] < 0


def test_sprites_are_the_thumbnails_in_order(table, monkeypatch):
    monkeypatch.setattr(atlas, "SIDE", 4)
    tiles = thumbnails(table, 64)
    assert (tiles[0] != tiles[1]).any()
    sheets = [Image.open(io.BytesIO(base64.b64decode(sheet.partition(",")[2]))) for sheet in atlas.sprites(tiles)]
    assert [sheet.size for sheet in sheets] == [(256, 256), (256, 256)]
    pixels = np.array(sheets[1].convert("RGB")).astype(int)
    place = 21 - 16
    shown = pixels[64 * (place // 4) :, 64 * (place % 4) :][:64, :64]
    errors = [np.abs(shown - tile).mean() for tile in tiles.astype(int)]
    assert np.argmin(errors) == 21


def test_images_that_have_moved_since_are_named(table, caplog):
    assert len(thumbnails(table, 8)) == 30 and not caplog.text
    Path(table.files[4]).unlink()
    assert (thumbnails(table, 8)[4] == BACKGROUND).all()
    assert f"1 of 30 images cannot be read, so their pictures are grey: {table.files[4]}" in caplog.text


def test_surroundings_have_a_pixel_also_of_a_box_without_area_at_the_edge():
    assert surroundings([10, 5, 20, 15], (40, 60), 0.5) == (5, 0, 26, 21)
    left, top, right, bottom = surroundings([60, 40, 60, 40], (40, 60), 0.5)
    assert 0 <= left < min(right, 60) and 0 <= top < min(bottom, 40)


def test_pairs_are_those_of_highest_cosine_each_once():
    others = np.array([[1, 2], [0, 2], [0, 1]])
    cosines = np.array([[0.9, 0.5], [0.9, 0.7], [0.5, 0.7]], np.float32)
    assert pairs_of(others, cosines) == [[0, 1], [1, 2], [0, 2]]


def test_places_are_within_the_map_and_repeat(table):
    for how in ("pca", "tsne"):
        places = coordinates(table.rows, how)
        assert places.shape == (30, 2) and places.min() == 0 and places.max() == 1
        assert (coordinates(table.rows, how) == places).all()
    two = coordinates(table.rows[:2], "tsne")
    assert two[:, 0].tolist() in ([0, 1], [1, 0])


def test_a_column_keeps_its_most_frequent_values():
    made = column("n", [f"value {n % 45}" for n in range(90)] + ["value 7"] * 3)
    assert len(made.values) == 41 and made.values[0] == "value 7" and made.values[-1] == OTHER
    assert made.values[made.codes[7]] == "value 7"


def test_columns_of_a_file_are_found_by_name(table, tmp_path):
    (tmp_path / "more.csv").write_text("file_name,split\n000.png,train\n001.png,test\n")
    by_name = {each.name: each for each in columns_of(table, tmp_path / "more.csv")}
    assert list(by_name) == ["class", "cluster", "split"]
    split = by_name["split"]
    assert [split.values[code] for code in split.codes[:3]] == ["train", "test", ""]
    (tmp_path / "more.csv").write_text("name,split\n000.png,train\n")
    with pytest.raises(UserError, match="expected file_name"):
        columns_of(table, tmp_path / "more.csv")
    (tmp_path / "more.csv").write_text("file_name,split\nother.png,train\n")
    with pytest.raises(UserError, match="names none of the 30 files"):
        columns_of(table, tmp_path / "more.csv")
    (tmp_path / "more.csv").write_text("file_name,place\n000.png,Kiel, by the sea\n")
    with pytest.raises(UserError, match="line 2 has more than 2 values"):
        columns_of(table, tmp_path / "more.csv")


@pytest.mark.parametrize("name", ["{folder}/000.png", "photos/a/000.png", "a/000.png"])
def test_files_of_another_spelling_are_found_and_namesakes_are_told_apart(name, tmp_path, monkeypatch):
    files = [tmp_path / "photos/a/000.png", tmp_path / "photos/b/000.png"]
    for file in files:
        touch(file)
    monkeypatch.chdir(tmp_path)
    names = np.array([str(file.relative_to(tmp_path)) for file in files])
    table = RowTable(np.eye(2, dtype=np.float32), names, np.zeros((2, 4)), np.array(["", ""]), {"of": "image"})
    write(tmp_path / "tables/more.csv", ["file_name,split", name.format(folder=files[0].parent) + ",train"])
    (split,) = [each for each in columns_of(table, tmp_path / "tables/more.csv") if each.name == "split"]
    assert [split.values[code] for code in split.codes] == ["train", ""]
    write(tmp_path / "tables/more.csv", ["file_name,split", "000.png,train"])
    with pytest.raises(UserError, match="names none of the 2 files"):
        columns_of(table, tmp_path / "tables/more.csv")
    write(tmp_path / "tables/more.csv", ["file_name,split", "photos/a/000.png,train", "photos/a/000.png,test"])
    with pytest.raises(UserError, match="says two things of photos/a/000.png"):
        columns_of(table, tmp_path / "tables/more.csv")


def test_a_table_has_the_place_of_its_weights_without_what_opens_it(table, tmp_path):
    options = {"weights": "https://me:secret@host/b.pth?token=secret"}
    save_table(tmp_path / "embeddings.npz", table._replace(about=table.about | {"options": options}))
    with np.load(tmp_path / "embeddings.npz") as arrays:
        assert "https://host/b.pth" in str(arrays["about"]) and "secret" not in str(arrays["about"])


def test_the_command_writes_a_page_or_says_what_is_missing(table, tmp_path):
    save_table(tmp_path / "embeddings.npz", table)
    command = f"python tools/atlas.py --embeddings {tmp_path} --how pca --output"
    assert f"30 of 30 rows are in {tmp_path}/atlas.html" in run(f"{command} {tmp_path}/atlas.html", tmp_path)
    save_table(tmp_path / "embeddings.npz", table.of(np.arange(1)))
    assert "expects at least two" in one_line_error(f"{command} {tmp_path}/one.html", tmp_path)
    assert not Path(tmp_path / "one.html").exists()
    assert f"--output {tmp_path} is a folder: expected a name in .html" in one_line_error(
        f"{command} {tmp_path}", tmp_path
    )
    assert "atlas.png: expected a name in .html" in one_line_error(f"{command} {tmp_path}/atlas.png", tmp_path)


def test_a_query_is_a_row_only_by_all_of_its_sides(table):
    query = Path(table.files[0])
    box = table.boxes[0].tolist()
    shapes = np.array([box, [*box[:3], box[3] + 9], [box[0] - 9, *box[1:]], [side + 0.3 for side in box]], np.float32)
    same = table.of(np.zeros(4, int))._replace(boxes=shapes)
    assert similar._own_row(same, query, box).tolist() == [True, False, False, True]
    assert similar._own_row(same, query, None).all()


def test_rows_that_are_all_the_same_have_one_place():
    rows = np.eye(16)[[0] * 8]
    assert (coordinates(rows, "tsne") == coordinates(rows, "pca")).all()


def test_a_table_that_a_spreadsheet_has_saved_is_read(table, tmp_path):
    (tmp_path / "sites.csv").write_text("file_name,site\n000.png,north\n", encoding="utf-8-sig")
    site = {each.name: each for each in columns_of(table, tmp_path / "sites.csv")}["site"]
    assert site.values[site.codes[0]] == "north"


def test_another_package_called_umap_is_not_taken_for_umap_learn(table, tmp_path, monkeypatch):
    write(tmp_path / "umap" / "__init__.py", "")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "umap"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match="--how umap needs umap-learn: pip install umap-learn"):
        coordinates(table.rows, "umap")
    sys.modules.pop("umap")
