"""Classes and depths of every pixel by windows: maps cut with the image, blended where windows meet, scored whole."""

import json
from argparse import Namespace
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
import torch
from checkpoints import finetuned_checkpoint
from commands import run
from PIL import Image
from trees import refused

from projects.Predict import file_predictions
from projects.Predict.file_predictions import find_sources
from projects.Predict.predictions import draw_segmentation, finetuned_config
from projects.Tiles import pixel_predictions, tiled_predictions
from projects.Tiles.blending import Scores
from projects.Tiles.pixel_predictions import TiledPixelPredictor, predictor_of
from projects.Tiles.tested_windows import windows_to_test
from projects.Tiles.tiled_predictions import tiling_to_predict
from projects.Tiles.windows import Tiling, inside, windows
from projects.ToyScenes import CLASS_NAMES
from revisit.data.finetuning.pixel_mapper import PixelMapper
from revisit.data.images.pixel_format import PHOTOGRAPHS, PixelFormat
from revisit.data.sources.catalog import get_records
from revisit.data.sources.labels import VOID, read_depth, read_ids, read_labels, write_depth, write_labels
from revisit.data.sources.records import fingerprint
from revisit.engine.setup import make_config
from revisit.evaluation.pixel_evaluators import confusion_matrix, score, sums_of_errors
from revisit.jobs import parts
from revisit.jobs.shares import Share

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

SIZE = (150, 260)
CLASSES = ["background", *CLASS_NAMES]  # of the toy network
GEO = [(33550, "d", 3, (0.5, 0.5, 0.0), True), (33922, "d", 6, (0, 0, 0, 500_000, 5_000_000, 0), True)]


def tree(folder: Path, suffix: str = ".png", void: bool = False) -> np.ndarray:
    """An image, its masks and its depth map; returns the ids."""
    rng = np.random.default_rng(0)
    for name in ("images", "masks", "depth", "gt_sets"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (*SIZE, 3), np.uint8)).save(folder / f"images/a{suffix}")
    ids = rng.integers(0, 3, SIZE, np.uint8)
    if void:
        ids[:, :100] = VOID
    if suffix == ".png":
        write_labels(folder / "masks/a.png", ids)
    else:
        tifffile.imwrite(folder / "masks/a.tif", ids, tile=(64, 64), compression="zlib")
    (folder / "classes.txt").write_text("a\nb\nc\n")
    write_depth(folder / "depth/a.npy", rng.random(SIZE, np.float32) + 1)
    (folder / "gt_sets/val.txt").write_text("a\n")
    return ids


def masks(folder: Path, tiling: str) -> str:
    return f"tiles:{tiling}:masks:{folder}/images:{folder}/masks"


def network(kind: str, tiling: str, *opts: str) -> CfgNode:
    return make_config(f"configs/toy/{kind}.yaml", ["MODEL.DEVICE", "cpu", "SEED", "1", "INPUT.TILES", tiling, *opts])


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_a_window_has_its_part_of_the_map(suffix, tmp_path):
    ids = tree(tmp_path, suffix)
    records = get_records(masks(tmp_path, "64+16"))
    assert len(records) == len(windows(*SIZE, 64, 16))
    for record in records:
        left, top, right, bottom = record["window"]
        found = read_labels(record["sem_seg_file_name"], 3, 0, record["window"])
        np.testing.assert_array_equal(found, ids[top:bottom, left:right])
        depth = read_depth(tmp_path / "depth/a.npy", record["window"])
        np.testing.assert_array_equal(depth, read_depth(tmp_path / "depth/a.npy")[top:bottom, left:right])
    assert (
        fingerprint(records)[0]["labels"] == fingerprint(records)[0]["labels"] != fingerprint(records[:1])[0]["labels"]
    )


