"""A split tears no group, has the sizes that were asked for and every class's share, and loses nothing of a file."""

import json
import os
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT
from geotiffs import CORNER, SIDE, geo_keys, tie, write_tiff
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools.coco import COCO
from scipy.sparse import csr_array
from trees import blank_image, refusal, refused, touch, voc_xml_of, write

from projects.Labels.belonging import kept_together
from projects.Labels.sides import divided
from projects.Labels.splitting import split_of, write_split
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import NOT_SCORED, as_scored
from revisit.data.sources.subsets import is_looked_at

SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}
LARGE = {"train": 0.4, "val": 0.3, "test": 0.3}


def named(*names: str) -> list[dict]:
    return [{"file_name": name} for name in names]


def groups_by(records: list[dict], *rules: tuple[str, object]) -> list[int]:
    return kept_together(records, rules).groups.tolist()


def split(name: str, output: Path, *rules: tuple[str, object], shares=SHARES, seed: int = 0) -> list[str]:
    return list(write_split(name, output, rules, shares, seed))


def sides_in(output: Path) -> dict[str, list[str]]:
    """Names of files, without folders, by side."""
    lists = {side: output / f"{side}.txt" for side in SHARES}
    return {side: [Path(line).name for line in path.read_text().splitlines()] for side, path in lists.items()}


def joined(pairs: list[tuple[int, int]]) -> list[int]:
    """Groups by the textbook's way: what shares a key of either rule gets one number, until nothing changes."""
    groups, before = list(range(len(pairs))), None
    while groups != before:
        before = groups.copy()
        for one in range(len(pairs)):
            for other in range(one):
                if pairs[one][0] == pairs[other][0] or pairs[one][1] == pairs[other][1]:
                    groups[one] = groups[other] = min(groups[one], groups[other])
    firsts = list(dict.fromkeys(groups))
    return [firsts.index(group) for group in groups]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=25))
@settings(max_examples=60)
def test_images_that_any_of_two_rules_joins_are_one_group_and_no_others(pairs):
    records = named(*(f"a{one}/b{other}/c{n}.jpg" for n, (one, other) in enumerate(pairs)))
    assert groups_by(records, ("pattern", r"a(\d)"), ("pattern", r"b(\d)")) == joined(pairs)


def contents(draw: st.DataObject) -> tuple[csr_array, np.ndarray]:
    """Groups of 1 to 30 images with objects of any of four classes, and shares of two or three sides."""
    rows = st.tuples(st.integers(1, 30), *(st.integers(0, 20) for _ in range(4)))
    content = np.array(draw.draw(st.lists(rows, min_size=2, max_size=60)), float)
    shares = np.array(draw.draw(st.lists(st.integers(1, 10), min_size=2, max_size=3)), float)
    return csr_array(content), shares / shares.sum()


@given(st.data(), st.integers(0, 9))
@settings(max_examples=60)
def test_sizes_are_within_one_group_of_what_was_asked(data, seed):
    content, shares = contents(data)
    images = content.toarray()[:, 0]
    side = divided(content, shares, seed)
    sums = np.bincount(side, images, minlength=len(shares))
    assert np.abs(sums - shares * images.sum()).max() <= images.max() + 1e-6
    assert side.tolist() == divided(content, shares, seed).tolist()


@given(st.integers(0, 10_000), st.sampled_from([SHARES, LARGE]))
@settings(max_examples=25)
def test_every_side_has_its_share_of_every_class_within_ten_percent_or_one_group(seed, shares):
    """Of clips of 1 to 5 images, which have classes that others of the clip have, too, some of them rare."""
    rng = np.random.default_rng(seed)
    records, groups = [], []
    for clip in range(200):
        usual = rng.choice(6, size=2, p=[0.4, 0.3, 0.15, 0.08, 0.05, 0.02])
        for _ in range(rng.integers(1, 6)):
            boxes = [{"category_id": int(each)} for each in rng.choice(usual, size=rng.integers(0, 5))]
            records.append({"file_name": "a.jpg", "annotations": boxes})
            groups.append(clip)
    found = split_of(records, np.array(groups), [], shares, seed)
    wanted = found.shares[:, None] * found.content.sum(axis=0)
    tolerated = np.maximum(0.1 * wanted, found.content.max(axis=0).toarray())
    assert (np.abs(found.sums - wanted) <= tolerated).all()
    assert np.array_equal(np.bincount(found.side[found.groups], minlength=3), found.sums[:, 0])


