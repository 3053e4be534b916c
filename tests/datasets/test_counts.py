"""Objects per image and images per class, counted in tiny files in the layouts of the real data sets."""

import json

import count_classes
import count_objects
import pytest
from trees import refused

from revisit.errors import UserError

BOX = {"x1": 1.0, "y1": 2.0, "x2": 30.0, "y2": 40.0}


def write_coco(folder):
    """instances_train2017.json: three images, one of them without an object; a crowd is one object."""
    images = [{"id": n, "file_name": f"{n:012d}.jpg", "height": 48, "width": 64} for n in (9, 25, 30)]
    owners = ((9, 0), (9, 1), (25, 0), (9, 0))
    annotations = [
        {"id": n, "image_id": image, "category_id": 1, "bbox": [1, 2, 3, 4], "area": 12, "iscrowd": crowd}
        for n, (image, crowd) in enumerate(owners, start=1)
    ]
    content = {"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": []}
    (folder / "instances.json").write_text(json.dumps(content))
    return folder / "instances.json", {"000000000009": 3, "000000000025": 1, "000000000030": 0}


def write_openimages(folder):
    """train-annotations-bbox.csv: a line for each box, boxes of one image together."""
    header = (
        "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
    )
    counts = {"000002b66c9c498e": 2, "000002b97e5471a0": 3}
    lines = [f"{name},xclick,/m/01g317,1,0.01,0.2,0.3,0.4,0,1,0,0,0" for name, n in counts.items() for _ in range(n)]
    (folder / "boxes.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder / "boxes.csv", counts


def bdd100k_frames():
    """Two boxes beside a lane, a frame without an object, and one whose labels were left out."""
    car = {"category": "car", "id": 0, "box2d": BOX, "manualShape": True, "attributes": {"occluded": False}}
    lane = {"category": "lane", "poly2d": [{"vertices": [[1.0, 2.0], [3.0, 4.0]], "types": "LL", "closed": False}]}
    labels = {"0000f77c-6257be58.jpg": [car, lane, car], "0000f77c-62c2a288.jpg": [], "0000f77c-cb820c98.jpg": None}
    return [{"name": name, "attributes": {"weather": "clear"}, "labels": found} for name, found in labels.items()]


def write_bdd100k(folder):
    """bdd100k_labels_images_train.json."""
    (folder / "labels.json").write_text(json.dumps(bdd100k_frames()))
    return folder / "labels.json", {"0000f77c-6257be58": 2, "0000f77c-62c2a288": 0, "0000f77c-cb820c98": 0}


def write_bdd100k_in_a_dict(folder):
    (folder / "frames.json").write_text(json.dumps({"frames": bdd100k_frames()[:2], "config": {}}))
    return folder / "frames.json", {"0000f77c-6257be58": 2, "0000f77c-62c2a288": 0}


def write_imagenet(folder):
    """Annotation/n01440764/n01440764_18.xml and so on."""
    counts = {"n01440764_18": 1, "n01440764_37": 3, "n01443537_2": 2}
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox>"
    for name, number in counts.items():
        file = folder / "Annotation" / name.partition("_")[0] / f"{name}.xml"
        file.parent.mkdir(parents=True, exist_ok=True)
        part = "<part><name>head</name></part>"
        objects = f"<object><name>{file.parent.name}</name>{part}{box}</object>" * number
        file.write_text(f"<annotation><filename>{name}</filename><size><width>64</width></size>{objects}</annotation>")
    return folder / "Annotation", counts


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("coco", write_coco),
        ("openimages", write_openimages),
        ("bdd100k", write_bdd100k),
        ("bdd100k", write_bdd100k_in_a_dict),
        ("imagenet", write_imagenet),
    ],
)
def test_objects_are_counted_in_every_layout(kind, write, tmp_path, capsys):
    path, expected = write(tmp_path)
    assert dict(count_objects.KINDS[kind](path)) == expected
    count_objects.main([kind, str(path), "--output", str(tmp_path / "out")])
    total, images = sum(expected.values()), len(expected)
    found = json.loads((tmp_path / "out/objects.json").read_text())
    assert found.pop("objects_per_image") == pytest.approx(total / images)
    assert found == {"images": images, "without_annotations": 0, "objects": total, "annotations": str(path)}
    assert f"{total} objects in {images} images, {total / images:.2f} per image" in capsys.readouterr().out


def test_a_list_of_images_decides_which_count_and_says_which_have_no_annotations(tmp_path, capsys):
    path, _ = write_imagenet(tmp_path)
    names = ("n01440764/n01440764_37.JPEG", "n01443537/n01443537_2.JPEG", "n01443537/n01443537_9.JPEG")
    lines = "".join(f"../imagenet/train/{name}\n" for name in names)
    (tmp_path / "subset.txt").write_text(f"# a subset\n\n{lines}")
    count_objects.main(["imagenet", str(path), "--list", f"{tmp_path}/subset.txt", "--output", str(tmp_path)])
    assert "5 objects in 2 images, 2.50 per image; 1 more of the list have no annotations" in capsys.readouterr().out
    (tmp_path / "other.txt").write_text("elsewhere/x.JPEG\n")
    with pytest.raises(UserError, match="has annotations of none of the 1 images in"):
        count_objects.main(["imagenet", str(path), "--list", f"{tmp_path}/other.txt", "--output", str(tmp_path)])


@pytest.mark.parametrize("kind", count_objects.KINDS)
def test_what_is_laid_out_otherwise_is_named(kind, tmp_path):
    (tmp_path / "wrong/wrong.xml").parent.mkdir()
    (tmp_path / "wrong/wrong.xml").write_text('{"images": [{"name": 3}]}')
    wrong = tmp_path / "wrong" if kind == "imagenet" else tmp_path / "wrong/wrong.xml"
    for path in (tmp_path / "nothing", wrong):
        refused(path.name, count_objects.main, [kind, str(path), "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_images_are_counted_by_the_folder_of_their_class(tmp_path, write_pictures, capsys):
    for name, number in (("n01", 1), ("n02", 4), ("n03", 2)):
        write_pictures(tmp_path / "train" / name, number)
    count_classes.main([f"folder:{tmp_path}/train", "--output", str(tmp_path / "out")])
    (found,) = json.loads((tmp_path / "out/classes.json").read_text()).values()
    assert found == {"n01": 1, "n02": 4, "n03": 2}
    assert "7 images of 3 classes, 1 to 4 a class" in capsys.readouterr().out
    assert (tmp_path / "out/classes.png").stat().st_size > 5000