def test_ids_of_a_tiff_are_what_it_stores_whatever_its_palette_says(tmp_path):
    ids = np.random.default_rng(0).integers(0, 3, (40, 50), np.uint8)
    palette = np.zeros((3, 256), np.uint16)
    palette[:, 1] = 65535
    tifffile.imwrite(tmp_path / "a.tif", ids, photometric="palette", colormap=palette)
    window = (10, 5, 30, 40)
    np.testing.assert_array_equal(read_ids(tmp_path / "a.tif", window), read_ids(tmp_path / "a.tif")[5:40, 10:30])
    (tmp_path / "c.tif").write_bytes((tmp_path / "a.tif").read_bytes()[:-20])
    refused("reading label map .*c.tif", read_ids, tmp_path / "c.tif", window)
    tifffile.imwrite(tmp_path / "b.tif", np.zeros((40, 50, 3), np.uint8), photometric="rgb")
    refused("3 samples of uint8 a pixel: expected one id", read_ids, tmp_path / "b.tif", window)


def test_windows_without_a_label_are_left_out_and_those_of_other_maps_refused(tmp_path):
    tree(tmp_path, void=True)
    lefts = {record["window"][0] for record in get_records(masks(tmp_path, "50"))}
    assert lefts == {100, 150, 200, 210}
    Image.fromarray(np.zeros((150, 261), np.uint8)).save(tmp_path / "masks/a.png")
    refused("a.png is 261 x 150 pixels, but its image .*a.png is 260 x 150", get_records, masks(tmp_path, "40"))


def test_a_drawn_window_shows_what_is_predicted_where_it_is(tmp_path):
    ids = tree(tmp_path)
    name = masks(tmp_path, "300")
    (record,) = get_records(name)
    logits = torch.zeros(3, 300, 300)
    logits[:, :150, :260] = torch.from_numpy(np.eye(3, dtype=np.float32)[ids]).permute(2, 0, 1)
    black, metadata = np.zeros((*SIZE, 3), np.uint8), MetadataCatalog.get(name)
    row = draw_segmentation(record, black, metadata, lambda: {"sem_seg": logits})
    np.testing.assert_array_equal(row.tiles[1], row.tiles[2])
    assert row.captions == [f"{record['file_name']}, window {record['window']}"]


@pytest.mark.parametrize(("tiling", "seen"), [("64", 64), ("64@0.5", 64), ("32@0.25", 32)])
def test_a_window_is_seen_at_the_scale_and_padded_not_stretched(tiling, seen, tmp_path):
    tree(tmp_path)
    side = Tiling.of(tiling).side
    cfg = network("segmentation_voc", tiling)
    cfg.MODEL.PIXEL_MEAN = [100.0, 110.0, 120.0]
    for record in windows_to_test({"file_name": str(tmp_path / "images/a.png")}, Tiling.of(tiling))[:-1]:
        sample = PixelMapper(cfg, is_train=False)(record)
        assert sample["image"].shape == (3, seen, seen) and (sample["height"], sample["width"]) == (side, side)
    if side > min(SIZE):
        assert (sample["image"][:, -1, 0] == torch.tensor([100, 110, 120])).all()


def test_a_training_sees_labels_at_the_scale_and_depths_as_they_are(tmp_path):
    ids = tree(tmp_path)
    cfg = network("segmentation_voc", "64@0.5", "INPUT.CROP.ENABLED", "False", "INPUT.RANDOM_FLIP", "none")
    cfg.INPUT.RANDOM_SCALE = [1.0, 1.0]
    cfg.DATASETS.TRAIN = (masks(tmp_path, "64@0.5"),)
    (record, *_) = get_records(cfg.DATASETS.TRAIN[0])
    sample = PixelMapper(cfg, is_train=True)(record | {"depth_file_name": str(tmp_path / "depth/a.npy")})
    assert sample["image"].shape == (3, 64, 64) and sample["sem_seg"].shape == sample["depth"].shape == (64, 64)
    near = [ids[y:128:2, x:128:2] for y in (0, 1) for x in (0, 1)]
    assert any(np.array_equal(sample["sem_seg"].numpy(), each) for each in near)
    assert sample["depth"].min() >= 1 and sample["depth"].max() <= 2


