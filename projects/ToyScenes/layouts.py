"""The layouts of real data sets: class folders, COCO, Pascal VOC, Cityscapes, NYUD_MT and DAVIS.

Class folders hold the object-centric images, DAVIS holds videos, the others hold the scene-centric images. With
``Scene.semantic`` being 0 for background and 1 to 10 for objects,

- VOC's masks hold it, with the id 255 on ``Scene.borders``;
- Cityscapes takes it for train ids, on every pixel;
- NYUD_MT's labels are one more than it, with 0 on borders, where its depth in metres is missing (0) too.

With depth as a fourth channel, photographs are TIFFs but for Cityscapes' and DAVIS', whose readers know one format.
"""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
from PIL import Image

from projects.Pictures.label_maps import palette_image
from projects.Pixels.write_tiff import check_tifffile, tiff_bytes
from projects.ToyScenes.classes import CLASS_NAMES, shape_of
from projects.ToyScenes.plan import OBJECTS_PER_SCENE, Split, num_videos, object_classes, plan_video
from projects.ToyScenes.scene import Scene, draw_scene
from revisit.boxes.boxes import annotation_of, with_sides

from detectron2.data.datasets.builtin_meta import CITYSCAPES_CATEGORIES

JPEG_QUALITY = 92
CHANNELS = {"rgb": (), "rgbd": ("red", "green", "blue", "depth")}  # of a TIFF, or () of JPEGs
OBJECT_FOLDERS = {Split.OBJECT_TRAIN: "object_centric/train", Split.OBJECT_HELDOUT: "object_centric/heldout"}
# The names of the scene-centric sets: in COCO, in VOC for boxes and for masks, in both Cityscapes and NYUD_MT.
SCENE_SETS = {
    Split.SCENE_TRAIN: ("train2017", "trainval", "train_aug", "train"),
    Split.SCENE_HELDOUT: ("val2017", "test", "val", "val"),
}
# Names of all files that are written here, below the data set's folder.
FILES = re.compile(
    r"object_centric/\w+\.txt"
    r"|object_centric/(train|heldout)/\w+/\d{6}\.(jpg|tif)"
    r"|coco/annotations/instances_\w+2017\.json"
    r"|coco/(train|val)2017/\d{12}\.(jpg|tif)"
    r"|VOC2007/ImageSets/(Main|Segmentation)/\w+\.txt"
    r"|VOC2007/(JPEGImages|Annotations|SegmentationClass)/\d{6}\.(jpg|tif|xml|png)"
    r"|cityscapes/(leftImg8bit|gtFine)/(train|val)/toy/toy_\d{6}_000019_\w+\.(png|json)"
    r"|NYUD_MT/gt_sets/(train|val)\.txt"
    r"|NYUD_MT/(images|segmentation|depth)/\d{6}\.(jpg|tif|png|npy)"
    r"|DAVIS/ImageSets/2017/val\.txt"
    r"|DAVIS/(JPEGImages|Annotations)/480p/toy-\d{2,}/\d{5}\.(jpg|png)"
)
# Background is train id 0, class k is train id k + 1. Cityscapes tells no instances apart in these eleven.
_CITYSCAPES_CLASSES = CITYSCAPES_CATEGORIES[: len(CLASS_NAMES) + 1]
_LABEL_IDS = np.array([category["id"] for category in _CITYSCAPES_CLASSES], np.uint8)


def image_id(split: Split, index: int, num_train: int) -> int:
    """The number of a scene-centric image in every layout: train images from 1, held-out ones after them."""
    return index + 1 + (num_train if split.is_heldout else 0)


def ending_of(channels: str) -> str:
    """Of photographs with channels ``rgb`` or ``rgbd``. Raises UserError where nothing writes such."""
    if not CHANNELS[channels]:
        return ".jpg"
    check_tifffile()
    return ".tif"


