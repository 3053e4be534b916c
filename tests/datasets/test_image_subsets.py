"""Subsets of large data sets: nested, exact in their counts, the same anywhere."""

import math
from decimal import Decimal, getcontext

import prepare_bdd100k
import prepare_imagenet_subsets
import prepare_openimages_subsets
import pytest
from commands import run
from hypothesis import given
from hypothesis import strategies as st
from image_subsets import assign_counts, choose, long_tailed_counts, seeded_order, uniform_counts
from trees import refused

from revisit.data.sources.catalog import get_records
from revisit.data.sources.image_folders import load_list

CLASSES = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.integers(0, 12), min_size=1, max_size=8)


def fill_one_by_one(available, total, seed):
    """Water-filling by its picture: rounds over all classes in seeded order, one image each, until it is enough."""
    counts = dict.fromkeys(available, 0)
    while True:
        for name in seeded_order(available, seed):
            if sum(counts.values()) == total:
                return counts
            counts[name] += counts[name] < available[name]


@given(CLASSES, st.data(), st.integers(0, 3))
def test_water_rises_evenly(available, data, seed):
    total = data.draw(st.integers(0, sum(available.values())))
    assert uniform_counts(available, total, seed) == fill_one_by_one(available, total, seed)


@given(CLASSES, st.data(), st.integers(0, 3))
def test_a_larger_subset_has_all_of_a_smaller_one(available, data, seed):
    files = {name: [f"{n}.jpg" for n in range(number)] for name, number in available.items()}
    totals = sorted(data.draw(st.lists(st.integers(0, sum(available.values())), min_size=2, max_size=2)))
    smaller, larger = (choose(files, uniform_counts(available, total, seed), seed) for total in totals)
    assert set(smaller) <= set(larger)
    assert [len(smaller), len(larger)] == totals == [len(set(smaller)), len(set(larger))]


def test_the_long_tail_is_the_formula_rounded():
    getcontext().prec = 50
    expected = []
    for i in range(1000):
        tail = 1 - (Decimal(i) + Decimal("0.5")) / 1000
        value = min(Decimal(1280), 5 + 567 * ((-tail.ln() / 6).exp() - 1))
        expected.append(math.floor(value + Decimal("0.5")))
    counts = long_tailed_counts(1000, least=5, most=1280, scale=567)
    assert counts == expected
    assert sum(counts) == 118090 and abs(sum(counts) / 118000 - 1) < 0.005
    assert (min(counts), max(counts)) == (5, 1280)
    fitted = sum(long_tailed_counts(1000, least=5, most=1280, scale=555))
    assert abs(fitted / 115846 - 1) < 0.005  # ImageNet-LT's own size


def test_a_class_gets_a_count_that_it_has():
    available = {"small": 2, "large": 9, "middle": 5}
    for seed in range(5):
        assert assign_counts(available, [5, 1, 9], seed) == {"large": 9, "middle": 5, "small": 1}
    refused("no class is left that has 6 images", assign_counts, available, [6, 6, 1], 0)
    many = {f"class {n}": 100 for n in range(50)}
    assert assign_counts(many, range(50), 0) != assign_counts(many, range(50), 1)


def test_an_order_stays_what_it_is():
    """Two people get the same lists, whatever they run: as the program sha256sum orders them."""
    assert seeded_order(["a", "b", "c", "d"], 0) == ["c", "b", "d", "a"]
    assert seeded_order(["d", "c", "b", "a"], 1) == ["d", "a", "b", "c"]


@pytest.fixture
def imagenet(tmp_path):
    root = tmp_path / "imagenet/train"
    for n, name in enumerate(("n01", "n02", "n03", "n04")):
        (root / name).mkdir(parents=True)
        for image in range(10 + 2 * n):
            (root / name / f"{name}_{image}.JPEG").touch()
    return root


SMALL = "--count 6 --long-tail 1 9 3"


def prepare(script, words):
    script.main(words.split())


def lists(folder):
    return {path.stem: path.read_text() for path in folder.glob("*.txt")}


def assert_nested(folder, name, smallest):
    """Four lists of files that exist, each twice as long as the one before, and with all of it."""
    sizes = [smallest * n for n in (1, 2, 4, 8)]
    files = [{record["file_name"] for record in load_list(folder / f"{name}_{size}.txt")} for size in sizes]
    assert [len(names) for names in files] == sizes
    assert files[0] < files[1] < files[2] < files[3]


def test_imagenet_becomes_nested_lists_that_can_be_loaded(imagenet, tmp_path):
    subsets = tmp_path / "subsets"
    script = f"python datasets/prepare_imagenet_subsets.py --imagenet {imagenet}"
    text = run(f"{script} --output {subsets} {SMALL}", tmp_path)
    assert "48 images, 10 to 13 a class" in text
    assert "note: ImageNet's training set has 1,281,167 images of 1,000 classes" in text and "has 52 of 4" in text
    assert_nested(subsets, "imagenet", 6)
    tail = load_list(subsets / "imagenet_6_lt.txt")
    assert len(tail) == sum(long_tailed_counts(4, least=1, most=9, scale=3))
    assert (subsets / "imagenet_classes.png").stat().st_size > 5000


