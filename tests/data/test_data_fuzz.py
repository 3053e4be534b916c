"""Damaged annotation files and folders: each is read, inspected, learnt from and scored, or refused in one line.

One mutator for all formats: a file is cut into pieces (the lexemes of JSON, XML or text), and some of them are changed,
dropped, doubled or exchanged; or its bytes are spoilt as those of images are.
"""

import io
import json
import os
import random
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from labels import counted, evaluate_exact
from PIL import Image
from torch.nn.functional import one_hot
from trees import spoil_bytes, write

from revisit.config import add_revisit_config
from revisit.data.finetuning.pixel_mapper import PixelMapper
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import UnreadableImageError, read_record
from revisit.data.sources.catalog import get_records
from revisit.engine.data_checks import inspect_evaluation, inspect_training
from revisit.engine.finetune_trainer import build_mapper
from revisit.errors import UserError
from revisit.evaluation.pixel_evaluators import SemSegEvaluator

from detectron2.config import CfgNode, get_cfg
from detectron2.data import DatasetCatalog, MetadataCatalog, get_detection_dataset_dicts

CASES = int(os.environ.get("FUZZ_CASES", 200))
NAMES = ("000001", "000002", "000003")
WIDTH, HEIGHT = 24, 16
# A string, a number, a bracket with what it holds if that is short, a tag, a word: what a writer may get wrong at once.
PIECES = re.compile(r'("(?:[^"\\]|\\.)*"|\[[^][]*\]|\{[^{}]*\}|<[^<>]*>|-?[\d.]+|\w+|\s+)')
WRONG = (
    "null", "true", "0", "1", "-1", "0.5", "7", "320", str(2**31), str(10**30), "-7.25", "NaN", "nan", "Infinity",
    "1e400", '""', '"1"', '"dog"', "dog", '"ü\\u2028"', "[]", "[[]]", "[1]", "[0, 0, 4, 4]", "{}", '{"id": 1}',
    "[null, null, 1, 1]", "x" * 1000, "", "<x>", "</x>", "\0", "\ufeff",
)  # fmt: skip


def coco() -> str:
    boxes = [[1, 2, 8, 6], [3.5, 1, 4, 9], [0, 0, 24, 16], [10, 4, 6, 5]]
    runs = {1: [100, 20, 264], 2: [100, 20, 264], 3: [100, 20, 264], 4: "S26:0000000000000m5"}
    annotations = [
        {"id": n, "image_id": 1 + n % 3, "category_id": (1, 3)[n % 2], "bbox": box, "area": 30, "iscrowd": 0}
        | {"segmentation": {"size": [HEIGHT, WIDTH], "counts": runs[n]}}
        | ({"segmentation": [[box[0], box[1], box[0] + 4, box[1], box[0] + 4, box[1] + 4]]} if n < 3 else {})
        for n, box in enumerate(boxes, start=1)
    ]
    size = {"width": WIDTH, "height": HEIGHT}
    images = [{"id": n, "file_name": f"{name}.jpg", **size} for n, name in enumerate(NAMES, 1)]
    categories = [{"id": n, "name": name} for n, name in ((1, "cat"), (3, "dog"))]
    return json.dumps({"images": images, "categories": categories, "annotations": annotations})


YOLO = "0 0.5 0.5 0.25 0.5\n1 0.1 0.1 0.4 0.1 0.4 0.6 0.1 0.6\n"
XML = """<?xml version="1.0" encoding="utf-8"?>
<annotation><size><width>24</width><height>16</height><depth>3</depth></size>
<object><name>dog</name><pose>Left</pose><truncated>0</truncated><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>3</ymin><xmax>20</xmax><ymax>16</ymax></bndbox></object>
<object><name>cat</name><pose>Left</pose><truncated>1</truncated><difficult>1</difficult>
<bndbox><xmin>5</xmin><ymin>3</ymin><xmax>9</xmax><ymax>14</ymax></bndbox></object></annotation>
"""


def spoil(text: str, rng: random.Random) -> bytes:
    """One or two pieces of a file changed, all alike or one alone; or it is cut, or some of its bytes are others."""
    pieces = PIECES.split(text)
    for _ in range(rng.choice([1, 1, 2])):
        at, other = rng.randrange(len(pieces)), rng.randrange(len(pieces))
        alike = [n for n, piece in enumerate(pieces) if piece == pieces[at]] if rng.random() < 0.25 else [at]
        change, wrong = rng.randrange(6), rng.choice(WRONG)
        for n in alike:
            if change < 3:
                pieces[n] = (
                    ("" if change == 0 else pieces[n] * 2 if change == 1 else wrong) if pieces[n].strip() else " "
                )
            elif change == 3:
                pieces[n], pieces[other] = pieces[other], pieces[n]
            elif change == 4 and re.fullmatch(r"-?\d+(\.\d+)?", pieces[n]):
                pieces[n] = repr(float(pieces[n]) * rng.choice([-1, 0, 0.01, 1000]))
    data = "".join(pieces).encode(errors="surrogatepass")
    return spoil_bytes(data, rng) if rng.random() < 0.1 else data