@given(st.lists(st.integers(0, 5), min_size=100, max_size=300), st.integers(0, 9))
@settings(max_examples=25)
def test_single_images_with_one_class_each_are_split_to_one_image(labels, seed):
    records = [{"label": label} for label in labels]
    found = split_of(records, np.arange(len(labels)), [], SHARES, seed)
    wanted = found.shares[:, None] * found.content.sum(axis=0)
    assert (np.abs(found.sums - wanted) <= np.maximum(0.1 * wanted, 1) + 1e-6).all()


def test_a_video_of_500_frames_is_on_one_side(tmp_path):
    touch(*(tmp_path / f"data/clip_{n:06d}.jpg" for n in range(500)))
    touch(*(tmp_path / f"data/photo{n}x.jpg" for n in range(1500)))
    for seed in range(3):
        output = tmp_path / f"out{seed}"
        lines = split(f"folder:{tmp_path}/data", output, ("video", ""), seed=seed)
        sides = sides_in(output)
        assert sorted(sum(name.startswith("clip") for name in names) for names in sides.values()) == [0, 0, 500]
        assert [len(names) for names in sides.values()] == [1600, 200, 200]
        found = "video: 1 groups of 500 to 500 images; it finds nothing in 1,500 images, such as "
        assert lines[0] == f"{found}{tmp_path}/data/photo0x.jpg"
    groups = dict(line.split(",") for line in (output / "groups.csv").read_text().splitlines()[1:])
    assert len(groups) == 2000 and len(set(groups.values())) == 1501


def test_the_same_seed_gives_the_same_split_and_another_one_another(tmp_path):
    touch(*(tmp_path / f"data/{n}.jpg" for n in range(60)))
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        split(f"folder:{tmp_path}/data", tmp_path / name, seed=seed)
    one, same, other = (sides_in(tmp_path / name) for name in "abc")
    assert one == same != other
    assert len(get_records(f"list:{tmp_path}/a/val.txt")) == 6


def test_videos_are_names_in_their_folders_but_for_the_number_at_the_end():
    records = named(
        "a/x_01.jpg", "a/x_02.png", "b/x_01.jpg", "a/y_1.jpg", "a/y.jpg", "a/y_2.jpg", "c/1.jpg", "c/22.jpg"
    )
    assert groups_by(records, ("video", "")) == [0, 0, 1, 2, 3, 2, 4, 4]
    assert groups_by(records, ("folder", "")) == [0, 0, 1, 0, 0, 0, 2, 2]
    assert groups_by(records, ("video", ""), ("pattern", r"[12](?=\.)")) == [0, 0, 0, 0, 1, 0, 0, 0]


def test_a_day_is_when_a_photograph_was_taken(tmp_path):
    for name, taken in (("a", "2024:05:01 10:00:00"), ("b", "2024:05:01 23:59:59"), ("c", "2024:05:02 00:00:00")):
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0x9003] = taken
        exif[0x0132] = "2025:01:01 00:00:00"  # when it was changed
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.jpg", exif=exif)
    blank_image(tmp_path / "d.jpg")
    write(tmp_path / "e.jpg", b"no image")
    for name, blank in (("f", "    :  :     :  :  "), ("g", "0000:00:00 00:00:00")):  # of cameras without a clock
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0x9003] = blank
        exif[0x0132] = "2024:05:02 08:00:00"
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.jpg", exif=exif)
    records = named(*(f"{tmp_path}/{name}.jpg" for name in "abcdefg"))
    assert groups_by(records, ("day", "")) == [0, 0, 1, 2, 3, 1, 1]
    refused(
        "--rule day finds nothing in any of 1 images, such as .*/d.jpg",
        groups_by,
        named(f"{tmp_path}/d.jpg"),
        ("day", ""),
    )