@pytest.mark.parametrize("tiling", ["64", "64+16", "64+48", "40+10@0.5", "300"])
def test_blended_windows_are_the_weighted_mean_of_all_that_have_a_pixel(tiling, tmp_path):
    rng, tiling = np.random.default_rng(0), Tiling.of(tiling)
    places = inside(windows(*SIZE, *tiling), *SIZE).tolist()
    scores = Scores.of(tmp_path / "scores", [tuple(place) for place in places], SIZE, tiling)
    total, weights = np.zeros((3, *SIZE)), np.zeros(SIZE)
    fade = max(1, round(tiling.overlap / tiling.scale))
    for left, top, right, bottom in places:
        assert not scores.are_complete
        logits = rng.normal(size=(3, tiling.side, tiling.side))
        record = {"window": (left, top, right, bottom), "padded_to": tiling.side, "file_name": "a"}
        scores.write(record, {"sem_seg": torch.tensor(logits)})
        for y in range(top, bottom):
            for x in range(left, right):
                inner = [(left > 0, x + 0.5 - left), (right < SIZE[1], right - x - 0.5)]
                inner += [(top > 0, y + 0.5 - top), (bottom < SIZE[0], bottom - y - 0.5)]
                across, down = (
                    min([fade, *(far for is_inner, far in pair if is_inner)]) for pair in (inner[:2], inner[2:])
                )
                weight = across * down / fade**2
                shares = np.exp(logits[:, y - top, x - left])
                total[:, y, x] += weight * shares / shares.sum()
                weights[y, x] += weight
    refused("3 x 5 px: expected TEST.RESIZE_BACK bilinear", scores.write, record, {"depth": torch.ones(3, 5)})
    (tile,) = scores.tiles()
    assert scores.are_complete and tile.window == (0, 0, SIZE[1], SIZE[0]) and tile.is_seen.all()
    np.testing.assert_allclose(tile.scores / 65535, total / weights, atol=2e-5)
    scores.remove()
    assert not scores.folder.exists()


class Rule:
    """A network by rule: the class of a pixel is its strongest channel, and its depth the sum of these."""

    class_names, pixels = ["a", "b", "c"], PHOTOGRAPHS

    def __init__(self, cfg: CfgNode):
        self._mapper = PixelMapper(cfg, is_train=False)
        self.read, self._kind = self._mapper.read, cfg.MODEL.META_ARCHITECTURE

    def __call__(self, record: dict, pixels: np.ndarray) -> dict:
        sample = self._mapper(record, pixels)
        image = sample["image"].float()
        size = (sample["height"], sample["width"])
        image = torch.nn.functional.interpolate(image[None], size=size, mode="nearest-exact")[0]
        return {"depth": image.sum(dim=0) / 100} if self._kind == "DepthEstimator" else {"sem_seg": image / 40}


def made(folder: Path, kind: str, tiling: str) -> TiledPixelPredictor:
    folder.mkdir(exist_ok=True)
    predictor = predictor_of(network(kind, tiling), folder, Tiling.of(tiling))
    assert isinstance(predictor, TiledPixelPredictor)
    return predictor