def test_what_a_mac_adds_is_in_no_list(imagenet, tmp_path):
    prepare(prepare_imagenet_subsets, f"--imagenet {imagenet} --output {tmp_path}/a/subsets {SMALL}")
    files = [file for file in imagenet.rglob("*") if file.is_file()]
    for split in ("train", "test"):
        files.append(tmp_path / f"bdd100k/images/100k/{split}/1.jpg")
        files[-1].parent.mkdir(parents=True)
        files[-1].touch()
    for file in files:
        file.with_name(f"._{file.name}").touch()
    prepare(prepare_imagenet_subsets, f"--imagenet {imagenet} --output {tmp_path}/b/subsets {SMALL}")
    assert lists(tmp_path / "a/subsets") == lists(tmp_path / "b/subsets")
    prepare(prepare_bdd100k, f"--bdd100k {tmp_path}/bdd100k --output {tmp_path}/b/subsets")
    assert len(load_list(tmp_path / "b/subsets/bdd100k_90k.txt")) == 2


def test_a_seed_means_one_list(imagenet, tmp_path):
    def draw(name, seed):
        output = tmp_path / name / "subsets"
        prepare(prepare_imagenet_subsets, f"--imagenet {imagenet} --output {output} {SMALL} --seed {seed}")
        return lists(output)

    first, second, other = draw("first", 0), draw("second", 0), draw("other", 1)
    assert first == second and set(first) == set(other) and first != other
    refused("is there already and is another list", draw, "first", 1)
    assert draw("first", 0) == first


@pytest.fixture
def openimages(tmp_path):
    root = tmp_path / "openimages"
    (root / "train").mkdir(parents=True)
    rows = [f"{n % 40:04x},xclick,/m/0{n},1" for n in range(100)]
    (root / "train-annotations-bbox.csv").write_text("\n".join(["ImageID,Source,LabelName,Confidence", *rows]))
    for n in range(40):
        (root / f"train/{n:04x}.jpg").touch()
    return root


def test_openimages_becomes_nested_lists(openimages, tmp_path):
    subsets = tmp_path / "subsets"
    script = f"python datasets/prepare_openimages_subsets.py --openimages {openimages}"
    assert "note: 40 images are in the file" in run(f"{script} --output {subsets} --count 5", tmp_path)
    assert_nested(subsets, "openimages", 5)


def test_images_of_openimages_that_are_missing_are_listed(openimages, tmp_path, capsys):
    command = f"--openimages {openimages} --output {tmp_path}/subsets --count 5"
    prepare(prepare_openimages_subsets, command)
    before = lists(tmp_path / "subsets")
    gone = next(image for image in (openimages / "train").iterdir() if image.name not in before["openimages_5"])
    gone.unlink()
    for path in (tmp_path / "subsets").iterdir():
        path.unlink()
    prepare(prepare_openimages_subsets, command)
    after = lists(tmp_path / "subsets")
    assert after["openimages_5"] == before["openimages_5"]
    assert after["openimages_40.missing"] == f"train/{gone.stem}\n"
    assert "openimages_40" not in after and ("openimages_10" in after) == (gone.name not in before["openimages_10"])
    assert f"1 of 40 images are not in {openimages}/train" in capsys.readouterr().out
    for image in (openimages / "train").iterdir():
        image.unlink()
    refused("no list has all of its images", prepare, prepare_openimages_subsets, command)


@pytest.mark.parametrize(
    ("script", "options", "named"),
    [
        (prepare_imagenet_subsets, "--imagenet {0}/nowhere", "nowhere"),
        (prepare_imagenet_subsets, "--imagenet {0}/imagenet/train/n01", "n01"),
        (prepare_imagenet_subsets, "--imagenet {0}/imagenet", "train"),
        (prepare_imagenet_subsets, "--imagenet {0}/imagenet/train", "52 images of 4 classes: 118,000"),
        (prepare_openimages_subsets, "--openimages {0}/openimages --boxes {0}/nowhere.csv", "nowhere.csv"),
        (prepare_openimages_subsets, "--openimages {0}/openimages", "40 images are in the file: 118,000"),
        (prepare_openimages_subsets, "--openimages {0}/openimages --boxes {0}/other.csv", "other.csv"),
        (prepare_bdd100k, "--bdd100k {0}/nowhere", "100k/train"),
    ],
)
def test_incomplete_downloads_are_named(imagenet, openimages, tmp_path, script, options, named):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    refused(named, prepare, script, f"{options.format(tmp_path)} --output {tmp_path}/subsets")
    assert not list(tmp_path.glob("subsets/*.txt"))


def test_bdd100k_is_train_and_test(tmp_path, monkeypatch):
    for split, count in (("train", 3), ("test", 2), ("val", 4)):
        folder = tmp_path / "bdd100k/images/100k" / split
        folder.mkdir(parents=True)
        for n in range(count):
            (folder / f"{n}.jpg").touch()
    text = run("python datasets/prepare_bdd100k.py", tmp_path)
    assert "5 images" in text and "3 of 70,000 in train, 2 of 20,000 in test" in text
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    records = get_records("bdd100k_90k")
    assert len(records) == 5 and not any("val" in record["file_name"] for record in records)
