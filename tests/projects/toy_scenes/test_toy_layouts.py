"""The data set on disk, pixel by pixel and byte by byte, as the loaders of the real data sets see it."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from commands import FORKS
from PIL import Image, ImageDraw
from pycocotools.coco import COCO

from projects.ToyScenes import CLASS_NAMES, Scene, Split, draw_scene, make_toy_scenes, plan_image
from projects.ToyScenes.layouts import write_image
from projects.ToyScenes.plan import NUM_FRAMES, plan_video

# Of each scene-centric set of 60 and 15 images: its numbers, and its names in COCO and Cityscapes.
SETS = {Split.SCENE_TRAIN: (range(1, 61), "train2017", "train"), Split.SCENE_HELDOUT: (range(61, 76), "val2017", "val")}
CITYSCAPES = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23,
}  # fmt: skip
FIRST_CITYSCAPES_THING = 24  # person


@pytest.fixture(scope="module")
def root(toy_root: Path) -> Path:
    return toy_root / "toy_scenes"


@pytest.fixture(scope="module")
def scenes() -> dict[Split, dict[int, Scene]]:
    """Each set's scenes by number."""
    return {
        split: {number: draw_scene(plan_image(0, split, index, 60), 64) for index, number in enumerate(numbers)}
        for split, (numbers, *_) in SETS.items()
    }


def test_class_folders_and_lists_hold_the_images_of_their_class(root: Path):
    for split, share in (("train", 60), ("heldout", 15)):
        folder = root / "object_centric" / split
        assert sorted(path.name for path in folder.iterdir()) == sorted(CLASS_NAMES)
        assert len(list(folder.glob("*/*.jpg"))) == share
    assert all(len(list((root / "object_centric/train" / name).iterdir())) == 6 for name in CLASS_NAMES)
    lists = {name: (root / f"object_centric/{name}.txt").read_text().split() for name in ("train", "val", "test")}
    assert {name: len(files) for name, files in lists.items()} == {"train": 50, "val": 10, "test": 15}
    files = {str(path.relative_to(root / "object_centric")) for path in (root / "object_centric").rglob("*.jpg")}
    assert sorted(files) == sorted(sum(lists.values(), []))
    assert {Path(file).parent.name for file in lists["val"]} == set(CLASS_NAMES)


@pytest.mark.parametrize("split", SETS)
def test_coco_annotations_are_the_exact_masks(root: Path, split: Split, scenes: dict):
    name = SETS[split][1]
    coco = COCO(root / f"coco/annotations/instances_{name}.json")
    assert [category["name"] for category in coco.loadCats(coco.getCatIds())] == list(CLASS_NAMES)
    assert len(coco.imgs) == len(list((root / "coco" / name).iterdir()))
    assert len(coco.anns) == len(coco.dataset["annotations"])  # their ids are unique
    for (image_id, image), (number, scene) in zip(coco.imgs.items(), scenes[split].items(), strict=True):
        assert image_id == number and (root / "coco" / name / image["file_name"]).is_file()
        annotations = coco.loadAnns(coco.getAnnIds(image_id))
        assert [annotation["category_id"] - 1 for annotation in annotations] == scene.class_ids
        for annotation, mask, (x0, y0, x1, y1) in zip(annotations, scene.masks, scene.boxes, strict=True):
            assert np.array_equal(coco.annToMask(annotation), mask)
            assert annotation["area"] == mask.sum()
            assert annotation["bbox"] == [x0, y0, x1 - x0, y1 - y0]
            assert annotation["iscrowd"] == 0


