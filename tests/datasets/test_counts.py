"""Objects per image and images per class, counted in tiny files in the layouts of the real data sets."""

import json
from functools import partial

import count_classes
import count_objects
import pytest
from trees import refused, write


def write_coco(folder):
    """Three images, one of them without an object; a crowd is one object."""
    images = [{"id": n, "file_name": f"{n:012d}.jpg"} for n in (9, 25, 30)]
    owners = ((9, 0), (9, 1), (25, 0), (9, 0))
    annotations = [{"id": n, "image_id": image, "iscrowd": crowd} for n, (image, crowd) in enumerate(owners, start=1)]
    (folder / "instances.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    return folder / "instances.json", {"000000000009": 3, "000000000025": 1, "000000000030": 0}


def write_openimages(folder):
    """A line for each box, boxes of one image together."""
    counts = {"000002b66c9c498e": 2, "000002b97e5471a0": 3}
    lines = [f"xclick,{name},/m/01g317,1,0.01,0.2,0.3,0.4" for name, n in counts.items() for _ in range(n)]
    (folder / "boxes.csv").write_text("\n".join(["Source,ImageID,LabelName,Confidence,XMin,XMax,YMin,YMax", *lines]))
    return folder / "boxes.csv", counts


def write_bdd100k(folder, in_a_dict=False):
    """Two boxes beside a lane, a frame without an object, and one whose labels were left out."""
    car, lane = {"category": "car", "box2d": {"x1": 1.0}}, {"category": "lane", "poly2d": [{"vertices": [[1.0, 2.0]]}]}
    frames = [{"name": f"{n}.jpg", "labels": labels} for n, labels in enumerate(([car, lane, car], [], None))]
    (folder / "labels.json").write_text(json.dumps({"frames": frames, "config": {}} if in_a_dict else frames))
    return folder / "labels.json", {"0": 2, "1": 0, "2": 0}


def write_imagenet(folder):
    """Annotation/n01440764/n01440764_18.xml and so on."""
    counts = {"n01440764_18": 1, "n01440764_37": 3, "n01443537_2": 2}
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin></bndbox>"
    for name, number in counts.items():
        objects = f"<object><name>n</name><part><name>head</name></part>{box}</object>" * number
        write(folder / f"Annotation/{name.partition('_')[0]}/{name}.xml", f"<annotation>{objects}</annotation>")
    for added in ("n01440764/._n01440764_18.xml", "__MACOSX/._n01440764_18.xml"):
        write(folder / f"Annotation/{added}", "resource fork")
    return folder / "Annotation", counts


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("coco", write_coco),
        ("openimages", write_openimages),
        ("bdd100k", write_bdd100k),
        ("bdd100k", partial(write_bdd100k, in_a_dict=True)),
        ("imagenet", write_imagenet),
    ],
)
def test_objects_are_counted_in_every_layout(kind, make, tmp_path, capsys):
    path, expected = make(tmp_path)
    assert dict(count_objects.KINDS[kind](path)) == expected
    count_objects.main([kind, str(path), "--output", str(tmp_path / "out")])
    total, images = sum(expected.values()), len(expected)
    found = json.loads((tmp_path / "out/objects.json").read_text())
    assert found.pop("objects_per_image") == pytest.approx(total / images)
    assert found == {"images": images, "without_annotations": 0, "objects": total, "annotations": str(path)}
    assert f"{total} objects in {images} images, {total / images:.2f} per image" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["coco", "bdd100k", "imagenet"])
def test_images_of_one_name_in_several_folders_are_not_counted_as_one(kind, tmp_path):
    files, path = ("a/1.jpg", "b/1.jpg", "b/2.jpg"), tmp_path / "labels"
    images = [{"id": n, "file_name": file, "name": file} for n, file in enumerate(files)]
    if kind == "imagenet":
        for file in files:
            write(path / f"{file}.xml".replace(".jpg", ""), "<annotation/>")
    else:
        write(path, json.dumps({"images": images, "annotations": [], "frames": images}))
    refused("2 images are called 1, without", count_objects.main, [kind, str(path), "--output", str(tmp_path / "out")])


def test_a_list_of_images_decides_which_count_and_says_which_have_no_annotations(tmp_path, capsys):
    path, _ = write_imagenet(tmp_path)
    names = ("n01440764/n01440764_37.JPEG", "n01443537/n01443537_2.JPEG", "n01443537/n01443537_9.JPEG")
    lines = "".join(f"../imagenet/train/{name}\n" for name in names)
    (tmp_path / "subset.txt").write_text(f"# a subset\n\n{lines}")
    output = ["--output", str(tmp_path)]
    count_objects.main(["imagenet", str(path), "--list", f"{tmp_path}/subset.txt"] + output)
    assert "5 objects in 2 images, 2.50 per image; 1 more of the list have no annotations" in capsys.readouterr().out
    (tmp_path / "other.txt").write_text("elsewhere/x.JPEG\n")
    refused(
        "of none of the 1 images",
        count_objects.main,
        ["imagenet", str(path), "--list", f"{tmp_path}/other.txt"] + output,
    )


@pytest.mark.parametrize("kind", count_objects.KINDS)
def test_what_is_laid_out_otherwise_is_named(kind, tmp_path):
    (tmp_path / "wrong/wrong.xml").parent.mkdir()
    (tmp_path / "wrong/wrong.xml").write_text('{"images": [{"name": 3}]}')
    wrong = tmp_path / "wrong" if kind == "imagenet" else tmp_path / "wrong/wrong.xml"
    for path in (tmp_path / "nothing", wrong):
        refused(path.name, count_objects.main, [kind, str(path), "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_folders_of_one_name_are_two_lines(tmp_path, write_pictures, monkeypatch):
    drawn, names = [], [f"folder:{tmp_path}/{place}/train" for place in "ab"]
    for place in "ab":
        write_pictures(tmp_path / place / "train/n01", 1)
    monkeypatch.setattr(count_classes, "plot_classes", lambda counts, path: drawn.extend(counts))
    count_classes.main([*names, "--output", str(tmp_path / "out")])
    assert drawn == names


def test_images_are_counted_by_the_folder_of_their_class(tmp_path, write_pictures, capsys):
    for name, number in (("n01", 1), ("n02", 4), ("n03", 2)):
        write_pictures(tmp_path / "train" / name, number)
    count_classes.main([f"folder:{tmp_path}/train", "--output", str(tmp_path / "out")])
    (found,) = json.loads((tmp_path / "out/classes.json").read_text()).values()
    assert found == {"n01": 1, "n02": 4, "n03": 2}
    assert "7 images of 3 classes, 1 to 4 a class" in capsys.readouterr().out
    assert (tmp_path / "out/classes.png").stat().st_size > 5000
