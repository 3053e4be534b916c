"""Groups and leaks are those of all pairs, one by one; hashes those of the formula; lists load as data sets."""

import csv
import itertools
import math
import tracemalloc
from pathlib import Path

import cv2
import numpy as np
import pytest
from commands import documented, one_line_error, run
from PIL import Image
from trees import refused

from projects.Rows import grouping, hierarchy
from projects.Rows.curation import Hashed, find_groups
from projects.Rows.grouping import Looks, Rule, grouped, leaks
from projects.Rows.hashes import Digests, differing_bits, perceptual_hash
from projects.Rows.hierarchy import balanced, clustered, equal_shares
from projects.Rows.image_lists import images_of
from projects.Rows.pictures import SIDE, are_same, picture_of
from projects.Rows.row_table import RowTable, save_table
from revisit.data.sources.catalog import get_records


def looks_of(rows, bits, images=None):
    """Images of N rows and hashes, all of one picture if none are given."""
    images = images or [np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)] * len(rows)
    return Looks(np.asarray(rows, np.float32), bits, np.stack([*map(picture_of, images)]))


def alike_but_for(images):
    """Images that neither rows nor hashes tell apart."""
    return looks_of(np.ones((len(images), 1)), np.zeros((len(images), 64), bool), images)


@pytest.fixture
def looks():
    """Thirty images that are drawn around six, and their parts of the same six."""
    rng = np.random.default_rng(0)
    centres, bits = rng.normal(size=(6, 8)), rng.random((6, 64)) < 0.5
    of = rng.integers(6, size=30)
    rows = centres[of] + rng.normal(0, 0.25, (30, 8))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return looks_of(rows, bits[of] ^ (rng.random((30, 64)) < 0.1))


def is_alike(one, other, rule):
    """Of a row and a hash each, in float64."""
    cosine = sum(float(x) * float(y) for x, y in zip(one[0], other[0], strict=True))
    return cosine >= rule.similar and sum(x != y for x, y in zip(one[1], other[1], strict=True)) <= rule.differing


def test_a_hash_is_that_of_the_cosine_transform(make_picture):
    picture = make_picture(96, 64)
    grey = picture.astype(float) @ [0.299, 0.587, 0.114]
    small = grey.round().reshape(32, 3, 32, 2).mean(axis=(1, 3)).round()
    waves = [[math.cos(math.pi * (2 * x + 1) * f / 64) for x in range(32)] for f in range(1, 9)]
    low = np.array(waves) @ small @ np.array(waves).T
    expected = (low > np.median(low)).ravel()
    assert (perceptual_hash(picture) != expected).sum() <= 1  # a level more or less, where OpenCV rounds


def test_a_hash_changes_little_with_light_and_size_and_much_with_the_picture():
    def picture(seed, size=(120, 90)):
        colours = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
        return cv2.resize(colours, size, interpolation=cv2.INTER_CUBIC)

    hashes = [perceptual_hash(picture(seed)) for seed in range(5)]
    darker = (0.8 * picture(0, size=(240, 180))).astype(np.uint8)
    assert (perceptual_hash(darker) != hashes[0]).sum() <= 4
    assert min((one != other).sum() for one, other in itertools.combinations(hashes, 2)) > 16
    bits = np.array(hashes)
    assert (differing_bits(bits, bits[:2]) == (bits[:, None] != bits[None, :2]).sum(axis=2)).all()


