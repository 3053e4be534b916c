"""Photographs, masks and depth maps as they are: `make check-real`, by hand; nothing here runs in `make test`.

They lie in $REVISIT_REAL_DATA (default ../shared/data): coco/images/{train2017,val2017}, voc/{VOC2007_mini,
VOC2012_mini}, cityscapes/mmseg_pseudo, nyud.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import REAL_DATA as DATA
from commands import run
from PIL import Image
from runs import load

from projects.Pictures.label_maps import voc_colours
from revisit.config import add_revisit_config
from revisit.data.finetuning.pixel_mapper import PixelMapper
from revisit.data.images.reader import read_image
from revisit.data.sources.catalog import get_records
from revisit.data.sources.labels import read_depth, read_labels
from revisit.evaluation.pixel_evaluators import DepthEvaluator, SemSegEvaluator

from detectron2.config import get_cfg
from detectron2.data import MetadataCatalog

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data in {DATA}: set REVISIT_REAL_DATA"),
]
VOC = f"voc_segmentation:{DATA}/voc/VOC2012_mini:all"
NYUD = DATA / "nyud"


def stored(path):
    """The numbers in a file, as PIL hands them out."""
    return np.asarray(Image.open(path))


def colours_of(path):
    """What a mask looks like, (H, W, 3) RGB."""
    return np.asarray(Image.open(path).convert("RGB"))


def test_pretrain_convert_and_detect_on_photographs(tmp_path):
    """R50 with the paper's crops, 2 processes; then the C5 detector from its weights."""
    text = run(
        "python tools/train_net.py --config-file configs/pretrain/knn_moco.yaml --num-gpus 2 "
        f"DATASETS.TRAIN \"('folder:{DATA}/coco/images',)\" OUTPUT_DIR {tmp_path}/pretrain SOLVER.MAX_ITER 3 "
        "SOLVER.IMS_PER_BATCH 8 SOLVER.BASE_LR 0.01 MOCO.QUEUE_SIZE 500 MOCO.BN_GROUP 4 NEIGHBORS.WARMUP_EPOCHS 0 "
        "DATALOADER.NUM_WORKERS 0",
        tmp_path,
    )
    (metrics,) = (json.loads(line) for line in (tmp_path / "pretrain/metrics.json").read_text().splitlines())
    assert 0 < metrics["total_loss"] < 20 and "unreadable" not in text
    assert load(tmp_path / "pretrain/model_final.pth")["model"]["queue.num_enqueued"] == 24
    weights = tmp_path / "backbone.pth"
    run(f"python tools/convert_to_d2.py {tmp_path}/pretrain/model_final.pth {weights}", tmp_path)
    voc = f"('voc:{DATA}/voc/VOC2007_mini:all',)"
    text = run(
        "python tools/train_net.py --config-file configs/detection/voc_faster_rcnn_R50_C5.yaml "
        f'MODEL.WEIGHTS {weights} DATASETS.TRAIN "{voc}" DATASETS.TEST "{voc}" OUTPUT_DIR {tmp_path}/detect '
        "SOLVER.MAX_ITER 2 SOLVER.STEPS () SOLVER.WARMUP_ITERS 0 SOLVER.IMS_PER_BATCH 2 SOLVER.BASE_LR 0.001 "
        "TEST.PRECISE_BN.NUM_ITER 1 INPUT.MIN_SIZE_TRAIN (240,) INPUT.MIN_SIZE_TEST 240 DATALOADER.NUM_WORKERS 0",
        tmp_path,
    )
    assert "265 of 265 backbone tensors" in text
    assert "bbox/AP50" in (tmp_path / "detect/metrics.json").read_text()


def unchanged(name, is_train):
    """A mapper of samples as the files have them."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.INPUT.FORMAT, cfg.MODEL.PIXEL_MEAN, cfg.DATASETS.TRAIN = "RGB", [123.675, 116.28, 103.53], (name,)
    cfg.INPUT.RANDOM_FLIP, cfg.INPUT.RANDOM_SCALE = "none", (1.0, 1.0)
    return PixelMapper(cfg, is_train)


def pixel_accuracy_of_class_0(name):
    """What a segmentation set gives the answer that every pixel is of its first class, percent."""
    evaluator, num_classes = SemSegEvaluator(name), len(MetadataCatalog.get(name).stuff_classes)
    for record in map(unchanged(name, False), get_records(name)):
        logits = torch.zeros(num_classes, record["height"], record["width"])
        logits[0] = 1
        evaluator.process([record], [{"sem_seg": logits}])
    return evaluator.evaluate()["sem_seg"]["pACC"]


def read_set(name):
    """(record, labels) of every record of a segmentation set."""
    metadata, records = MetadataCatalog.get(name), get_records(name)
    classes = len(metadata.stuff_classes)
    return [(r, read_labels(r["sem_seg_file_name"], classes, metadata.label_offset)) for r in records]


def test_voc_masks_survive_pixel_by_pixel_and_its_evaluator_leaves_void_out():
    pairs, mapper, ids, colours = read_set(VOC), unchanged(VOC, True), set(), []
    assert len(pairs) == 22
    for record, labels in pairs:
        assert np.array_equal(labels, stored(record["sem_seg_file_name"]))
        colours.append(colours_of(record["sem_seg_file_name"]))
        assert np.array_equal(voc_colours()[labels], colours[-1])
        assert labels.shape == read_image(record["file_name"]).shape[:2]
        ids.update(np.unique(labels).tolist())
        sample = mapper(record)
        assert np.array_equal(sample["sem_seg"], labels) and labels.shape == (sample["height"], sample["width"])
        assert np.abs(sample["image"].permute(1, 2, 0).numpy().astype(int) - stored(record["file_name"])).max() <= 4
    assert {0, 15, 255} < ids <= {*range(21), 255}
    colours = np.concatenate([picture.reshape(-1, 3) for picture in colours])
    void, background = ((colours == colour).all(axis=1) for colour in ((224, 224, 192), (0, 0, 0)))
    assert pixel_accuracy_of_class_0(VOC) == pytest.approx(100 * background.sum() / (~void).sum())


@pytest.fixture(scope="module")
def nyud(tmp_path_factory):
    """The sample in NYUD_MT's layout: train has labels alone, val has depth too."""
    output = tmp_path_factory.mktemp("nyud") / "NYUD_MT"
    command = f"python datasets/prepare_nyud.py --output {output} --mask-ids zero_based"
    folder = NYUD / "refinenet_seg"
    run(f'{command} --split train --images "{folder}/{{name}}.png" --masks "{folder}/{{name}}_mask.png"', output.parent)
    folder = NYUD / "refinenet_multitask" / "examples" / "ExpNYUD_*"
    run(
        f'{command} --split val --images "{folder}/{{name}}.png" --masks "{folder}/segm_gt_{{name}}.png" '
        f'--depths "{folder}/depth_gt_{{name}}.png" --depth-scale 5000',
        output.parent,
    )
    return output


