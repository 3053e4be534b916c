"""What a detector finds by windows: once, whole, in px of the whole image, whoever does the parts; and its scores."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
import torch
from checkpoints import finetuned_checkpoint
from commands import run
from geotiffs import UTM, geo_keys, tie
from labels import exact
from pycocotools import mask as run_lengths
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scipy.optimize import linear_sum_assignment
from trees import logged, refused

from projects.Predict import file_predictions
from projects.Predict.file_predictions import FilePredictor, find_sources
from projects.Tiles import tiled_predictions
from projects.Tiles.merging import LARGE
from projects.Tiles.tiled_evaluation import TiledBoxEvaluator
from projects.Tiles.tiled_predictions import TiledPredictor, tiling_to_predict
from projects.Tiles.windows import Tiling
from revisit.boxes.boxes import corners_of, iou, sides_of
from revisit.data.finetuning.detection_mapper import DetectionMapper
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.sources.catalog import get_records
from revisit.engine.setup import make_config
from revisit.files import WRITTEN
from revisit.jobs import parts
from revisit.jobs.shares import Share

from detectron2.config import CfgNode
from detectron2.structures import Boxes, Instances

FEW = "MODEL.DEVICE cpu TEST.DETECTIONS_PER_IMAGE 5"


class Exact:
    """A detector by rule: every patch of red is an object of a class, and every patch of green one of another."""

    class_names, pixels = ["a", "b"], PHOTOGRAPHS

    def __init__(self, cfg: CfgNode):
        self._mapper = DetectionMapper(cfg, is_train=False)
        self.read = self._mapper.read

    def __call__(self, record: dict, pixels: np.ndarray) -> dict:
        sample = self._mapper(record, pixels)
        size = sample["height"], sample["width"]
        boxes, masks, classes = [], [], []
        for number, channel in enumerate(sample["image"].numpy()[:2]):
            image = cv2.resize(channel, size[::-1], interpolation=cv2.INTER_AREA)
            shown = (image > 127).astype(np.uint8)
            count, labels, stats, _ = cv2.connectedComponentsWithStats(shown)
            boxes += [[x, y, x + w, y + h] for x, y, w, h, _ in stats[1:].tolist()]
            masks += [labels == n for n in range(1, count)]
            classes += [number] * (count - 1)
        found = Instances(size, pred_boxes=Boxes(torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)))
        found.pred_classes = torch.tensor(classes, dtype=torch.long)
        found.scores = torch.full((len(boxes),), 0.9)
        found.pred_masks = torch.tensor(np.array(masks).reshape(-1, *size), dtype=torch.bool)
        return {"instances": found}


def detector(tiling: str, *opts: str) -> CfgNode:
    how = "SEED 1 INPUT.FORMAT RGB MODEL.PIXEL_MEAN [100,100,100]"
    cfg = make_config("configs/toy/mask_rcnn_fpn.yaml", [*FEW.split(), *how.split(), *opts, "INPUT.TILES", tiling])
    side = Tiling.of(tiling).tile
    cfg.INPUT.MIN_SIZE_TEST = cfg.INPUT.MAX_SIZE_TEST = side
    return cfg


def planted(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A black scan with patches of two classes, and their boxes with the class: on seams of windows of 64 px and of
    windows with overlap, inside, at corners, larger than a window, and one that touches the image's border."""
    boxes = [
        (10, 10, 30, 24, 0),
        (50, 8, 78, 26, 1),
        (52, 52, 76, 80, 0),
        (100, 60, 124, 70, 1),
        (130, 62, 154, 72, 1),
        (20, 100, 120, 190, 0),
        (150, 110, 170, 150, 0),
        (180, 0, 199, 20, 1),
        (184, 120, 200, 170, 0),
    ]
    scan = np.zeros((height, width, 3), np.uint8)
    for x0, y0, x1, y1, number in boxes:
        scan[y0:y1, x0:x1, 2 - number] = 250  # as OpenCV writes it
    return scan, np.array(boxes)


def assert_same_objects(found: list[dict], boxes: np.ndarray, exact: float) -> None:
    """Each of (N, 5) boxes with a class once; to the px where they are smaller than what a reduced image tells."""
    ours = corners_of(found)
    classes = np.array([each["category_id"] - 1 for each in found])
    overlap = iou(ours, boxes[:, :4].astype(float)) * (classes[:, None] == boxes[:, 4])
    rows, columns = linear_sum_assignment(-overlap)
    assert len(found) == len(boxes) and overlap[rows, columns].min() > 0.7
    are_small = sides_of(boxes[columns, :4]).max(axis=1) < exact
    assert are_small.sum() >= 5 and (ours[rows][are_small] == boxes[columns, :4][are_small]).all()


def least_of(tiling: Tiling) -> float:
    """Px from which on objects are looked for in the reduced image, too."""
    return LARGE * tiling.side