def write_image(
    root: Path, split: Split, index: int, num_train: int, scene: Scene, channels: str = "rgb"
) -> list[dict]:
    """Writes an image to the layouts of its set, with labels and depth; returns its COCO annotations, if it has any."""
    names = CHANNELS[channels]
    ending = ending_of(channels)
    photograph = tiff_bytes(scene.rgbd, names) if names else _encode(".jpg", scene.image)
    if split.is_object_centric:
        (class_id,) = scene.class_ids
        _write(root / OBJECT_FOLDERS[split] / CLASS_NAMES[class_id] / f"{index + 1:06d}{ending}", photograph)
        return []
    number = image_id(split, index, num_train)
    coco, *_, name = SCENE_SETS[split]
    borders = scene.borders
    semantic = scene.semantic
    label_ids = _LABEL_IDS[semantic]
    voc_classes = np.where(borders, np.uint8(255), semantic)
    nyud_classes = np.where(borders, np.uint8(0), semantic + 1)
    height, width = semantic.shape
    polygons = {"imgHeight": height, "imgWidth": width, "objects": _polygons(scene)}
    frame = f"{name}/toy/toy_{number:06d}_000019"  # the one that is labelled in Cityscapes' snippets
    files = {
        f"coco/{coco}/{number:012d}{ending}": photograph,
        f"VOC2007/JPEGImages/{number:06d}{ending}": photograph,
        f"VOC2007/Annotations/{number:06d}.xml": _voc_xml(f"{number:06d}{ending}", scene),
        f"VOC2007/SegmentationClass/{number:06d}.png": palette_image(voc_classes),
        f"cityscapes/leftImg8bit/{frame}_leftImg8bit.png": _encode(".png", scene.image),
        f"cityscapes/gtFine/{frame}_gtFine_labelIds.png": _encode(".png", label_ids),
        f"cityscapes/gtFine/{frame}_gtFine_labelTrainIds.png": _encode(".png", semantic),
        f"cityscapes/gtFine/{frame}_gtFine_instanceIds.png": _encode(".png", label_ids.astype(np.uint16)),
        f"cityscapes/gtFine/{frame}_gtFine_polygons.json": f"{json.dumps(polygons)}\n".encode(),
        f"NYUD_MT/images/{number:06d}{ending}": photograph,
        f"NYUD_MT/segmentation/{number:06d}.png": _encode(".png", nyud_classes),
        f"NYUD_MT/depth/{number:06d}.npy": np.where(borders, np.float32(0), scene.depth),
    }
    for place, content in files.items():
        _write(root / place, content)
    return _coco_annotations(number, scene)


def write_video(root: Path, index: int, seed: int, size: int) -> None:
    """Draws a video and writes its frames and its masks, whose ids count the objects from 1."""
    for number, plan in enumerate(plan_video(seed, index)):
        scene = draw_scene(plan, size)
        name = f"480p/toy-{index + 1:02d}/{number:05d}"
        _write(root / f"DAVIS/JPEGImages/{name}.jpg", _encode(".jpg", scene.image))
        _write(root / f"DAVIS/Annotations/{name}.png", palette_image(scene.instances.astype(np.uint8)))


def write_scene_set(
    root: Path, split: Split, num_train: int, size: int, annotations: list[dict], ending: str = ".jpg"
) -> None:
    """Writes the COCO instances of a scene-centric set, and its lists in VOC and NYUD_MT; Cityscapes has none."""
    coco, boxes, masks, nyud = SCENE_SETS[split]
    indices = range(split.num_images(num_train))
    numbers = [image_id(split, index, num_train) for index in indices]
    images = [{"id": n, "file_name": f"{n:012d}{ending}", "height": size, "width": size, "license": 1} for n in numbers]
    classes = enumerate(CLASS_NAMES)
    categories = [{"id": n + 1, "name": name, "supercategory": shape_of(n)} for n, name in classes]
    contents = {
        "info": {"description": "ToyScenes", "version": "1", "year": 2017},
        "licenses": [{"id": 1, "name": "drawn by a program", "url": ""}],
        "images": images,
        "annotations": annotations,
        "categories": categories,
    }
    _write(root / f"coco/annotations/instances_{coco}.json", f"{json.dumps(contents)}\n".encode())
    lists = {"VOC2007/ImageSets/Main": boxes, "VOC2007/ImageSets/Segmentation": masks, "NYUD_MT/gt_sets": nyud}
    for folder, name in lists.items():
        _write_list(root / folder / f"{name}.txt", [f"{number:06d}" for number in numbers])