@pytest.mark.parametrize(
    ("split", "count", "original"),
    [("train", 5, "refinenet_seg/{}_mask.png"), ("val", 2, "refinenet_multitask/examples/ExpNYUD_*/segm_gt_{}.png")],
)
def test_nyud_labels_and_scores_are_those_of_the_sample(split, count, original, nyud):
    pairs, ids = read_set(f"nyud_segmentation:{nyud}:{split}"), []
    assert len(pairs) == count
    for record, labels in pairs:
        (file,) = NYUD.glob(original.format(record["image_id"]))
        assert np.array_equal(labels, stored(file))  # train ids and 255 there, 1 to 40 and 0 in NYUD_MT
        assert {0, 255} <= set(np.unique(labels)) <= {*range(40), 255}
        ids += stored(file).ravel().tolist()
    share = ids.count(0) / (len(ids) - ids.count(255))
    assert pixel_accuracy_of_class_0(f"nyud_segmentation:{nyud}:{split}") == pytest.approx(100 * share)


def test_nyud_depth_is_in_metres_and_scored_in_metres(nyud):
    name = f"nyud_depth:{nyud}:val"
    evaluator, errors = DepthEvaluator(name), []
    for record in map(unchanged(name, False), get_records(name)):
        (original,) = NYUD.glob(f"refinenet_multitask/examples/ExpNYUD_*/depth_gt_{record['image_id']}.png")
        metres, depth = stored(original).astype(np.float64) / 5000, read_depth(record["depth_file_name"])
        assert np.abs(depth - metres).max() < 1e-6
        assert (depth == 0).any() and 1 < np.median(depth[depth > 0]) < 5 and depth.max() < 10
        photograph = stored(original.with_name(f"{record['image_id']}.png")).astype(int)
        assert np.abs(read_image(record["file_name"]) - photograph).mean() < 1  # JPEG of quality 100
        errors.append(3.0 - metres[metres > 0])
        evaluator.process([record], [{"depth": torch.full(metres.shape, 3.0)}])
    assert len(errors) == 2
    expected = np.sqrt(np.mean(np.concatenate(errors) ** 2))
    assert evaluator.evaluate()["depth"]["rmse"] == pytest.approx(expected, rel=1e-6)


def test_train_ids_of_cityscapes_survive_pixel_by_pixel_and_are_derived_as_published(tmp_path):
    shutil.copytree(DATA / "cityscapes" / "mmseg_pseudo", tmp_path / "cityscapes")
    (ids_file,) = tmp_path.glob("cityscapes/gtFine/val/*/*_labelIds.png")
    # The sample lacks the file of polygons, which Detectron2 asks for the size.
    polygons = {"imgHeight": 128, "imgWidth": 256, "objects": []}
    ids_file.with_name(ids_file.name.replace("labelIds.png", "polygons.json")).write_text(json.dumps(polygons))
    name = f"cityscapes:{tmp_path}/cityscapes:val"
    ((record, labels),) = read_set(name)
    published = Path(record["sem_seg_file_name"])
    assert published.name == ids_file.name.replace("labelIds", "labelTrainIds")
    expected, ids = stored(published), stored(ids_file)
    assert np.array_equal(labels, expected) and 255 in labels and (labels == 0).mean() > 0.1
    scored = np.isin(ids, [7, 8, 11, 12, 13, 17, *range(19, 29), 31, 32, 33])
    # The sample's files were reduced to 256 x 128 one by one: they disagree on 77 pixels, all on borders.
    assert pixel_accuracy_of_class_0(name) == pytest.approx(100 * (ids == 7).sum() / scored.sum(), abs=0.3)
    sample = unchanged(name, True)(record)
    assert np.array_equal(sample["sem_seg"], labels)
    assert np.array_equal(sample["image"].permute(1, 2, 0), stored(record["file_name"]))
    published.unlink()
    assert "wrote 1 masks" in run(f"python datasets/prepare_cityscapes.py --cityscapes {tmp_path}/cityscapes", tmp_path)
    derived = stored(published)
    assert np.mean(derived != expected) < 0.003 and set(np.unique(derived)) == set(np.unique(expected))