@pytest.mark.parametrize("rule", [Rule(0.9, 16), Rule(0.8, 10), Rule(0.97, 64), Rule(1.0, 0)])
def test_images_of_one_picture_are_grouped_by_all_pairs_around_the_first_in_order(looks, rule, monkeypatch):
    monkeypatch.setattr(grouping, "BLOCK", 7)
    images = list(zip(*looks[:2], strict=True))
    expected = list(range(30))
    for one, other in itertools.combinations(range(30), 2):
        if is_alike(images[one], images[other], rule):
            expected = [expected[one] if group == expected[other] else group for group in expected]
    order = np.random.default_rng(1).permutation(30)
    result = grouped(looks, rule, order)
    firsts = list(dict.fromkeys(expected))
    assert result.groups.tolist() == [firsts.index(group) for group in expected]
    members = [[place for place in order.tolist() if expected[place] == group] for group in expected]
    assert result.kept.tolist() == [places[0] for places in members]
    alike, others = result.alike, result.others
    assert (others.cosines < rule.similar).all()
    assert (np.diff(alike.cosines) <= 0).all() and (np.diff(others.cosines) <= 0).all()
    left_out = {(image, kept) for image, kept in enumerate(result.kept.tolist()) if image != kept}
    assert len(alike.places) == min(grouping.SHOWN, len(left_out)) and {*map(tuple, alike.places.tolist())} <= left_out
    for (one, other), cosine, differing in zip(alike.places, alike.cosines, alike.differing, strict=True):
        assert cosine == pytest.approx(looks.rows[one] @ looks.rows[other], abs=1e-6)
        assert differing == sum(looks.bits[one] != looks.bits[other])


def wide_picture(height, width, seed=0):
    """Blots of all sizes, as photographs have them."""
    rng = np.random.default_rng(seed)
    scales = [(8, 16), (16, 64), (48, 240)]
    layers = [
        cv2.resize(rng.normal(size=(*scale, 3)), (width, height), interpolation=cv2.INTER_CUBIC) for scale in scales
    ]
    return np.clip(128 + 40 * sum(layers), 0, 255).astype(np.uint8)


def test_of_a_slow_pan_no_frame_is_left_out_that_shares_little_with_the_one_that_is_kept():
    """63 frames of 96 px, each 8 px on: all are linked by their neighbours, and the ends share no pixel."""
    scene = wide_picture(60, 96 + 62 * 8)
    frames = [scene[:, 8 * n : 8 * n + 96] for n in range(63)]
    result = grouped(alike_but_for(frames), Rule(0.9, 16), np.arange(63))
    assert max(abs(result.kept - np.arange(63))) <= 3 and len({*result.kept.tolist()}) >= 16
    assert all(
        are_same(picture_of(frames[kept]), picture_of(frame)) for frame, kept in zip(frames, result.kept, strict=True)
    )


def page_of_text(seed):
    """Lines of words in one place on every page; which letters they have differs."""
    page = np.full((220, 160, 3), 255, np.uint8)
    rng = np.random.default_rng(seed)
    for line in range(12, 208, 14):
        dark = rng.random(34) < 0.75
        page[line : line + 8, 12:148] = np.where(dark.repeat(4), 30, 255)[None, :, None]
    return page