@pytest.mark.parametrize("tiling", ["64", "64+16", "64+32", "128+16@2", "320"])
def test_planted_objects_are_found_once_and_whole(tiling, tmp_path, monkeypatch):
    monkeypatch.setattr(file_predictions, "Predictor", Exact)
    scan, boxes = planted(200, 200)
    cv2.imwrite(str(tmp_path / "scan.png"), scan)
    (tmp_path / "found").mkdir()
    predictor = TiledPredictor(detector(tiling), tmp_path / "found", Tiling.of(tiling))
    predictor.run(find_sources([tmp_path / "scan.png"], tmp_path / "found"))
    found = json.loads((tmp_path / "found/predictions.json").read_text())
    assert_same_objects(found, boxes, exact=least_of(Tiling.of(tiling)))
    for each in found:
        x, y, width, height = map(int, each["bbox"])
        mask = run_lengths.decode(each["segmentation"])
        assert mask.shape == (200, 200) and mask.sum() == mask[y : y + height, x : x + width].sum() == width * height
    assert cv2.imread(str(tmp_path / "found/scan.png")).shape == (420, 420, 3)
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == sorted(
        [*file_predictions.ALL, WRITTEN, "scan.png"]
    )


def test_processes_of_which_one_is_killed_write_the_bytes_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tiled_predictions, "PART", 1)
    monkeypatch.setattr(parts, "SECONDS", 0)
    monkeypatch.setattr(file_predictions, "Predictor", Exact)
    scan, _ = planted(200, 200)
    for name in ("a", "b"):
        cv2.imwrite(str(tmp_path / f"{name}.png"), scan)
        scan = scan[::-1]
    (tmp_path / "c.png").write_bytes((tmp_path / "a.png").read_bytes()[:-300])

    def predictor(name: str, tiling: str = "64+16") -> TiledPredictor:
        (tmp_path / name).mkdir(exist_ok=True)
        return TiledPredictor(detector(tiling), tmp_path / name, Tiling.of(tiling))

    calls, line_of = [], tiled_predictions.line_of

    def killed(*arguments: object) -> dict:
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return line_of(*arguments)

    def contents(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    sources = find_sources([tmp_path / f"{name}.png" for name in "abc"], tmp_path / "x")
    one = predictor("one")
    one.run(sources)
    assert len(one.files) == 2 and len(one.unreadable) == 1 and "c.png" in one.unreadable[0]
    with pytest.raises(SystemExit):
        predictor("two").run(sources, Share(1, 2))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tiled_predictions, "line_of", killed)
        predictor("two").run(sources, Share(0, 2))
    refused("INPUT.TILES, tiles", predictor("two", "64").run, sources)
    refused("other settings .tiles, pages that zoom.", FilePredictor(detector("64+16"), tmp_path / "two").run, sources)
    predictor("two").run(sources, Share(0, 2))
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_scores_of_windows_are_those_of_the_merged_file_by_pycocotools(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (150, 260, 3), np.uint8)
    tifffile.imwrite(tmp_path / "scan.tif", pixels, metadata=None, extratags=[*tie(), geo_keys()])
    weights = finetuned_checkpoint("mask_rcnn_fpn", tmp_path)
    more = "MODEL.ROI_HEADS.SCORE_THRESH_TEST 0.05 MODEL.DEVICE cpu TEST.DETECTIONS_PER_IMAGE 20"
    tool = f"python tools/predict.py --weights {weights} --tiles 128+32 --score-threshold 0.05"
    text = run(f"{tool} --output {tmp_path / 'found'} {tmp_path / 'scan.tif'} {more}", tmp_path)
    found = json.loads((tmp_path / "found/predictions.json").read_text())
    assert f"{len(found)} objects of 1 of 1 images; in their own CRS, {UTM}, in predictions.gpkg" in text
    assert len(json.loads((tmp_path / "found/predictions.geojson").read_text())["features"]) == len(found)
    truth = json.loads((tmp_path / "found/data_set.json").read_text())
    assert len(found) > 25  # more than of one window
    truth["annotations"] = truth["annotations"][::2]
    for each in truth["annotations"]:
        each.pop("score")
        each["bbox"] = [each["bbox"][0] + 1.5, *each["bbox"][1:]]
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    name = f"tiles:128+32:coco:{tmp_path}:{tmp_path / 'truth.json'}"
    text = run(
        f"python tools/train_net.py --eval-only MODEL.WEIGHTS {weights} OUTPUT_DIR {tmp_path / 'eval'} {more} "
        f"""DATASETS.TEST "('{name}',)" """,
        tmp_path,
    )
    assert "has not learned from tiles" in text
    scores = json.loads((tmp_path / "eval/evaluation.json").read_text())
    coco = COCO(str(tmp_path / "truth.json"))
    for task in ("bbox", "segm"):
        judged = COCOeval(coco, coco.loadRes(found), task)
        judged.params.maxDets = [1, 10, max(100, len(found))]
        judged.evaluate()
        judged.accumulate()
        precision = judged.eval["precision"][:, :, :, 0, -1]
        assert scores[task]["AP"] == pytest.approx(100 * precision[precision > -1].mean(), abs=1e-9)
        assert scores[task]["AP"] > 1
    written = json.loads((tmp_path / "eval/inference/coco_instances_results.json").read_text())
    assert len(written) == len(found)
    assert json.loads((tmp_path / "eval/inference/data_set.json").read_text())["data_set"] == name.split(":", 2)[2]
    run(f"python tools/report.py {tmp_path / 'eval'} --output {tmp_path / 'report.html'}", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "most errors first" in page and "By class" in page and f"{scores['bbox']['AP']:.2f}" in page


def test_masks_in_run_lengths_train_in_windows_that_their_image_does_not_fill(tmp_path):
    mask = np.zeros((200, 300), np.uint8)
    mask[150:190, 20:260] = 1
    cv2.imwrite(str(tmp_path / "a.png"), np.full((200, 300, 3), 90, np.uint8))
    counts = run_lengths.encode(np.asfortranarray(mask))
    segmentation = {"size": counts["size"], "counts": counts["counts"].decode()}
    thing = {"id": 1, "image_id": 1, "category_id": 1, "iscrowd": 0, "bbox": [20, 150, 240, 40]}
    content = {
        "images": [{"id": 1, "file_name": "a.png", "height": 200, "width": 300}],
        "annotations": [{**thing, "segmentation": segmentation, "area": int(mask.sum())}],
        "categories": [{"id": 1, "name": "a"}],
    }
    (tmp_path / "labels.json").write_text(json.dumps(content))
    records = get_records(f"tiles:256+64:coco:{tmp_path}:{tmp_path}/labels.json")
    cfg = detector("256+64", "INPUT.MASK_FORMAT", "bitmask", "INPUT.RANDOM_FLIP", "none")
    cfg.INPUT.MIN_SIZE_TRAIN, cfg.INPUT.MAX_SIZE_TRAIN = (256,), 256
    mapper, seen = DetectionMapper(cfg, is_train=True), 0
    for record in records:
        left, top, right, bottom = record["window"]
        (learned,) = mapper(record)["instances"].gt_masks.tensor.numpy()
        expected = np.zeros((256, 256), bool)
        expected[: bottom - top, : right - left] = mask[top:bottom, left:right]
        assert np.array_equal(learned, expected)
        seen += 1
    assert seen == 2


def test_a_scan_too_large_to_be_decoded_is_cut_and_scored_on_the_whole(tmp_path):
    side, boxes = 20_000, [[3000, 5000, 60, 40], [19_900, 19_950, 80, 50]]
    tifffile.memmap(str(tmp_path / "scan.tif"), shape=(side, side), dtype=np.uint8, photometric="minisblack").flush()
    annotations = [{"id": n, "image_id": 1, "category_id": 1, "bbox": box} for n, box in enumerate(boxes, 1)]
    annotations[0]["segmentation"] = [[3000, 5000, 3060, 5000, 3060, 5040, 3000, 5040]]
    image = {"id": 1, "file_name": "scan.tif"}
    content = {"images": [image], "annotations": annotations, "categories": [{"id": 1, "name": "tree"}]}
    (tmp_path / "truth.json").write_text(json.dumps(content))
    name = f"tiles:1024+128:coco:{tmp_path}:{tmp_path / 'truth.json'}"
    shown = [record for record in get_records(name) if record["annotations"]]
    assert len(shown) == 2 and len(get_records(name)) == 23**2
    cfg = detector("1024+128", "OUTPUT_DIR", str(tmp_path), "DATASETS.TEST", f"('{name}',)", "MODEL.MASK_ON", "False")
    evaluator = TiledBoxEvaluator(name, cfg)
    evaluator.reset()
    for record in TiledBoxEvaluator.records(name):
        labels = [each for one in shown if one["window"] == record["window"] for each in one["annotations"]]
        evaluator.process([record], [exact(record | {"annotations": labels})])
    assert evaluator.evaluate()["bbox"]["AP"] == pytest.approx(100)


def test_tiles_of_another_scale_or_size_are_refused_and_another_overlap_is_not():
    cfg = detector("64+16@0.5")
    assert tiling_to_predict(cfg, "") == tiling_to_predict(cfg, "64+16@0.5") == Tiling(64, 16, 0.5)
    assert tiling_to_predict(cfg, "64+32@0.5") == Tiling(64, 32, 0.5)
    assert tiling_to_predict(cfg, "whole") is None
    refused("the network sees tiles of INPUT.TILES 64.16@0.5, not 64.16", tiling_to_predict, cfg, "64+16")
    refused("not 128@0.5: expected that size and scale", tiling_to_predict, cfg, "128@0.5")
    refused("expected px, perhaps .overlap", tiling_to_predict, cfg, "large")
    lines = logged(tiling_to_predict, detector_of_whole_images(), "64")
    assert any("has not learned from tiles" in line for _, line in lines)
    refused(
        "keypoints of windows are not merged",
        TiledBoxEvaluator,
        "tiles:64:x",
        detector("64", "MODEL.KEYPOINT_ON", "True"),
    )


def detector_of_whole_images() -> CfgNode:
    return make_config("configs/toy/mask_rcnn_fpn.yaml", FEW.split())