@pytest.mark.parametrize("tiling", ["64+16", "300"])
def test_maps_of_windows_are_those_of_the_whole_image(tiling, tmp_path, monkeypatch):
    monkeypatch.setattr(file_predictions, "Predictor", Rule)
    tree(tmp_path)
    image = cv2.imread(str(tmp_path / "images/a.png"))[..., ::-1].astype(int)
    sources = find_sources([tmp_path / "images/a.png"], tmp_path / "x")
    made(tmp_path / "s", "segmentation_voc", tiling).run(sources)
    classes = cv2.imread(str(tmp_path / "s/classes/a.png"), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(classes, image.argmax(axis=2))
    made(tmp_path / "d", "depth", tiling).run(sources)
    depth = cv2.imread(str(tmp_path / "d/depth/a.png"), cv2.IMREAD_UNCHANGED)
    assert depth.dtype == np.uint16 and abs(depth - image.sum(axis=2) * 10.0).max() <= 1
    for name in ("s", "d"):
        assert cv2.imread(str(tmp_path / name / "a.png")).shape == (242, 420, 3)
        (entry,) = json.loads((tmp_path / name / "images.json").read_text())["images"]
        assert (entry["height"], entry["width"]) == SIZE and not (tmp_path / name / "parts").exists()


def test_large_images_and_those_with_coordinates_become_tiled_tiffs(tmp_path, monkeypatch):
    monkeypatch.setattr(file_predictions, "Predictor", Rule)
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
    tifffile.imwrite(tmp_path / "geo.tif", pixels, photometric="rgb", tile=(64, 64), extratags=GEO)
    Image.fromarray(pixels).save(tmp_path / "large.png")
    for name in ("geo.tif", "large.png"):
        made(tmp_path / "found", "segmentation_voc", "64+16").run(find_sources([tmp_path / name], tmp_path / "x"))
        monkeypatch.setattr(pixel_predictions, "MOST_OF_PNG", 200)
    for name in ("geo", "large"):
        with tifffile.TiffFile(tmp_path / f"found/classes/{name}.tif") as file:
            page = file.pages[0]
            assert page.is_tiled and page.compression == 8 and page.tags[42113].value == "255"
            np.testing.assert_array_equal(page.asarray(), pixels.argmax(axis=2))
            assert [page.tags.valueof(tag[0]) for tag in GEO] == (
                [tag[3] for tag in GEO] if name == "geo" else [None] * 2
            )


def test_pixels_that_no_window_shows_are_void(tmp_path, monkeypatch):
    monkeypatch.setattr(file_predictions, "Predictor", Rule)
    pixels = np.full((64, 192, 3), 7, np.uint8)
    pixels[:, 64:128] = 0
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", extratags=[(42113, "s", 0, "0", True)])
    tifffile.imwrite(tmp_path / "b.tif", pixels * 0, photometric="rgb", extratags=[(42113, "s", 0, "0", True)])
    sources = find_sources([tmp_path / "a.tif", tmp_path / "b.tif"], tmp_path / "x")
    made(tmp_path / "found", "segmentation_voc", "64").run(sources)
    assert (cv2.imread(str(tmp_path / "found/classes/b.png"), cv2.IMREAD_UNCHANGED) == VOID).all()
    classes = cv2.imread(str(tmp_path / "found/classes/a.png"), cv2.IMREAD_UNCHANGED)
    assert (classes[:, 64:128] == VOID).all() and (np.delete(classes, np.s_[64:128], axis=1) == 0).all()


@pytest.mark.parametrize("tiling", ["64", "None"])
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(("kind", "void"), [("segmentation_voc", VOID), ("depth", 0)])
def test_pixels_without_data_are_void_next_to_others(kind, void, marked, tiling, tmp_path, monkeypatch):
    """By the file, or by INPUT.NODATA."""
    monkeypatch.setattr(file_predictions, "Predictor", Rule)
    pixels = np.full((64, 96, 3), 7, np.uint8)
    pixels[10:20, 30:70] = 9
    tag = [(42113, "s", 0, "9", True)] * marked
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", extratags=tag)
    (tmp_path / "found").mkdir()
    cfg = network(kind, tiling)
    if not marked:
        monkeypatch.setattr(Rule, "pixels", PixelFormat(nodata=9.0))
    how = None if tiling == "None" else Tiling.of(tiling)
    predictor_of(cfg, tmp_path / "found", how).run(find_sources([tmp_path / "a.tif"], tmp_path / "x"))
    folder = "depth" if kind == "depth" else "classes"
    values = cv2.imread(str(tmp_path / "found" / folder / "a.png"), cv2.IMREAD_UNCHANGED)
    assert ((values == void) == (pixels == 9).all(axis=2)).all()


@pytest.mark.parametrize("stopped", ["write", "tiles"])
def test_processes_of_which_one_is_killed_write_the_maps_of_one(stopped, tmp_path, monkeypatch):
    monkeypatch.setattr(tiled_predictions, "PART", 1)
    monkeypatch.setattr(parts, "SECONDS", 0)
    monkeypatch.setattr(file_predictions, "Predictor", Rule)
    tree(tmp_path)
    (tmp_path / "images/b.png").write_bytes((tmp_path / "images/a.png").read_bytes()[:-300])
    sources = find_sources([tmp_path / "images/a.png", tmp_path / "images/b.png"], tmp_path / "x")
    one = made(tmp_path / "one", "segmentation_voc", "64+16")
    one.run(sources)
    assert len(one.files) == 1 and "b.png" in one.unreadable[0]
    calls, plain = [], getattr(Scores, stopped)

    def killed(*arguments: object) -> object:
        calls.append(arguments)
        if stopped == "tiles" or len(calls) == 5:
            raise KeyboardInterrupt
        return plain(*arguments)

    with pytest.raises(SystemExit):
        made(tmp_path / "two", "segmentation_voc", "64+16").run(sources, Share(1, 2))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Scores, stopped, killed)
        made(tmp_path / "two", "segmentation_voc", "64+16").run(sources, Share(0, 2))
    made(tmp_path / "two", "segmentation_voc", "64+16").run(sources, Share(0, 2))
    contents = [
        {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("one", "two")
    ]
    assert contents[0] == contents[1] and "classes/a.png" in contents[0]


@pytest.mark.parametrize("kind", ["segmentation_voc", "depth"])
def test_scores_of_windows_are_those_of_the_merged_map(kind, tmp_path):
    tree(tmp_path)
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    image = tmp_path / ("images/a.jpg" if kind == "depth" else "images/a.png")
    Image.open(tmp_path / "images/a.png").save(image)
    weights = finetuned_checkpoint(kind, tmp_path)
    more = "MODEL.DEVICE cpu DATALOADER.NUM_WORKERS 0"
    tool = f"python tools/predict.py --weights {weights} --tiles 96+32 --output {tmp_path / 'found'}"
    run(f"{tool} {image} {more}", tmp_path)
    name = masks(tmp_path, "96+32") if kind != "depth" else f"tiles:96+32:nyud_depth:{tmp_path}:val"
    text = run(
        f"python tools/train_net.py --eval-only MODEL.WEIGHTS {weights} OUTPUT_DIR {tmp_path / 'eval'} {more} "
        f"""DATASETS.TEST "('{name}',)" """,
        tmp_path,
    )
    assert "has not learned from tiles" in text
    scores = json.loads((tmp_path / "eval/evaluation.json").read_text())
    if kind == "depth":
        found = cv2.imread(str(tmp_path / "found/depth/a.png"), cv2.IMREAD_UNCHANGED) / 1000
        (sums,) = [sums_of_errors(found, read_depth(tmp_path / "depth/a.npy"))]
        assert scores["depth"]["rmse"] == pytest.approx(np.sqrt(sums[1] / sums[0]), abs=1e-3)
        return
    found = cv2.imread(str(tmp_path / "found/classes/a.png"), cv2.IMREAD_UNCHANGED)
    counts = confusion_matrix(found, read_labels(tmp_path / "masks/a.png", 11), 11)
    assert counts.sum() == SIZE[0] * SIZE[1] and len(np.unique(found)) > 1
    expected = score(counts, CLASSES)
    assert scores["sem_seg"] == pytest.approx(expected, abs=1e-9)
    assert not (tmp_path / "eval/inference/scores/0").exists()


def test_a_training_on_windows_keeps_their_scale_for_the_evaluation(tmp_path):
    tree(tmp_path)
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    name = masks(tmp_path, "64+16@0.5")
    narrow = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 MODEL.DEVICE cpu MODEL.WEIGHTS ''"
    few = "SOLVER.IMS_PER_BATCH 2 SOLVER.MAX_ITER 2 INPUT.CROP.SIZE [65,65] DATALOADER.NUM_WORKERS 0"
    train = "python tools/train_net.py --config-file configs/toy/segmentation_voc.yaml"
    text = run(
        f"""{train} {narrow} {few} DATASETS.TRAIN "('{name}',)" DATASETS.TEST "('{name}',)" """
        f"OUTPUT_DIR {tmp_path}/run",
        tmp_path,
    )
    assert "windows of 128 px in 1 images" in text and "INPUT.TILES '64+16@0.5'" in text
    last = json.loads((tmp_path / "run/metrics.json").read_text().splitlines()[-1])
    assert np.isfinite(last["total_loss"]) and last["sem_seg/mIoU"] >= 0
    cfg = finetuned_config(
        Namespace(weights=f"{tmp_path}/run/model_final.pth", config_file="", opts=["MODEL.DEVICE", "cpu"])
    )
    assert tiling_to_predict(cfg, None) == Tiling(64, 16, 0.5)
    refused("not 64.16: expected that size and scale", tiling_to_predict, cfg, "64+16")