def test_masks_and_depth_of_voc_and_nyud_lack_the_borders(root: Path, scenes: dict):
    nyud, masks = root / "NYUD_MT", root / "VOC2007/SegmentationClass"
    found = scenes[Split.SCENE_TRAIN] | scenes[Split.SCENE_HELDOUT]
    assert len(list(masks.iterdir())) == len(found)
    for number, scene in found.items():
        name, borders = f"{number:06d}", _borders(scene)
        mask, labels = Image.open(masks / f"{name}.png"), Image.open(nyud / f"segmentation/{name}.png")
        assert (mask.mode, labels.mode) == ("P", "L")
        assert np.array_equal(np.asarray(mask), np.where(borders, 255, scene.semantic))
        assert np.array_equal(np.asarray(labels), np.where(borders, 0, scene.semantic.astype(int) + 1))
        assert (nyud / f"images/{name}.jpg").read_bytes() == (root / f"VOC2007/JPEGImages/{name}.jpg").read_bytes()
        depth = np.load(nyud / f"depth/{name}.npy")
        assert (depth.dtype, depth.shape) == (np.float32, (64, 64))
        assert np.array_equal(depth == 0, borders)
        assert np.array_equal(depth[~borders], scene.depth[~borders])


def _borders(scene: Scene) -> np.ndarray:
    """What Scene.borders should be: pixels beside one that shows an object, and another one than they show."""
    padded = np.pad(scene.instances, 1)
    beside = np.stack([np.roll(padded, step, axis)[1:-1, 1:-1] for axis in (0, 1) for step in (-1, 1)])
    return ((beside != 0) & (beside != scene.instances)).any(axis=0)


@pytest.mark.parametrize("place", ["VOC2007/SegmentationClass/000001.png", "DAVIS/Annotations/480p/toy-01/00000.png"])
def test_the_palette_is_that_of_pascal_voc(place: str, root: Path):
    colours = np.reshape(Image.open(root / place).getpalette(), (256, 3)).tolist()
    known = {0: [0, 0, 0], 1: [128, 0, 0], 2: [0, 128, 0], 3: [128, 128, 0], 4: [0, 0, 128], 7: [128, 128, 128]}
    known |= {8: [64, 0, 0], 10: [64, 128, 0], 15: [192, 128, 128], 20: [0, 64, 128], 255: [224, 224, 192]}
    assert {number: colours[number] for number in known} == known


@pytest.mark.parametrize("split", SETS)
def test_cityscapes_files_hold_the_scene(root: Path, split: Split, scenes: dict):
    label_ids = np.array(list(CITYSCAPES.values()))
    for number, scene in scenes[split].items():
        stem = f"{SETS[split][2]}/toy/toy_{number:06d}_000019"
        assert np.array_equal(_read(root / f"cityscapes/leftImg8bit/{stem}_leftImg8bit.png"), scene.image)
        kinds = ("labelIds", "instanceIds", "labelTrainIds")
        gt = {kind: _read(root / f"cityscapes/gtFine/{stem}_gtFine_{kind}.png") for kind in kinds}
        assert np.array_equal(gt["labelTrainIds"], scene.semantic)
        assert np.array_equal(gt["labelIds"], label_ids[scene.semantic])
        assert (gt["labelTrainIds"].dtype, gt["labelIds"].dtype) == (np.uint8, np.uint8)
        # Classes without instances have their label id there, and the toy's eleven are all of that kind.
        assert gt["labelIds"].max() < FIRST_CITYSCAPES_THING
        assert gt["instanceIds"].dtype == np.uint16 and np.array_equal(gt["instanceIds"], gt["labelIds"])
        contents = json.loads((root / f"cityscapes/gtFine/{stem}_gtFine_polygons.json").read_text())
        assert (contents["imgHeight"], contents["imgWidth"]) == scene.semantic.shape
        assert np.array_equal(_fill(contents), gt["labelIds"])


def test_polygons_of_holes_and_of_single_pixels_fill_up_too(tmp_path: Path):
    instances = np.zeros((12, 16), np.int32)
    instances[2:9, 3:12] = 2
    instances[4:7, 5:9] = 1  # in front of 2, inside it
    instances[10, 14] = 2
    depth = np.select([instances == 1, instances == 2], [1.0, 2.0], 9.0).astype(np.float32)
    scene = Scene(np.zeros((12, 16, 3), np.uint8), instances, [9, 0, 5], depth)  # nothing shows the third object
    write_image(tmp_path, Split.SCENE_TRAIN, 0, 10, scene)
    path = tmp_path / "cityscapes/gtFine/train/toy/toy_000001_000019_gtFine_polygons.json"
    contents = json.loads(path.read_text())
    assert [item["label"] for item in contents["objects"]].count("sidewalk") == 2
    assert len(contents["objects"]) == 4 and min(len(item["polygon"]) for item in contents["objects"]) == 3
    assert np.array_equal(_fill(contents), np.select([instances == 1, instances == 2], [23, 8], 7))