@pytest.mark.parametrize("are_equal", [True, False])
def test_frames_that_are_all_alike_take_a_bit_of_memory_for_each_pair(are_equal, monkeypatch):
    monkeypatch.setattr(grouping, "BLOCK", 16)
    frames = alike_but_for([np.full((8, 8, 3), 90, np.uint8)] * 2000)
    if not are_equal:
        frames.pictures.reshape(2000, -1)[range(2000), range(2000)] += 1
    tracemalloc.start()
    alike = grouped(frames, Rule(0.9, 16), np.arange(2000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not alike.kept.any() and not alike.groups.any()
    assert peak < 2000**2 * 8  # bytes: one pair alone is two numbers of four


def test_copies_take_no_memory_for_each_pair_and_are_grouped_as_if_they_did(looks, monkeypatch):
    monkeypatch.setattr(grouping, "BLOCK", 16)
    rng = np.random.default_rng(0)
    copied = looks.of(rng.integers(30, size=900))
    order, taken, kept = rng.permutation(900), [], grouping._kept
    monkeypatch.setattr(grouping, "_kept", lambda pictures, links: taken.append(links) or kept(pictures, links))
    found = grouped(copied, Rule(0.9, 16), order)
    monkeypatch.setattr(grouping, "_first_equals", lambda looks: np.arange(len(looks.rows)))
    every = grouped(copied, Rule(0.9, 16), order)
    for one, other in zip(found[:2] + found.alike + found.others, every[:2] + every.alike + every.others, strict=True):
        np.testing.assert_array_equal(one, other)
    few, many = (sum(each.nbytes for each in links) for links in taken)
    assert len(set(found.kept.tolist())) > 5 and few < 30 * 30 * 4 and many > 900 * 900 // 8 // 6


def test_of_images_that_are_all_alike_so_many_pairs_are_compared_at_a_time(monkeypatch):
    monkeypatch.setattr(grouping, "MOST_PAIRS", 640)
    frames = alike_but_for([np.full((8, 8, 3), 90, np.uint8)] * 300)
    counts = [len(pairs.places) for pairs in grouping.pairs_of(frames, frames, 16, "comparing")]
    assert max(counts) <= 640 and sum(counts) == 300**2
    assert not grouped(frames, Rule(0.9, 16), np.arange(300)).kept.any()
    leaked = leaks(frames, frames.of(slice(200)), Rule(0.9, 16))
    assert leaked.training.all() and {*leaked.pairs.places[:, 0].tolist()} == {*range(200)}


def test_pages_of_other_text_and_areas_of_other_colours_are_no_duplicates():
    pages = [page_of_text(seed) for seed in range(8)]
    flat = [np.full((40, 60, 3), colour, np.uint8) for colour in (255, 0, 128, (76, 0, 149), (255, 0, 0), (76, 76, 76))]
    dots = [flat[0].copy() for _ in range(3)]
    dots[1][5:7, 5:7], dots[2][30:32, 50:52] = 0, 0
    for images in (pages, flat, dots):
        assert grouped(alike_but_for(images), Rule(0.9, 16), np.arange(len(images))).kept.tolist() == [
            *range(len(images))
        ]
    again = [cv2.resize(page, (320, 440)) for page in pages] + [image[:20] for image in flat[:3]]
    kept = grouped(alike_but_for(pages + flat[:3] + again), Rule(0.9, 16), np.arange(22)).kept
    assert kept.tolist() == [*range(11), *range(11)]


@pytest.mark.parametrize(("height", "width"), [(150, 90), (64, 200)])
def test_a_picture_is_the_same_after_a_crop_with_other_light_and_not_beside_it(height, width):
    image = wide_picture(height, width)
    part = image[: round(0.91 * height), round(0.08 * width) :]
    assert are_same(picture_of(image), picture_of((0.7 * part).astype(np.uint8)))
    assert are_same(picture_of(part), picture_of(image))
    assert not are_same(picture_of(image), picture_of(image[:, width // 3 :]))
    assert not are_same(picture_of(image), picture_of(wide_picture(height, width, seed=1)))
    assert picture_of(image).shape == (SIDE, SIDE, 3)


def test_leaks_are_those_of_all_pairs(looks, monkeypatch):
    monkeypatch.setattr(grouping, "BLOCK", 4)
    training, test = looks.of(slice(20)), looks.of(slice(20, None))
    rule = Rule(0.9, 20)
    leaked = leaks(training, test, rule)
    pairs = [
        (t, n)
        for t, one in enumerate(zip(*test, strict=True))
        for n, other in enumerate(zip(*training, strict=True))
        if is_alike(one, other, rule)
    ]
    named = [*map(tuple, leaked.pairs.places.tolist())]
    assert pairs and {*named} <= {*pairs} and {t for t, _ in named} == {t for t, _ in pairs}
    assert {n for _, n in named} == {n for _, n in pairs} == {*np.flatnonzero(leaked.training).tolist()}
    for t in {t for t, _ in named}:
        best = max((other for one, other in pairs if one == t), key=lambda other: test.rows[t] @ training.rows[other])
        assert (t, best) in named


def test_every_training_image_that_leaks_is_named_and_no_other_one_is_left_out():
    """A clip of 40 frames, of which a test frame equals the 21st, and shares little with those that are far."""
    scene = wide_picture(60, 96 + 39 * 8)
    frames = [scene[:, 8 * n : 8 * n + 96] for n in range(40)]
    leaked = leaks(alike_but_for(frames), alike_but_for(frames[20:21]), Rule(0.9, 16))
    assert 20 in leaked.pairs.places[:, 1] and abs(leaked.pairs.places[:, 1] - 20).max() <= 3
    assert sorted(leaked.pairs.places[:, 1]) == np.flatnonzero(leaked.training).tolist()


def table_of(rows, names, sizes):
    boxes = np.array([[0, 0, width, height] for height, width in sizes], np.float32)
    about = {"of": "image", "flags": {}, "digest": "", "network": "", "options": {"size": 32}}
    return RowTable(np.asarray(rows, np.float32), np.array(names), boxes, np.array([""] * len(names)), about)


def test_the_largest_image_is_kept_that_does_not_leak(tmp_path):
    names, sizes = list("abcde"), [(10, 10), (20, 20), (20, 20), (5, 5), (8, 8)]
    looks = looks_of(np.eye(3)[[0, 0, 0, 1, 2]], np.zeros((5, 64), bool))
    photos = [str(tmp_path / f"{name}.png") for name in names]
    for photo in photos:
        Image.new("RGB", (20, 20)).save(photo)
    images = Hashed(table_of(looks.rows, photos, sizes), Digests(np.array(names), *looks[1:]))

    def kept(*leaking):
        return find_groups(images, Rule(0.9, 16), np.isin(names, leaking), tmp_path)[0].tolist()

    assert kept() == [1, 3, 4]
    assert kept("a", "e") == [1, 3]
    assert kept("b") == [2, 3, 4]
    assert kept("a", "b", "c") == [3, 4]


@pytest.mark.parametrize("total", [0, 1, 7, 12, 30, 41])
def test_shares_are_as_equal_as_sizes_allow(total):
    sizes = np.array([1, 30, 4, 6])
    shares = equal_shares(sizes, total, np.random.default_rng(0))
    by_hand = [0] * 4
    for _ in range(total):  # one after the other, to whoever has least
        by_hand[min((n for n in range(4) if by_hand[n] < sizes[n]), key=lambda n: by_hand[n])] += 1
    assert sorted(shares) == sorted(by_hand) and shares.sum() == total and (shares <= sizes).all()


def test_a_balanced_part_has_as_many_of_a_small_cluster_as_of_a_large_one():
    rng = np.random.default_rng(0)
    places = np.repeat(np.arange(4), [200, 40, 40, 20])  # the first three lie close to each other
    centres = np.array([[1, 0, 0.0], [0.9, 0.4, 0], [0.9, 0, 0.4], [-1, 0, 0]])
    rows = (centres[places] + rng.normal(0, 0.02, (300, 3))).astype(np.float32)
    levels = clustered(rows, [4, 2])
    assert len({*zip(levels[0].tolist(), places.tolist(), strict=True)}) == 4  # each cluster is one of the four
    assert len({*zip(levels[1].tolist(), levels[0].tolist(), strict=True)}) == 4  # and of one coarse cluster
    part = balanced(levels, 36)
    assert len({*part.tolist()}) == 36 and (np.diff(part) > 0).all()
    assert np.bincount(places[part]).tolist() == [6, 6, 6, 18]
    assert np.bincount(places[balanced(levels, 60)])[3] == 20  # all that there are
    assert len(balanced(levels, 300)) == 300


def test_images_that_are_all_alike_are_one_cluster():
    assert clustered(np.ones((6, 4), np.float32), [3, 2])[0].tolist() == [0] * 6


def embed(weights, images, output):
    words = f"--weights {weights} --data {images} --size 32 --readers 0 --output {output}"
    return run(f"python tools/embed.py {words}", Path(images))


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def test_the_command_finds_copies_and_leaks_and_writes_data_sets(weights, write_pictures, tmp_path):
    pictures = write_pictures(tmp_path / "photos", 6, size=(64, 96))
    (tmp_path / "photos/same.png").write_bytes(pictures[0].read_bytes())
    image = Image.open(pictures[1])
    image.resize((144, 96)).save(tmp_path / "photos/larger.png")
    (tmp_path / "test").mkdir()
    image.save(tmp_path / "test/leak.jpg", quality=90)
    Image.open(pictures[5]).rotate(180).save(tmp_path / "test/other.png")
    embed(weights, f"folder:{tmp_path}/photos", tmp_path / "rows")
    words = f"--embeddings {tmp_path}/rows --rule cosine=0.9 bits=8 clusters=2 --test {tmp_path}/test --count 3"
    command = f"python tools/curate.py {words} --weights {weights} --output {tmp_path}/out"
    text = run(command, tmp_path)
    assert "8 images show 6 things: 1 copies of the same bytes, 1 near-duplicates; the largest group has 2" in text
    assert "LEAKS: 1 of 2 test images nearly equal 2 of 8 training images, which are left out" in text
    header, *lines = read_csv(tmp_path / "out/groups.csv")
    groups = {Path(name).name: group for name, group in lines}
    assert header == ["file_name", "group"] and len(lines) == 8 and len({*groups.values()}) == 6
    assert groups["same.png"] == groups["000.png"] and groups["larger.png"] == groups["001.png"]
    header, *leaking = read_csv(tmp_path / "out/leaks.csv")
    assert header == ["test", "training", "bits", "cosine"]
    named = [tuple(Path(name).name for name in line[:2]) for line in leaking]
    assert sorted(named) == [("leak.jpg", "001.png"), ("leak.jpg", "larger.png")]
    names = [Path(record["file_name"]).name for record in get_records(f"list:{tmp_path}/out/unique.txt")]
    assert names == ["000.png", "002.png", "003.png", "004.png", "005.png"]  # none of what leaks
    assert len(get_records(f"list:{tmp_path}/out/balanced.txt")) == 3
    header, *lines = read_csv(tmp_path / "out/clusters.csv")
    assert header == ["file_name", "cluster", "coarse"] and len(lines) == 5
    assert all((tmp_path / "out" / name).stat().st_size > 1000 for name in ("pairs.png", "leaks.png"))
    again = run(command.replace("cosine=0.9", "cosine=1"), tmp_path)
    assert "hashing" not in again and "8 images show 7 things: 1 copies" in again
    assert "is there already" in again  # the test images' rows


@pytest.mark.docs
def test_the_commands_of_the_page_run_as_they_are_typed(weights, write_pictures, tmp_path):
    write_pictures(tmp_path / "photos", 6)
    write_pictures(tmp_path / "test", 2)  # the first two of these
    for command in documented("projects/Rows/curation.md"):
        command = command.replace("/data", str(tmp_path)).replace(" output", f" {tmp_path}/output")
        command = command.replace("groups=", f"groups={tmp_path}/")
        command = command.replace("imagenet:efficientnet_lite0", weights)
        command += " --size 32 --readers 0" * ("embed.py" in command)
        text = run(command.replace("--count 50", "--count 3"), tmp_path)
        assert "LEAKS: 2 of 2" in text or "curate.py" not in command
    assert len(get_records(f"list:{tmp_path}/output/to_label/selected.txt")) == 3


def test_no_duplicates_and_no_leaks_are_plain_statements(weights, write_pictures, tmp_path):
    write_pictures(tmp_path / "photos", 4, size=(64, 96))
    embed(weights, f"folder:{tmp_path}/photos", tmp_path / "rows")
    (tmp_path / "test").mkdir()
    Image.fromarray(np.full((40, 40, 3), 120, np.uint8)).save(tmp_path / "test/grey.png")
    embed(weights, f"folder:{tmp_path}/test", tmp_path / "test_rows")
    words = f"--embeddings {tmp_path}/rows --test {tmp_path}/test_rows --output {tmp_path}/out"
    text = run(f"python tools/curate.py {words}", tmp_path)
    assert "no duplicates: no two of 4 images" in text and "no leaks: none of 1 test images" in text
    assert len((tmp_path / "out/unique.txt").read_text().splitlines()) == 4
    (tmp_path / "out/leaks.png").write_bytes(b"of another threshold")
    run(f"python tools/curate.py {words}", tmp_path)
    assert not (tmp_path / "out/leaks.png").exists() and (tmp_path / "out/leaks.csv").exists()
    run(f"python tools/curate.py --embeddings {tmp_path}/rows --output {tmp_path}/out", tmp_path)
    assert not (tmp_path / "out/leaks.csv").exists()


def test_images_that_have_changed_since_they_were_embedded_are_refused(weights, write_pictures, tmp_path):
    pictures = write_pictures(tmp_path / "photos", 4, size=(64, 96))
    embed(weights, f"folder:{tmp_path}/photos", tmp_path / "rows")
    pictures[3].touch()
    assert images_of(tmp_path / "rows").files.tolist() == list(map(str, pictures))
    Image.open(pictures[0]).resize((50, 50)).save(pictures[3])
    refused("other sizes than when they were embedded: embed these again", images_of, tmp_path / "rows")


def test_refusals_say_what_to_do(weights, write_pictures, tmp_path):
    write_pictures(tmp_path / "one", 1)
    pictures = write_pictures(tmp_path / "photos", 3)
    embed(weights, f"folder:{tmp_path}/one", tmp_path / "one_row")
    curate = f"python tools/curate.py --output {tmp_path}/out --embeddings"
    assert "has one image: expected two at least" in one_line_error(f"{curate} {tmp_path}/one_row", tmp_path)
    assert "expected the output of tools/embed.py" in one_line_error(f"{curate} {tmp_path}/photos", tmp_path)
    table = table_of(np.eye(3), list(map(str, pictures)), [(30, 40)] * 3)
    for name in ("rows", "boxes"):
        (tmp_path / name).mkdir()
    save_table(tmp_path / "rows/embeddings.npz", table)
    save_table(tmp_path / "boxes/embeddings.npz", table._replace(about=table.about | {"of": "box"}))
    assert "has rows of boxes: expected those of images" in one_line_error(f"{curate} {tmp_path}/boxes", tmp_path)
    several = f"{curate} {tmp_path}/rows"
    assert "expected at most 3, the images that differ" in one_line_error(f"{several} --count 4", tmp_path)
    assert "expected at most 3, the images that differ" in one_line_error(f"{several} --rule clusters=4", tmp_path)
    assert "--rule cosine=2.0: expected above 0" in one_line_error(f"{several} --rule cosine=2", tmp_path)
    assert "--rule bits=65: expected 0 to 64" in one_line_error(f"{several} --rule bits=65", tmp_path)
    other = one_line_error(f"{several} --test {tmp_path}/one_row", tmp_path)
    assert "was embedded by other weights or with another --size" in other
    assert "unknown data set" in one_line_error(f"{several} --test {tmp_path}/nowhere", tmp_path)
    pictures[1].write_bytes(b"no image")
    assert "embed again" in one_line_error(f"{several} --output {tmp_path}/new", tmp_path)
    pictures[1].unlink()
    assert "1 of 3 images of " in one_line_error(several, tmp_path)


def test_each_level_is_fitted_ten_times_again_to_half_of_the_mean_cluster_around_each_centre(monkeypatch):
    fitted, k_means = [], hierarchy.k_means
    monkeypatch.setattr(hierarchy, "k_means", lambda rows, *how: fitted.append(len(rows)) or k_means(rows, *how))
    rng = np.random.default_rng(0)
    rows = np.eye(4)[np.arange(300) % 4] + rng.normal(0, 0.02, (300, 4))
    clustered(rows.astype(np.float32), [4, 2])
    assert fitted == [300] + [4 * 37] * 10 + [4] + [2] * 10  # 37 of 75; of four centres, one around each of two