def spoil_folder(folder: Path, rng: random.Random) -> None:
    """One to three files renamed, removed, emptied, damaged, or joined by what is no image."""
    odd = (".hidden.jpg", "a\nb.jpg", "ü.jpg", os.fsdecode(b"\xff\xfe.jpg"), "UPPER.JPG", "no_suffix", "x.jpg.tmp")
    for _ in range(rng.randrange(1, 4)):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if not files:
            return
        path = rng.choice(files)
        match rng.randrange(6):
            case 0:
                path.write_bytes(spoil_bytes(path.read_bytes(), rng))
            case 1:
                with suppress(IsADirectoryError):
                    path.rename(path.with_name(rng.choice(odd)))
            case 2:
                path.unlink()
                path.symlink_to(rng.choice([path, folder, folder / "nowhere", "/dev/null"]))
            case 3:
                with suppress(FileExistsError):
                    (path.parent / rng.choice(["sub.jpg", "empty", "__MACOSX", *odd])).mkdir()
            case 4:
                path.unlink()
                os.mkfifo(path)
            case 5:
                for other in path.parent.iterdir():
                    other.is_file() and other.unlink()


def detection(train: str, test: str, num_classes: int, output: Path, masks: bool = False) -> CfgNode:
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list(["MODEL.DEVICE", "cpu", "MODEL.ROI_HEADS.NUM_CLASSES", num_classes, "MODEL.MASK_ON", masks])
    cfg.merge_from_list(["DATASETS.TRAIN", (train,), "DATASETS.TEST", (test,), "OUTPUT_DIR", str(output)])
    cfg.merge_from_list(["INPUT.MIN_SIZE_TRAIN", (16,), "INPUT.MIN_SIZE_TEST", 16, "INPUT.MASK_FORMAT", "bitmask"])
    return cfg


def learn(cfg: CfgNode) -> None:
    inspect_training(cfg)
    mapper = build_mapper(cfg, is_train=True)
    for record in get_detection_dataset_dicts(cfg.DATASETS.TRAIN):
        mapper(record)


def score(cfg: CfgNode) -> None:
    """With the truth for predictions."""
    inspect_evaluation(cfg)
    (name,) = cfg.DATASETS.TEST
    evaluate_exact(cfg, name)


def count_alike(cfg: CfgNode, name: str) -> None:
    """The summary, the mapper and the evaluator count the same boxes, and a detector that is right scores 100."""
    summed, learned, scored, precision = counted(cfg, name, Path(cfg.OUTPUT_DIR))
    assert summed == learned == scored and precision == pytest.approx(100)


def mask(ids: tuple[int, ...], rng: random.Random, is_sound: bool) -> bytes:
    """A PNG of ids; one that is not sound may be in another mode, of another size, or damaged."""
    change, file = 9 if is_sound else rng.randrange(8), io.BytesIO()
    size = (WIDTH, HEIGHT) if change == 0 else (HEIGHT, WIDTH)
    pixels = np.array(rng.choices(ids, k=WIDTH * HEIGHT), np.uint16 if change == 1 else np.uint8).reshape(size)
    image = Image.fromarray(pixels)
    (image.convert(("RGB", "1", "P")[change - 2]) if change in (2, 3, 4) else image).save(file, "PNG")
    return spoil_bytes(file.getvalue(), rng) if change == 5 else file.getvalue()


def segment(name: str) -> None:
    """Inspected, learned from, and scored with the truth for predictions."""
    get_records(name)
    count = len(MetadataCatalog.get(name).stuff_classes)
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list(["MODEL.META_ARCHITECTURE", "SemanticSegmentor", "MODEL.SEM_SEG_HEAD.NUM_CLASSES", count])
    cfg.merge_from_list(["DATASETS.TRAIN", (name,), "DATASETS.TEST", (name,), "INPUT.RANDOM_SCALE", (1.0, 1.0)])
    cfg.merge_from_list(["INPUT.FORMAT", "RGB", "INPUT.RANDOM_FLIP", "none", "INPUT.CROP.ENABLED", False])
    inspect_training(cfg)
    mapper, evaluator = PixelMapper(cfg, True), SemSegEvaluator(name)
    for record in get_records(name):
        truth = mapper(record)["sem_seg"]  # of the image's size: neither scaled nor cut
        logits = one_hot(truth.where(truth < count, 0), count).permute(2, 0, 1).float()
        evaluator.process([record | dict(zip(("height", "width"), truth.shape, strict=True))], [{"sem_seg": logits}])
    scores = evaluator.evaluate()["sem_seg"]
    assert scores["mIoU"] == 100 and sum(key.startswith("ACC-") for key in scores) > 1