def test_a_block_is_a_square_of_the_map_by_an_images_middle(tmp_path):
    """Images of 60 px, 30 m, beside each other: of 300 m 20 in a row are in 3 blocks at most, and no block is torn."""
    files = []
    for n in range(20):
        corner = (CORNER[0] + 60 * SIDE * n, CORNER[1])
        files.append(write_tiff(tmp_path / f"{n:02d}.tif", [geo_keys(), *tie(corner=corner)]))
    files.append(write_tiff(tmp_path / "far.tif", [geo_keys(), *tie(corner=(CORNER[0], CORNER[1] + 5000))]))
    blocks = groups_by(named(*files), ("block", 300.0))
    assert blocks == sorted(blocks) and blocks[-1] in (3, 2) and blocks.count(blocks[-1]) == 1
    assert 9 <= blocks.count(1) <= 11 or blocks[-1] == 2
    assert len(set(groups_by(named(*files), ("block", 1.0)))) == 21


def test_a_table_of_groups_may_be_curates(tmp_path):
    write(tmp_path / "groups.csv", ["file_name,group", "a.jpg,3", "b.jpg,4", "c.jpg,3"])
    records = named(*(f"{tmp_path}/{name}.jpg" for name in "abc"))
    assert groups_by(records, ("groups", f"{tmp_path}/groups.csv")) == [0, 1, 0]
    missing = named(f"{tmp_path}/a.jpg", f"{tmp_path}/z.jpg")
    message = refusal(groups_by, missing, ("groups", f"{tmp_path}/groups.csv"))
    assert message.startswith(f"--rule groups={tmp_path}/groups.csv has no group for 1 of 2 images")
    message = refusal(groups_by, missing, ("groups", "nowhere.csv"))
    assert message == "--rule groups=nowhere.csv is no file: expected a CSV file with file_name,group"


def test_windows_of_one_file_stay_together_and_lists_name_files(tmp_path):
    for n in range(10):
        blank_image(tmp_path / f"scans/{n}x.png", (64, 64 * (1 + n % 2)))
    split(f"tiles:32:folder:{tmp_path}/scans", tmp_path / "out", shares=LARGE)
    sides = sides_in(tmp_path / "out")
    assert sorted(sum(sides.values(), [])) == sorted(f"{n}x.png" for n in range(10))
    sizes = (tmp_path / "out/sizes.csv").read_text().splitlines()
    assert [sum(map(int, line.split(",")[1:])) for line in sizes[1:]] == [10, 60]


def coco_file(folder: Path, count: int) -> Path:
    """Photographs of clips of two, with more in the file than Revisit reads."""
    for n in range(count):
        blank_image(folder / f"photos/clip{n // 2}_{n % 2}.jpg")
    images = [
        {"id": f"i{n}", "file_name": f"clip{n // 2}_{n % 2}.jpg", "height": 50, "width": 100} for n in range(count)
    ]
    boxes = [
        {"id": 7 * n, "image_id": f"i{n // 2}", "category_id": 3 + n % 2, "bbox": [1, 2, 30, 20]}
        for n in range(2 * count)
    ]
    extra = {"area": 600, "iscrowd": 0, "attributes": {"by": "é"}, "score": 0.5}
    content = {
        "info": {"year": 2020},
        "licenses": [{"id": 1}],
        "images": [{**image, "license": 1} for image in images],
        "annotations": [{**box, **extra} for box in boxes],
        "categories": [{"id": 3, "name": "cat", "supercategory": "animal"}, {"id": 4, "name": "dog"}],
    }
    write(folder / "boxes.json", json.dumps(content))
    return folder / "boxes.json"


def test_of_a_coco_file_nothing_is_lost(tmp_path):
    file = coco_file(tmp_path, 40)
    lines = split(f"coco:{tmp_path}/photos:{file}", tmp_path / "out", ("video", ""))
    whole = json.loads(file.read_text())
    parts = {side: json.loads((tmp_path / f"out/{side}.json").read_text()) for side in SHARES}
    for key in ("images", "annotations"):
        entries = sum((part[key] for part in parts.values()), [])
        assert sorted(map(str, entries)) == sorted(map(str, whole[key]))
    for side, part in parts.items():
        assert {key: part[key] for key in ("info", "licenses", "categories")} == {
            key: whole[key] for key in ("info", "licenses", "categories")
        }
        records = get_records(f"coco:{tmp_path}/photos:{tmp_path}/out/{side}.json")
        assert sorted(Path(record["file_name"]).name for record in records) == sorted(sides_in(tmp_path / "out")[side])
    assert [len(part["images"]) for part in parts.values()] == [32, 4, 4]
    assert (
        "| cat | 32 | 4 | 4 |" in "\n".join(lines) and f"coco:{tmp_path}/photos:{tmp_path}/out/train.json" in lines[-1]
    )


