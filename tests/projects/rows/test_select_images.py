"""Typical and far images are those of plain loops in float64; what is chosen is a data set and can be labelled."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from commands import one_line_error, run
from trees import refused

from projects.Rows import selection
from projects.Rows.image_lists import labelled_in
from projects.Rows.row_table import RowTable, save_table
from projects.Rows.selection import SELECTIONS, at_random, k_centre, typical, without_duplicates
from revisit.data.sources.catalog import get_records

NO_LABELS = np.zeros(90, bool)


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def rows():
    """Ninety rows in three clusters of 45, 30 and 15, far from each other."""
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(3), [45, 30, 15])
    return unit(3 * np.eye(6)[cluster] + rng.normal(0, 0.3, (90, 6)))


def distance(one, other):
    return float(np.linalg.norm(one.astype(np.float64) - other.astype(np.float64)))


def typicality(rows, place, cluster, count):
    nearest = sorted(distance(rows[place], rows[other]) for other in cluster if other != place)[:count]
    return len(nearest) / sum(nearest)


@pytest.mark.parametrize("count", [20, 3])
def test_typical_images_are_those_of_highest_typicality(rows, count, monkeypatch):
    monkeypatch.setattr(selection, "NEIGHBOURS", count)
    clusters = [range(45), range(45, 75), range(75, 90)]  # the largest first
    expected = [max(cluster, key=lambda n, all_=cluster: typicality(rows, n, all_, count)) for cluster in clusters]
    assert typical(rows, NO_LABELS, 3, seed=0).tolist() == expected
    labelled = NO_LABELS.copy()
    labelled[[0, 80]] = True
    assert typical(rows, labelled, 1, seed=0).tolist() == [expected[1]]  # the one cluster that no label covers


def test_as_many_typical_images_as_there_are(rows):
    labelled = NO_LABELS.copy()
    labelled[:10] = True
    assert sorted(typical(rows, labelled, 80, seed=0)) == list(range(10, 90))


def test_small_clusters_wait(rows, monkeypatch):
    monkeypatch.setattr(selection, "MOST_CLUSTERS", 4)
    alone = unit(np.concatenate([rows, -np.eye(6)[:1]]))
    places = typical(alone, np.zeros(91, bool), 60, seed=0).tolist()
    assert 90 not in places and Counter(np.searchsorted([45, 75], places[:6], side="right")) == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("labels", [[], [3, 50]])
def test_far_images_are_those_of_loops(rows, labels):
    labelled = NO_LABELS.copy()
    labelled[labels] = True
    centres = k_centre(rows, labelled, 12, seed=1).tolist()
    chosen = labels or centres[:1]
    for place in centres[len(chosen) - len(labels) :]:
        gap = {n: min(distance(rows[n], rows[other]) for other in chosen) for n in range(90)}
        assert gap[place] == pytest.approx(max(gap.values()), abs=1e-6) and place not in chosen
        chosen = [*chosen, place]


def test_many_labels_are_compared_a_block_at_a_time_and_a_log_has_the_bars(rows, monkeypatch, capfd):
    monkeypatch.setattr("revisit.progress.IN_A_LOG", {})
    monkeypatch.setattr(selection, "AT_ONCE", 7)
    labelled = NO_LABELS.copy()
    labelled[::3] = True
    centres = k_centre(rows, labelled, 5, seed=1).tolist()
    chosen = [*range(0, 90, 3)]
    for place in centres:
        gap = [min(distance(row, rows[other]) for other in chosen) for row in rows]
        assert gap[place] == pytest.approx(max(gap), abs=1e-6)
        chosen.append(place)
    bars = capfd.readouterr().err
    assert "comparing with labelled images: 100%" in bars and "5/5 [" in bars  # blocks of 30 labels, and images


@pytest.mark.parametrize("how", SELECTIONS)
def test_each_way_depends_on_its_seed_alone_and_chooses_nothing_twice(rows, how):
    labelled = NO_LABELS.copy()
    labelled[::9] = True
    one, again = (SELECTIONS[how](rows, labelled, 30, 5).tolist() for _ in range(2))
    assert one == again and len({*one}) == 30 and not labelled[one].any()


def test_random_images_are_any(rows):
    drawn = Counter(n for seed in range(300) for n in at_random(rows, NO_LABELS, 9, seed).tolist())
    assert len(drawn) == 90 and max(drawn.values()) < 60


def test_equal_images_can_be_chosen_one_after_the_other():
    equal = unit(np.ones((6, 4)))
    for how in SELECTIONS.values():
        assert sorted(how(equal, np.zeros(6, bool), 6, 0)) == list(range(6))


@pytest.fixture
def table(rows, write_pictures, tmp_path):
    """A table of twelve images."""
    pictures = write_pictures(tmp_path / "photos", 12)
    boxes = np.array([[0, 0, 40, 30]] * 12, np.float32)
    about = {"of": "image", "flags": {}, "digest": "", "network": "", "options": {"size": 32}}
    made = RowTable(rows[::8], np.array(list(map(str, pictures))), boxes, np.array([""] * 12), about)
    (tmp_path / "rows").mkdir()
    save_table(tmp_path / "rows/embeddings.npz", made)
    return made


@pytest.mark.parametrize("how", SELECTIONS)
def test_the_command_writes_what_a_tool_for_labelling_reads(table, tmp_path, how):
    words = f"--embeddings {tmp_path}/rows --count 5 --how {how} --output {tmp_path}/out"
    assert "5 of 12 images: selected.txt" in run(f"python tools/select_images.py {words}", tmp_path)
    names = [record["file_name"] for record in get_records(f"list:{tmp_path}/out/selected.txt")]
    assert len({*names}) == 5 and {*names} <= {*table.files.tolist()}
    content = json.loads((tmp_path / "out/to_label.json").read_text())
    assert [f"{tmp_path}/photos/{image['file_name']}" for image in content["images"]] == names
    assert {(image["height"], image["width"]) for image in content["images"]} == {(30, 40)}
    assert content["annotations"] == content["categories"] == []
    tasks = json.loads((tmp_path / "out/label_studio.json").read_text())
    assert [task["data"]["image"] for task in tasks] == [f"/data/local-files/?d={name[1:]}" for name in names]
    assert '<Label value="object"/>' in (tmp_path / "out/label_studio.xml").read_text()
    assert (tmp_path / "out/selected.png").stat().st_size > 1000


def test_labelled_images_are_not_chosen(table, tmp_path):
    (tmp_path / "labelled.txt").write_text("".join(f"{name}\n" for name in table.files[:4]))
    words = f"--embeddings {tmp_path}/rows --labelled list:{tmp_path}/labelled.txt --output {tmp_path}/out"
    assert "8 of 12 images, next to 4 that" in run(f"python tools/select_images.py {words} --count 8", tmp_path)
    chosen = (tmp_path / "out/selected.txt").read_text().split()
    assert sorted(chosen) == sorted(table.files[4:].tolist())
    assert "expected at most 8" in one_line_error(f"python tools/select_images.py {words} --count 9", tmp_path)
    Path(table.files[0]).with_name("new.png").write_bytes(Path(table.files[0]).read_bytes())
    (tmp_path / "labelled.txt").write_text("photos/new.png\n")
    text = one_line_error(f"python tools/select_images.py {words} --count 2", tmp_path)
    assert "the table lacks 1 of 1 images of --labelled" in text and "embed all images" in text


def test_labels_that_were_drawn_into_the_file_to_label_are_not_replaced(table, tmp_path):
    """A second round in the folder of the first one wrote an empty file over the labels that it was given."""
    command = f"python tools/select_images.py --embeddings {tmp_path}/rows --count 4 --output {tmp_path}/out"
    run(command, tmp_path)
    run(command, tmp_path)  # nobody has labelled any yet
    path = tmp_path / "out/to_label.json"
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9], "area": 81, "iscrowd": 0}
    labels = json.loads(path.read_text()) | {"annotations": [box], "categories": [{"id": 1, "name": "cat"}]}
    path.write_text(json.dumps(labels))
    line = one_line_error(f"{command} --labelled coco:{tmp_path}/photos:{path}", tmp_path)
    assert "to_label.json has labels, which would be replaced" in line and json.loads(path.read_text()) == labels


def test_a_labelled_image_that_could_not_be_embedded_is_to_be_copied_again(table, tmp_path):
    (tmp_path / "photos/new.png").write_bytes(b"no image")
    (tmp_path / "labelled.txt").write_text("photos/new.png\n")
    embedded = table._replace(about=table.about | {"left out": ["unreadable image new.png"]})
    refused("such as .*new.png'.: copy those again", labelled_in, embedded, f"list:{tmp_path}/labelled.txt")


def test_of_a_group_the_largest_image_stays_and_where_some_are_labelled_these_alone():
    groups, labelled = list("aabbbcd"), np.array([0, 0, 0, 1, 1, 0, 1], bool)
    stays = without_duplicates(groups, labelled, np.array([4, 5, 9, 1, 2, 3, 3]))
    assert np.flatnonzero(stays).tolist() == [1, 3, 4, 5, 6]


@pytest.mark.parametrize("how", SELECTIONS)
def test_of_near_duplicates_one_is_chosen_and_none_where_one_is_labelled(table, tmp_path, how):
    """Twelve images in groups of 5, 3, 2, 1 and 1; one of the 3 has a label."""
    groups = dict(zip(table.files.tolist(), "aaaaabbbccde", strict=True))
    lines = (f"{name},{group}" for name, group in groups.items())
    (tmp_path / "groups.csv").write_text("\n".join(["file_name,group", *lines]))
    (tmp_path / "labelled.txt").write_text(f"{table.files[6]}\n")
    words = f"--embeddings {tmp_path}/rows --labelled list:{tmp_path}/labelled.txt --how {how} --output {tmp_path}/out"
    command = f"python tools/select_images.py {words} --rule groups={tmp_path}/groups.csv --count"
    assert "4 of 12 images, next to 1 that" in run(f"{command} 4", tmp_path)
    chosen = (tmp_path / "out/selected.txt").read_text().split()
    assert sorted(groups[name] for name in chosen) == list("acde")
    assert "at most 4, the images without labels of different groups" in one_line_error(f"{command} 5", tmp_path)
    (tmp_path / "groups.csv").write_text(f"file_name,group\n{table.files[0]},a\n")
    assert "has no group for 11 of 12 images" in one_line_error(f"{command} 4", tmp_path)


@pytest.mark.parametrize("layout", ["coco", "yolo"])
def test_images_that_were_found_empty_are_labelled_too(table, tmp_path, layout):
    """The first has a box, the second is empty; of COCO's no other is in the file, of YOLO's no other has one."""
    names = [Path(name) for name in table.files[:2]]
    images = [{"id": n, "file_name": name.name, "width": 40, "height": 30} for n, name in enumerate(names)]
    box = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [1, 1, 9, 9]}
    content = {"images": images, "annotations": [box], "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/classes.txt").write_text("cat")
    for name, text in zip(names, ("0 0.5 0.5 0.2 0.2", ""), strict=True):
        (tmp_path / "labels" / name.with_suffix(".txt").name).write_text(text)
    labels = {"coco": "boxes.json", "yolo": "labels"}[layout]
    is_in = labelled_in(table, f"{layout}:{tmp_path}/photos:{tmp_path}/{labels}")
    assert is_in.tolist() == [True] * 2 + [False] * 10


def test_a_budget_above_the_number_of_images_is_refused(table, tmp_path):
    words = f"python tools/select_images.py --embeddings {tmp_path}/rows --output {tmp_path}/out --count 13"
    assert "--count 13: expected at most 12" in one_line_error(words, tmp_path)
    (tmp_path / "photos/003.png").unlink()
    assert "1 of 12 images of" in one_line_error(words, tmp_path)


def test_clusters_that_are_all_small_do_not_wait():
    """Of six, four and four images: none has less than half of the mean."""
    clusters = np.repeat(np.arange(3), [6, 4, 4])
    rows = unit(3 * np.eye(5)[clusters] + np.random.default_rng(0).normal(0, 0.1, (14, 5)))
    chosen = typical(rows, np.zeros(14, bool), 3, seed=0)
    assert clusters[chosen].tolist() == [0, 1, 2]