def read(name: str) -> None:
    for record in get_records(name):
        with suppress(UnreadableImageError):
            assert read_record(record, PHOTOGRAPHS).ndim == 3


def outcome(call, *args: object) -> str:
    """Raises what is no UserError, and what is none of one printable line."""
    try:
        call(*args)
    except UserError as error:
        message = str(error)
        assert len(message.splitlines()) == 1 and len(message) < 10_000 and message.isprintable(), repr(message)
        return "refused"
    return "accepted"


def make(kind: str, root: Path, rng: random.Random) -> list[tuple]:
    """A data set of a kind, spoilt by ``rng``; the calls that use it."""
    jpeg = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), "olive").save(jpeg, "JPEG")
    folder = root / "JPEGImages"
    for name in NAMES:
        write(folder / f"{name}.jpg", jpeg.getvalue())
    if kind == "coco":
        write(root / "boxes.json", spoil(coco(), rng))
        write(root / "whole.json", coco())
        whole, spoilt = (f"coco:{folder}:{root}/{name}.json" for name in ("whole", "boxes"))
        masks = rng.random() < 0.5
        learned, scored = detection(spoilt, whole, 2, root, masks), detection(whole, spoilt, 2, root, masks)
        return [(learn, learned), (score, scored), (count_alike, detection(spoilt, whole, 2, root), spoilt)]
    if kind == "list":
        write(root / "list.txt", spoil("".join(f"JPEGImages/{name}.jpg\n" for name in NAMES), rng))
        return [(read, f"list:{root}/list.txt")]
    if kind in ("folder", "class_folders"):
        for name in NAMES:
            write(root / f"classes/{rng.choice(['cat', 'dog'])}/{name}.jpg", jpeg.getvalue())
        spoil_folder(root / "classes", rng)
        return [(read, f"{kind}:{root}/classes")]
    if kind == "masks":
        ids, spoilt = rng.choice([(0, 1, 2), (0, 1, 2, 255), (0, 255), (0, 85, 170, 255), (0, 2, 7)]), rng.choice(NAMES)
        for name in NAMES:
            write(root / f"masks/{name}.png", mask(ids, rng, is_sound=name != spoilt))
        write(
            root / "names.yaml",
            spoil("names: [floor, wall, door]\n", rng) if rng.random() < 0.3 else b"names: [a, b, c]",
        )
        named = f"masks:{folder}:{root}/masks" + f":{root}/names.yaml" * rng.randrange(2)
        return [(segment, named)]
    names, split = root / "names.txt", root / "ImageSets/Main/test.txt"
    write(names, ["cat", "dog"])
    write(split, NAMES)
    for name in NAMES:
        write(root / f"labels/{name}.txt", YOLO)
        write(root / f"Annotations/{name}.xml", XML)
    files = {"yolo": [names, *root.glob("labels/*")], "split": [split]}.get(kind, sorted(root.glob("Annotations/*")))
    file = rng.choice(sorted(files))
    write(file, spoil(file.read_text(), rng))
    name, num_classes = {
        "yolo": (f"yolo:{folder}:{root}/labels:{names}", 2),
        "voc_xml": (f"voc_xml:{folder}:{root}/Annotations", 2),
    }.get(kind, (f"voc:{root}:test", 20))
    cfg = detection(name, name, num_classes, root)
    return [(learn, cfg), (score, cfg)]


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # Detectron2, without objects of a class
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")  # and masks of run lengths
@pytest.mark.parametrize(
    ("kind", "share"),
    [("coco", 0.3), ("voc", 0.15), ("voc_xml", 0.1), ("yolo", 0.2), ("split", 0.05), ("list", 0.05)]
    + [("folder", 0.1), ("class_folders", 0.1), ("masks", 0.1)],
)
def test_damaged_data_are_used_or_refused_in_one_line(tmp_path, kind, share):
    names = set(DatasetCatalog.list())
    outcomes, count = Counter(), round(CASES * share)
    for number in range(count):
        rng = random.Random(f"{kind} {number}")
        for call, *args in make(kind, tmp_path / str(number), rng):
            try:
                outcomes[outcome(call, *args)] += 1
            except Exception as error:
                raise AssertionError(f"case {number} of {kind}") from error
        for name in set(DatasetCatalog.list()) - names:
            DatasetCatalog.remove(name)
            MetadataCatalog.remove(name)
    print(kind, count, dict(outcomes))
    assert count < 50 or min(outcomes["accepted"], outcomes["refused"]) > 0.02 * count