def _read(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def _fill(contents: dict) -> np.ndarray:
    """Label ids, as Cityscapes makes them of its polygons: each painted over those before it."""
    canvas = Image.new("L", (contents["imgWidth"], contents["imgHeight"]), 255)
    for item in contents["objects"]:
        ImageDraw.Draw(canvas).polygon([tuple(point) for point in item["polygon"]], fill=CITYSCAPES[item["label"]])
    return np.asarray(canvas)


def test_files_are_a_video_of_davis(root: Path):
    names = (root / "DAVIS/ImageSets/2017/val.txt").read_text().split()
    assert names == ["toy-01", "toy-02"]
    for index, name in enumerate(names):
        for number, plan in enumerate(plan_video(0, index)):
            scene = draw_scene(plan, 64)
            mask = Image.open(root / f"DAVIS/Annotations/480p/{name}/{number:05d}.png")
            assert mask.mode == "P" and np.array_equal(np.asarray(mask), scene.instances)
            frame = _read(root / f"DAVIS/JPEGImages/480p/{name}/{number:05d}.jpg")
            assert np.abs(frame.astype(int) - scene.image).mean() < 4  # quality 92
        assert len(list((root / f"DAVIS/JPEGImages/480p/{name}").iterdir())) == NUM_FRAMES


def test_bytes_do_not_depend_on_the_number_of_processes(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("multiprocessing.get_context", lambda method: FORKS)  # which have imported what they need
    for workers in (1, 2):
        make_toy_scenes(tmp_path / f"{workers}", num_images=10, size=64, workers=workers)
    digests = _digests(tmp_path / "1")
    assert _digests(tmp_path / "2") == digests
    # Per scene: 2 of COCO and VOC detection, 1 mask of VOC, 5 of Cityscapes, 3 of NYUD_MT. Two videos, the lists of
    # six layouts and the record.
    assert len(digests) == 12 + 12 * (3 + 1 + 5 + 3) + 2 * 20 * 2 + 3 + 2 + 2 + 4 + 1 + 1


def test_annotations_of_generator_1_keep_their_bytes(root: Path):
    """Layouts that are added must leave the older ones as they are, to the byte."""
    digest = hashlib.sha256()
    for path in [*sorted(root.glob("VOC2007/Annotations/*")), *sorted(root.glob("coco/annotations/*"))]:
        digest.update(path.read_bytes())
    assert digest.hexdigest() == "a966daf0a5c02f81f6510af830071fd32e7b001dcb280ca720ac1261d037e4e0"


def test_long_tail_is_in_the_train_sets_alone(tmp_path: Path):
    make_toy_scenes(tmp_path / "tail", num_images=60, size=64, long_tailed=True, workers=1)
    folders = [tmp_path / f"tail/object_centric/{split}" for split in ("train", "heldout")]
    train, heldout = ([len([*(folder / name).iterdir()]) for name in CLASS_NAMES] for folder in folders)
    assert train == sorted(train, reverse=True) and train[0] >= 25 and max(heldout) == 2
    annotations = json.loads((tmp_path / "tail/coco/annotations/instances_train2017.json").read_text())
    drawn = np.bincount([item["category_id"] for item in annotations["annotations"]], minlength=11)
    assert drawn[1] > 5 * drawn[6:].max()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_run_leaves_nothing_but_what_was_there(error, tmp_path: Path, monkeypatch):
    def fail(*_):
        raise error

    make_toy_scenes(tmp_path / "there", num_images=12, size=64, workers=1)
    before = _digests(tmp_path)
    monkeypatch.setattr("projects.ToyScenes.layouts.write_scene_set", fail)
    for name in ("there", "new"):
        with pytest.raises(error):
            make_toy_scenes(tmp_path / name, num_images=10, size=64, workers=1, overwrite=name == "there")
    assert _digests(tmp_path) == before and [path.name for path in tmp_path.iterdir()] == ["there"]


def _digests(root: Path) -> dict[str, str]:
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