def write_other_lists(root: Path, num_train: int, long_tailed: bool, ending: str = ".jpg") -> None:
    """Writes the lists of videos, and of object-centric images: val is the last fifth of each class of train."""
    lists: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for split, folder in OBJECT_FOLDERS.items():
        classes = object_classes(split, num_train, long_tailed)
        for class_id, name in enumerate(CLASS_NAMES):
            (root / folder / name).mkdir(parents=True, exist_ok=True)  # even if no image falls into it
            of_class = f"{Path(folder).name}/{name}"
            files = [f"{of_class}/{n + 1:06d}{ending}" for n in np.flatnonzero(classes == class_id)]
            fitted = len(files) - len(files) // 5
            if split.is_heldout:
                lists["test"] += files
            else:
                lists["train"] += files[:fitted]
                lists["val"] += files[fitted:]
    for name, files in lists.items():
        _write_list(root / f"object_centric/{name}.txt", files)
    videos = [f"toy-{n + 1:02d}" for n in range(num_videos(num_train))]
    _write_list(root / "DAVIS/ImageSets/2017/val.txt", videos)


def _coco_annotations(number: int, scene: Scene) -> list[dict]:
    _, most_objects = OBJECTS_PER_SCENE
    annotations = []
    for mask, class_id, box in zip(scene.masks, scene.class_ids, with_sides(scene.boxes).tolist(), strict=True):
        of_mask = annotation_of(mask)
        annotations.append(
            {
                "id": number * most_objects + len(annotations),
                "image_id": number,
                "category_id": class_id + 1,
                "bbox": box,
                "area": of_mask["area"],
                "segmentation": of_mask["segmentation"],
                "iscrowd": 0,
            }
        )
    return annotations


def _voc_xml(file_name: str, scene: Scene) -> bytes:
    height, width, channels = scene.image.shape
    root = ElementTree.Element("annotation")
    _fill(root, folder="VOC2007", filename=file_name)
    _fill(ElementTree.SubElement(root, "source"), database="ToyScenes")
    _fill(ElementTree.SubElement(root, "size"), width=width, height=height, depth=channels)
    _fill(root, segmented=0)
    for class_id, (x0, y0, x1, y1) in zip(scene.class_ids, scene.boxes.tolist(), strict=True):
        item = ElementTree.SubElement(root, "object")
        cut = x0 == 0 or y0 == 0 or x1 == width or y1 == height
        _fill(item, name=CLASS_NAMES[class_id], pose="Unspecified", truncated=int(cut), difficult=0)
        # VOC counts pixels from 1 and includes the last one.
        _fill(ElementTree.SubElement(item, "bndbox"), xmin=x0 + 1, ymin=y0 + 1, xmax=x1, ymax=y1)
    ElementTree.indent(root, "\t")
    return ElementTree.tostring(root) + b"\n"


def _fill(parent: ElementTree.Element, **texts: str | int) -> None:
    for tag, text in texts.items():
        ElementTree.SubElement(parent, tag).text = str(text)


def _polygons(scene: Scene) -> list[dict]:
    """Cityscapes' objects, which give the label map when filled one over the other."""
    bottom, right = (length - 1 for length in scene.instances.shape)
    objects = [_polygon(0, [[0, 0], [right, 0], [right, bottom], [0, bottom]])]
    masks = scene.masks
    visible = [(scene.depth[mask].max(), place) for place, mask in enumerate(masks) if mask.any()]
    for _, place in sorted(visible, reverse=True):
        # Outer contours include what nearer objects hide inside them, and those are filled later.
        mask = masks[place].astype(np.uint8)
        train_id = scene.class_ids[place] + 1
        contours, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        objects += [_polygon(train_id, contour[:, 0].tolist()) for contour in contours]
    return objects


def _polygon(train_id: int, points: list[list[int]]) -> dict:
    # Readers of polygons want three points; a fragment of one or two pixels has fewer corners.
    points += points[-1:] * (3 - len(points))
    return {"label": _CITYSCAPES_CLASSES[train_id]["name"], "polygon": points}


def _encode(ending: str, pixels: np.ndarray) -> bytes:
    """A JPEG or PNG file of RGB or single-channel pixels. OpenCV's defaults for PNG are its fastest compression."""
    bgr = pixels[:, :, ::-1] if pixels.ndim == 3 else pixels
    options = (cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY) if ending == ".jpg" else ()
    encoded, data = cv2.imencode(ending, bgr, options)
    assert encoded
    return data.tobytes()


def _write(path: Path, content: bytes | Image.Image | np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Image.Image):
        content.save(path, compress_level=1)
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        path.write_bytes(content)


def _write_list(path: Path, names: list[str]) -> None:
    _write(path, "".join(f"{name}\n" for name in names).encode())