def test_boxes_of_other_files_are_written_as_coco_and_what_nobody_labelled_stays_so(tmp_path):
    for n in range(20):
        blank_image(tmp_path / f"photos/{n}x.jpg")
        if n % 4:
            write(tmp_path / f"labels/{n}x.xml", voc_xml_of(("cat", 1, 2, 31, 22), ("dog", 5, 6, 25, 40)))
    name = f"voc_xml:{tmp_path}/photos:{tmp_path}/labels"
    split(name, tmp_path / "out", shares=LARGE)
    before = {Path(record["file_name"]).name: record for record in get_records(name)}
    seen = []
    for side in SHARES:
        for record in get_records(f"coco:{tmp_path}/photos:{tmp_path}/out/{side}.json"):
            own = before[Path(record["file_name"]).name]
            seen.append(record["file_name"])
            assert is_looked_at(record) == is_looked_at(own)
            boxes = [[(box["category_id"], box["bbox"]) for box in each["annotations"]] for each in (record, own)]
            assert boxes[0] == boxes[1]
    assert len(seen) == 20


def test_difficult_objects_of_voc_are_scored_by_nobody_and_learned_from(tmp_path):
    """In what is written, as before: by pycocotools, and by this package."""
    tree = tmp_path / "voc"
    for n in range(20):
        blank_image(tree / f"JPEGImages/{n}x.jpg")
        text = voc_xml_of(("cat", 1, 2, 31, 22), ("dog", 5, 6, 25, 40))
        write(tree / f"Annotations/{n}x.xml", text.replace("<bndbox>", "<difficult>1</difficult><bndbox>", 1))
    write(tree / "ImageSets/Main/all.txt", [f"{n}x" for n in range(20)])
    split(f"voc:{tree}:all", tmp_path / "out", shares=LARGE)
    before = {record["file_name"]: record for record in get_records(f"voc:{tree}:all")}
    for side in SHARES:
        file = tmp_path / f"out/{side}.json"
        coco = COCO(str(file))
        assert {each["iscrowd"] for each in coco.loadAnns(coco.getAnnIds(catIds=coco.getCatIds(["cat"])))} == {1}
        assert {each["iscrowd"] for each in coco.loadAnns(coco.getAnnIds(catIds=coco.getCatIds(["dog"])))} == {0}
        for record in get_records(f"coco:{tree}:{file}"):
            for box, own in zip(record["annotations"], before[record["file_name"]]["annotations"], strict=True):
                marks = [(each.get(NOT_SCORED), each.get("iscrowd", 0)) for each in (box, own)]
                assert marks[0] == marks[1] and as_scored(box)["iscrowd"] == (box["category_id"] == 7)


def test_an_unreadable_image_with_boxes_in_shares_is_refused_before_anything_is_written(tmp_path):
    for n in range(20):
        blank_image(tmp_path / f"photos/{n}.jpg")
        write(tmp_path / f"labels/{n}.txt", ["0 0.5 0.5 0.2 0.4"])
    write(tmp_path / "labels/classes.txt", ["cat"])
    (tmp_path / "photos/7.jpg").write_bytes(b"no image")
    name = f"yolo:{tmp_path}/photos:{tmp_path}/labels"
    refused("photos/7.jpg has no size that can be read", split, name, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "labels/7.txt").write_text("")
    split(name, tmp_path / "out")


def test_what_groups_forbid_is_said(tmp_path):
    touch(*(tmp_path / f"data/a/clip_{n}.jpg" for n in range(80)), *(tmp_path / f"data/{n}x.jpg" for n in range(40)))
    lines = split(f"folder:{tmp_path}/data", tmp_path / "out", ("video", ""), shares=LARGE)
    assert "train has 80 images where 48 were asked for: the largest group has 80 images and stays whole" in lines
    touch(*(tmp_path / f"two/a/clip_{n}.jpg" for n in range(80)), tmp_path / "two/b.jpg")
    message = refusal(split, f"folder:{tmp_path}/two", tmp_path / "out2", ("video", ""))
    assert message.startswith(
        ("test would be empty: 2 groups have 1 to 80", "val would be empty: 2 groups have 1 to 80")
    )
    assert not (tmp_path / "out2").exists()


