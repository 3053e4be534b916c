"""Damaged annotation files and folders: each is read, looked at, learnt from and scored, or refused in one line."""

import copy
import io
import json
import os
import random
import re
from collections import Counter
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
import torch
from PIL import Image
from trees import write

from revisit.config import add_revisit_config
from revisit.data.catalog import get_records
from revisit.data.reader import UnreadableImageError, read_record
from revisit.engine.finetune_trainer import FinetuneTrainer, build_mapper
from revisit.engine.setup import check_evaluation_data, count_images
from revisit.errors import UserError

from detectron2.config import CfgNode, get_cfg
from detectron2.data import DatasetCatalog, MetadataCatalog, get_detection_dataset_dicts
from detectron2.structures import Boxes, BoxMode, Instances

CASES = int(os.environ.get("FUZZ_CASES", 200))
NAMES = ("000001", "000002", "000003")
WIDTH, HEIGHT = 24, 16
VALUES = (
    None, True, False, 0, 1, -1, 0.5, 2**31, 10**30, -7.25, float("nan"), float("inf"), "", "1", "dog", "ü\u2028",
    "a\0b",     [], [[]], [1], [0, 0, 4, 4], {}, {"id": 1}, [None, None, None, None], "x" * 1000,
)  # fmt: skip


def coco() -> dict:
    boxes = [[1, 2, 8, 6], [3.5, 1, 4, 9], [0, 0, 24, 16], [10, 4, 6, 5]]
    return {
        "images": [
            {"id": n, "file_name": f"{name}.jpg", "width": WIDTH, "height": HEIGHT} for n, name in enumerate(NAMES, 1)
        ],
        "categories": [{"id": n, "name": name} for n, name in ((1, "cat"), (3, "dog"))],
        "annotations": [
            {"id": n, "image_id": 1 + n % 3, "category_id": (1, 3)[n % 2], "bbox": box, "area": 30, "iscrowd": 0}
            | {"segmentation": {"size": [HEIGHT, WIDTH], "counts": "S26:0000000000000m5" if n > 3 else [100, 20, 264]}}
            | ({"segmentation": [[box[0], box[1], box[0] + 4, box[1], box[0] + 4, box[1] + 4]]} if n < 3 else {})
            for n, box in enumerate(boxes, start=1)
        ],
    }  # fmt: skip


YOLO = "0 0.5 0.5 0.25 0.5\n1 0.1 0.1 0.4 0.1 0.4 0.6 0.1 0.6\n"
XML = """<?xml version="1.0" encoding="utf-8"?>
<annotation><size><width>24</width><height>16</height><depth>3</depth></size>
<object><name>dog</name><pose>Left</pose><truncated>0</truncated><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>3</ymin><xmax>20</xmax><ymax>16</ymax></bndbox></object>
<object><name>cat</name><pose>Left</pose><truncated>1</truncated><difficult>1</difficult>
<bndbox><xmin>5</xmin><ymin>3</ymin><xmax>9</xmax><ymax>14</ymax></bndbox></object></annotation>
"""


