"""Labels and depth on disk, pixel by pixel, as VOC segmentation, Cityscapes and NYUD_MT have them."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from projects.ToyScenes import CLASS_NAMES, Scene, Split, draw_scene, make_toy_scenes, pixel_layouts, plan_image
from revisit.data.catalog import get_records

NUM_TRAIN = 20
SETS = {Split.SCENE_TRAIN: "train", Split.SCENE_HELDOUT: "val"}
CITYSCAPES = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23,
}  # fmt: skip
FIRST_CITYSCAPES_THING = 24  # person


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("data") / "toy_scenes"
    assert make_toy_scenes(output, num_images=NUM_TRAIN, size=64, workers=1)
    return output


@pytest.fixture(scope="module")
def scenes() -> list[tuple[Split, str, Scene]]:
    """Set, six-digit number and scene of every scene-centric image."""
    found = []
    for split, first in ((Split.SCENE_TRAIN, 1), (Split.SCENE_HELDOUT, NUM_TRAIN + 1)):
        for index in range(split.num_images(NUM_TRAIN)):
            scene = draw_scene(plan_image(0, split, index, NUM_TRAIN), 64)
            found.append((split, f"{first + index:06d}", scene))
    return found


def test_voc_masks_are_palette_files_with_void_borders(root: Path, scenes: list):
    assert len(list((root / "VOC2007/SegmentationClass").iterdir())) == len(scenes) == 25
    for _, number, scene in scenes:
        mask = Image.open(root / f"VOC2007/SegmentationClass/{number}.png")
        assert mask.mode == "P"
        assert np.array_equal(np.asarray(mask), np.where(_borders(scene), 255, scene.semantic))
    drawn = np.unique(np.concatenate([scene.semantic for *_, scene in scenes]))
    assert drawn.tolist() == list(range(len(CLASS_NAMES) + 1))  # otherwise these tests missed a class


def test_voc_palette_is_that_of_pascal_voc(root: Path):
    palette = Image.open(root / "VOC2007/SegmentationClass/000001.png").getpalette()
    colours = np.reshape(palette, (256, 3)).tolist()
    known = {0: [0, 0, 0], 1: [128, 0, 0], 2: [0, 128, 0], 3: [128, 128, 0], 4: [0, 0, 128], 7: [128, 128, 128]}
    known |= {8: [64, 0, 0], 10: [64, 128, 0], 15: [192, 128, 128], 20: [0, 64, 128], 255: [224, 224, 192]}
    assert {place: colours[place] for place in known} == known


def test_cityscapes_files_hold_the_scene(root: Path, scenes: list):
    label_ids = np.array(list(CITYSCAPES.values()))
    for split, number, scene in scenes:
        stem = f"{SETS[split]}/toy/toy_{number}_000019"
        assert np.array_equal(_read(root / f"cityscapes/leftImg8bit/{stem}_leftImg8bit.png"), scene.image)
        gt = {kind: _read(root / f"cityscapes/gtFine/{stem}_gtFine_{kind}.png") for kind in ("labelIds", "instanceIds")}
        gt["labelTrainIds"] = _read(root / f"cityscapes/gtFine/{stem}_gtFine_labelTrainIds.png")
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
    pixel_layouts.make_folders(tmp_path)
    pixel_layouts.write_scene(tmp_path, Split.SCENE_TRAIN, 1, scene, b"")
    path = tmp_path / "cityscapes/gtFine/train/toy/toy_000001_000019_gtFine_polygons.json"
    contents = json.loads(path.read_text())
    assert [item["label"] for item in contents["objects"]].count("sidewalk") == 2
    assert len(contents["objects"]) == 4 and min(len(item["polygon"]) for item in contents["objects"]) == 3
    assert np.array_equal(_fill(contents), np.select([instances == 1, instances == 2], [23, 8], 7))


def test_detectron2_names_the_classes_as_the_polygons_do():
    from detectron2.data.datasets.builtin_meta import CITYSCAPES_CATEGORIES

    stuff = [item for item in CITYSCAPES_CATEGORIES if not item["isthing"]]
    assert {item["name"]: item["id"] for item in stuff} == CITYSCAPES
    assert [item["trainId"] for item in stuff] == list(range(len(CLASS_NAMES) + 1))


@pytest.mark.parametrize("name", ["voc_sem_seg_train_aug", "voc_sem_seg_val", "cityscapes_train", "nyud_depth_val"])
def test_training_finds_every_image_of_a_set_by_its_name(name: str, root: Path, scenes: list, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(root.parent))
    numbers = [number for split, number, _ in scenes if (split == Split.SCENE_HELDOUT) == name.endswith("val")]
    records = get_records(f"toy_{name}")
    assert all(number in record["file_name"] for number, record in zip(numbers, records, strict=True))


def test_nyud_files_hold_the_scene_and_lack_its_borders(root: Path, scenes: list):
    nyud = root / "NYUD_MT"
    for _, number, scene in scenes:
        borders = _borders(scene)
        assert (nyud / f"images/{number}.jpg").read_bytes() == (root / f"VOC2007/JPEGImages/{number}.jpg").read_bytes()
        labels = Image.open(nyud / f"segmentation/{number}.png")
        assert labels.mode == "L"
        assert np.array_equal(np.asarray(labels), np.where(borders, 0, scene.semantic.astype(int) + 1))
        depth = np.load(nyud / f"depth/{number}.npy")
        assert (depth.dtype, depth.shape) == (np.float32, (64, 64))
        assert np.array_equal(depth == 0, borders)
        assert np.array_equal(depth[~borders], scene.depth[~borders])


def _read(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def _fill(contents: dict) -> np.ndarray:
    """Label ids, as Cityscapes makes them of its polygons: each painted over those before it."""
    canvas = Image.new("L", (contents["imgWidth"], contents["imgHeight"]), 255)
    for item in contents["objects"]:
        ImageDraw.Draw(canvas).polygon([tuple(point) for point in item["polygon"]], fill=CITYSCAPES[item["label"]])
    return np.asarray(canvas)


def _borders(scene: Scene) -> np.ndarray:
    """What Scene.borders should be, pixel by pixel."""
    padded = np.pad(scene.instances, 1)
    rows, columns = scene.instances.shape
    found = np.zeros((rows, columns), bool)
    for row, column in np.ndindex(rows, columns):
        own = padded[row + 1, column + 1]
        beside = (
            padded[row, column + 1],
            padded[row + 2, column + 1],
            padded[row + 1, column],
            padded[row + 1, column + 2],
        )
        found[row, column] = any(other not in (0, own) for other in beside)
    return found