def test_nothing_is_overwritten_and_names_that_no_list_holds_are_refused_before_anything_is_written(tmp_path):
    touch(*(tmp_path / f"data/{n}.jpg" for n in range(20)))
    split(f"folder:{tmp_path}/data", tmp_path / "out")
    before = (tmp_path / "out/train.txt").read_text()
    refused(
        "has train.txt, val.txt, test.txt: expected a new", split, f"folder:{tmp_path}/data", tmp_path / "out", seed=3
    )
    assert (tmp_path / "out/train.txt").read_text() == before
    touch(tmp_path / "odd/a\nb.jpg", *(tmp_path / f"odd/{n}.jpg" for n in range(20)))
    refused("which no list can hold", split, f"folder:{tmp_path}/odd", tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


def test_names_of_one_file_stay_together(tmp_path):
    blank_image(tmp_path / "photos/a.jpg")
    blank_image(tmp_path / "photos/b.jpg")
    (tmp_path / "photos/c.jpg").symlink_to("a.jpg")
    (tmp_path / "linked").symlink_to("photos")
    records = named(*(f"{tmp_path}/{name}.jpg" for name in ("photos/a", "photos/b", "photos/c", "linked/b")))
    assert groups_by(records) == [0, 1, 0, 1]


def test_images_of_which_the_groups_of_a_pattern_say_nothing_are_alone_and_counted():
    records = named("pat1_a.jpg", "pat1_b.jpg", "other_a.jpg", "else_b.jpg", "pat2_c.jpg")
    groups, notes = kept_together(records, [("pattern", r"(pat\d+)|other|else")])
    assert groups.tolist() == [0, 0, 1, 2, 3]
    assert "finds nothing in 2 images, such as other_a.jpg" in notes[0]


def test_a_table_of_groups_may_name_a_file_whose_name_is_no_text(tmp_path):
    write(tmp_path / "groups.csv", b"file_name,group\n" + b"\xff.jpg,3\nb.jpg,4\n")
    names = [f"{tmp_path}/{os.fsdecode(name)}.jpg" for name in (b"b", b"\xff")]
    assert groups_by(named(*names), ("groups", f"{tmp_path}/groups.csv")) == [0, 1]


def test_a_pattern_that_is_none_is_one_line():
    refused(r"--rule pattern=\(a: .*: expected a regular expression", groups_by, named("a.jpg"), ("pattern", "(a"))


def command(words: str) -> None:
    """``tools/split.py`` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["split.py", *words.split()])
        runpy.run_path(f"{ROOT}/tools/split.py")["main"]()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("vidoe", "did you mean video?"),
        ("video=3", "this rule takes no value, got '3'"),
        ("pattern", "this rule takes a value"),
        ("block=0", "expected 1 to 1,000,000 m"),
        ("val=1", "expected a share of at least 0, below 1"),
        ("val=x", "expected a number after val=, got 'x'"),
    ],
)
def test_wrong_rules_are_refused(rule, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command(f"--data {tmp_path} --output {tmp_path}/out --rule {rule}")
    assert message in capsys.readouterr().err


def test_shares_leave_something_to_train_on(tmp_path):
    words = f"--data {tmp_path} --output {tmp_path}/out --rule val=0.5 test=0.5"
    refused("--rule val=0.5 test=0.5: expected less than 1 together", command, words)


def test_the_command_says_what_it_kept_together_and_the_sizes(tmp_path, capsys):
    touch(*(tmp_path / f"data/{n:02d}/frame_{n}.jpg" for n in range(20)))
    command(f"--data {tmp_path}/data --output {tmp_path}/out --rule folder test=0.2 val=0")
    printed = capsys.readouterr().out
    assert "folder: 20 groups of 1 to 1 images" in printed and "| images | 16 | 4 |" in printed
    files = ["groups.csv", "sizes.csv", "test.txt", "train.txt"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == files