def places_in(tree: object, path: tuple = ()) -> list[tuple]:
    """The path to every value below a JSON's root."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, child in children for place in ((*path, key), *places_in(child, (*path, key)))]


def children_of(parent: object, step: str | int, every: bool) -> list:
    """One child, where there is one; of a list perhaps all."""
    if isinstance(parent, list) and every:
        return parent
    with suppress(IndexError, KeyError, TypeError):  # siblings differ
        return [parent[step]]
    return []


def spoil_json(tree: dict, rng: random.Random) -> dict:
    """One or two values changed, removed, doubled or exchanged; then often the same in every entry of a list."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice([1, 1, 1, 2])):
        *path, key = rng.choice(places_in(tree) or [("images",)])
        parents = [tree]
        for step in path:  # in a quarter of the cases, all entries of a list alike
            every = rng.random() < 0.25
            parents = [child for parent in parents for child in children_of(parent, step, every)]
        change, value = rng.randrange(5), rng.choice(VALUES)
        for parent in parents:
            with suppress(IndexError, KeyError, TypeError):
                if change == 0:
                    del parent[key]
                elif change == 1 and isinstance(parent, list):
                    parent.append(copy.deepcopy(parent[key]))
                elif change == 2 and type(parent[key]) in (int, float):
                    parent[key] = (
                        parent[key] * rng.choice([-1, 0, 0.01, 1000]) if rng.random() < 0.7 else str(parent[key])
                    )
                elif change == 3 and isinstance(parent, dict):
                    other = rng.choice(list(parent))
                    parent[key], parent[other] = parent[other], parent[key]
                else:
                    parent[key] = copy.deepcopy(value)
    return tree


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    spoilt, at = bytearray(data), rng.randrange(len(data) + 1)
    change = rng.randrange(5)
    if change == 0:
        return data[:at]
    if change == 1:
        return data[:at] + data[rng.randrange(len(data) + 1) :]
    if change == 2:
        return data[:at] + rng.choice([b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\n\n", b"<x>", b" ", b"#"]) + data[at:]
    for _ in range(rng.choice([1, 1, 8]) if data else 0):
        spoilt[rng.randrange(len(data))] = rng.randrange(256) if rng.random() < 0.2 else rng.randrange(32, 127)
    return bytes(spoilt)


def spoil_xml(text: str, rng: random.Random) -> bytes:
    tags = re.findall(r"<(\w+)>", text)
    for _ in range(rng.choice([1, 1, 2])):
        tag, value = rng.choice(tags), str(rng.choice(VALUES))
        change = rng.randrange(4)
        if change == 0:
            text = re.sub(rf"<{tag}>.*?</{tag}>", "", text, count=rng.choice([0, 1]), flags=re.DOTALL)
        elif change == 1:
            text = re.sub(rf"<{tag}>[^<]*</{tag}>", lambda _: f"<{tag}>{value}</{tag}>", text, count=rng.choice([0, 1]))  # noqa: B023
        elif change == 2:
            text = text.replace(tag, rng.choice(tags))
        else:
            return spoil_bytes(text.encode(), rng)
    return text.encode("utf-8", "surrogatepass")


def spoil_yolo(text: str, rng: random.Random) -> bytes:
    words = text.split(" ")
    match rng.randrange(4):
        case 0:
            return spoil_bytes(text.encode(), rng)
        case 1:
            words[rng.randrange(len(words))] = str(rng.choice(VALUES))
        case 2:
            del words[rng.randrange(len(words))]
        case 3:
            words.insert(rng.randrange(len(words)), rng.choice(["-0.5", "7", "320", "1e400", "nan", "0.1 0.2"]))
    return " ".join(words).encode(errors="surrogateescape")


def spoil_folder(folder: Path, rng: random.Random) -> None:
    """One to three files renamed, removed, emptied, damaged, or joined by what is no image."""
    odd = (
        ".hidden.jpg",
        "a\nb.jpg",
        "ü.jpg",
        os.fsdecode(b"\xff\xfe.jpg"),
        "UPPER.JPG",
        "no_suffix",
        ".jpg",
        "x.jpg.tmp",
    )
    for _ in range(rng.randrange(1, 4)):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if not files:
            return
        path = rng.choice(files)
        match rng.randrange(8):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(spoil_bytes(path.read_bytes(), rng))
            case 2:
                path.write_bytes(b"")
            case 3:
                path.rename(path.with_name(rng.choice(odd)))
            case 4:
                path.unlink()
                path.symlink_to(rng.choice([path, folder, folder / "nowhere", "/dev/null"]))
            case 5:
                with suppress(FileExistsError):
                    (path.parent / rng.choice(["sub.jpg", "empty", "__MACOSX", *odd])).mkdir()
            case 6:
                path.unlink()
                os.mkfifo(path)
            case 7:
                for other in path.parent.iterdir():
                    other.is_file() and other.unlink()


def detection(train: str, test: str, num_classes: int, output: Path, masks: bool) -> CfgNode:
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list(["MODEL.DEVICE", "cpu", "MODEL.ROI_HEADS.NUM_CLASSES", num_classes, "MODEL.MASK_ON", masks])
    cfg.merge_from_list(["DATASETS.TRAIN", (train,), "DATASETS.TEST", (test,), "OUTPUT_DIR", str(output)])
    cfg.merge_from_list(["INPUT.MIN_SIZE_TRAIN", (16,), "INPUT.MIN_SIZE_TEST", 16, "INPUT.MASK_FORMAT", "bitmask"])
    return cfg


def learn(cfg: CfgNode) -> None:
    count_images(cfg)
    mapper = build_mapper(cfg, is_train=True)
    for record in get_detection_dataset_dicts(cfg.DATASETS.TRAIN):
        mapper(record)


def score(cfg: CfgNode) -> None:
    """With the truth for predictions."""
    check_evaluation_data(cfg)
    (name,) = cfg.DATASETS.TEST
    evaluator = FinetuneTrainer.build_evaluator(cfg, name)
    evaluator.reset()
    for record in get_records(name):
        corners = [BoxMode.convert(list(a["bbox"]), a["bbox_mode"], BoxMode.XYXY_ABS) for a in record["annotations"]]
        found = Instances((record["height"], record["width"]))
        found.pred_boxes = Boxes(torch.tensor(corners, dtype=torch.float32).reshape(-1, 4))
        found.scores = torch.ones(len(corners))
        found.pred_classes = torch.tensor([a["category_id"] for a in record["annotations"]], dtype=torch.int64)
        if cfg.MODEL.MASK_ON:
            found.pred_masks = torch.ones(len(corners), record["height"], record["width"], dtype=torch.bool)
        evaluator.process([record], [{"instances": found}])
    with redirect_stdout(io.StringIO()):
        evaluator.evaluate()


def read(name: str) -> None:
    for record in get_records(name):
        with suppress(UnreadableImageError):
            assert read_record(record).ndim == 3


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
        content = json.dumps(spoil_json(coco(), rng)).encode()
        write(root / "boxes.json", spoil_bytes(content, rng) if rng.random() < 0.1 else content)
        write(root / "whole.json", json.dumps(coco()))
        whole, spoilt = (f"coco:{folder}:{root}/{name}.json" for name in ("whole", "boxes"))
        masks = rng.random() < 0.5
        cfgs = detection(spoilt, whole, 2, root, masks), detection(whole, spoilt, 2, root, masks)
        return [(learn, cfgs[0]), (score, cfgs[1])]
    if kind == "yolo":
        for name in NAMES:
            write(root / f"labels/{name}.txt", YOLO)
        write(root / "names.txt", ["cat", "dog"])
        spoilt = root / rng.choice([*(f"labels/{name}.txt" for name in NAMES), "names.txt"])
        write(spoilt, spoil_yolo(spoilt.read_text(), rng))
        cfg = detection(*[f"yolo:{folder}:{root}/labels:{root}/names.txt"] * 2, 2, root, False)
        return [(learn, cfg), (score, cfg)]
    if kind in ("voc", "split"):
        for name in NAMES:
            write(root / f"Annotations/{name}.xml", XML)
        split = root / "ImageSets/Main/test.txt"
        write(split, NAMES)
        if kind == "voc":
            write(root / f"Annotations/{rng.choice(NAMES)}.xml", spoil_xml(XML, rng))
        else:
            write(split, spoil_bytes(split.read_bytes(), rng))
        cfg = detection(f"voc:{root}:test", f"voc:{root}:test", 20, root, False)
        return [(learn, cfg), (score, cfg)]
    if kind == "list":
        write(root / "list.txt", spoil_bytes("".join(f"JPEGImages/{name}.jpg\n" for name in NAMES).encode(), rng))
        return [(read, f"list:{root}/list.txt")]
    for name in NAMES:
        write(root / f"classes/{rng.choice(['cat', 'dog'])}/{name}.jpg", jpeg.getvalue())
    spoil_folder(root / "classes", rng)
    return [(read, f"{kind}:{root}/classes")]


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # Detectron2, without objects of a class
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")  # and masks of run lengths
@pytest.mark.parametrize(
    ("kind", "share"),
    [("coco", 0.3), ("voc", 0.2), ("yolo", 0.2), ("split", 0.05), ("list", 0.05)]
    + [("folder", 0.1), ("class_folders", 0.1)],
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
