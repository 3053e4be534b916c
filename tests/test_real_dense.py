"""Segmentation and depth on real masks and depth maps: `make check-real`, by hand; nothing here runs in `make test`.

They lie in $REVISIT_REAL_DATA (default ../shared/data): voc/VOC2012_mini, cityscapes/mmseg_pseudo and nyud.
"""

import json
import shutil

import cv2
import numpy as np
import pytest
import torch
from commands import run
from PIL import Image
from real import DATA, needs_real_data

from projects.common.label_maps import voc_colours
from revisit import add_revisit_config
from revisit.data.catalog import get_records
from revisit.data.labels import read_depth, read_labels
from revisit.data.pixel_mapper import PixelMapper
from revisit.data.reader import read_image
from revisit.evaluation.depth_evaluation import DepthEvaluator
from revisit.evaluation.sem_seg_evaluation import SemSegEvaluator

from detectron2.config import get_cfg
from detectron2.data import MetadataCatalog

VOC = f"voc_segmentation:{DATA}/voc/VOC2012_mini:all"
NYUD = DATA / "nyud"

pytestmark = needs_real_data


def unchanged(name, is_train):
    """A mapper of samples as the files have them."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.INPUT.FORMAT = "RGB"
    cfg.MODEL.PIXEL_MEAN = [123.675, 116.28, 103.53]
    cfg.DATASETS.TRAIN = (name,)
    cfg.INPUT.RANDOM_FLIP, cfg.INPUT.RANDOM_SCALE = "none", (1.0, 1.0)
    return PixelMapper(cfg, is_train)


def stored(path):
    """The numbers in a file, as PIL hands them out."""
    return np.asarray(Image.open(path))


def colours_of(path):
    """What the mask at ``path`` looks like, (H, W, 3) RGB."""
    return cv2.imread(str(path))[..., ::-1]


def scores_of_class_0(name):
    """What a segmentation set gives the answer that every pixel is of its first class."""
    evaluator, num_classes = SemSegEvaluator(name), len(MetadataCatalog.get(name).stuff_classes)
    mapper = unchanged(name, False)
    for record in map(mapper, get_records(name)):
        logits = torch.zeros(num_classes, record["height"], record["width"])
        logits[0] = 1
        evaluator.process([record], [{"sem_seg": logits}])
    return evaluator.evaluate()["sem_seg"]


def read_set(name):
    """(record, labels) of every record of a segmentation set."""
    metadata = MetadataCatalog.get(name)
    records = get_records(name)
    classes = len(metadata.stuff_classes)
    return [(r, read_labels(r["sem_seg_file_name"], classes, metadata.label_offset)) for r in records]


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


def test_voc_masks_survive_pixel_by_pixel():
    pairs = read_set(VOC)
    assert len(pairs) == 22
    for record, labels in pairs:
        assert np.array_equal(labels, stored(record["sem_seg_file_name"]))
        assert np.array_equal(voc_colours()[labels], colours_of(record["sem_seg_file_name"]))
        assert labels.shape == read_image(record["file_name"]).shape[:2]
    ids = set().union(*(np.unique(labels).tolist() for _, labels in pairs))
    assert {0, 15, 255} < ids <= {*range(21), 255}


def test_the_evaluator_counts_vocs_background_and_leaves_void_out():
    pictures = [colours_of(record["sem_seg_file_name"]).reshape(-1, 3) for record in get_records(VOC)]
    colours = np.concatenate(pictures)
    void = (colours == (224, 224, 192)).all(axis=1)
    background = (colours == 0).all(axis=1)
    assert scores_of_class_0(VOC)["pACC"] == pytest.approx(100 * background.sum() / (~void).sum())


def test_a_voc_sample_without_changes_is_the_files():
    mapper = unchanged(VOC, True)
    for record in get_records(VOC):
        sample = mapper(record)
        assert np.array_equal(sample["sem_seg"], stored(record["sem_seg_file_name"]))
        assert np.abs(sample["image"].permute(1, 2, 0).numpy().astype(int) - stored(record["file_name"])).max() <= 4
        assert sample["sem_seg"].shape == (sample["height"], sample["width"])


def test_nyud_labels_move_back_to_where_the_sample_has_them(nyud):
    for split, count in (("train", 5), ("val", 2)):
        pairs = read_set(f"nyud_segmentation:{nyud}:{split}")
        assert len(pairs) == count
        for record, labels in pairs:
            (original,) = [
                *NYUD.glob(f"refinenet_seg/{record['image_id']}_mask.png"),
                *NYUD.glob(f"refinenet_multitask/examples/ExpNYUD_*/segm_gt_{record['image_id']}.png"),
            ]
            assert np.array_equal(labels, stored(original))  # train ids and 255 there, 1 to 40 and 0 in NYUD_MT
            assert {0, 255} <= set(np.unique(labels)) <= {*range(40), 255}


def test_the_evaluator_counts_nyuds_first_class_as_the_sample_has_it(nyud):
    originals = [stored(path).ravel() for path in sorted(NYUD.glob("refinenet_seg/*_mask.png"))]
    ids = np.concatenate(originals)
    scores = scores_of_class_0(f"nyud_segmentation:{nyud}:train")
    assert scores["pACC"] == pytest.approx(100 * (ids == 0).sum() / (ids != 255).sum())


def test_the_evaluator_gives_real_depth_its_own_rmse(nyud):
    name = f"nyud_depth:{nyud}:val"
    evaluator = DepthEvaluator(name)
    errors = []
    for record in map(unchanged(name, False), get_records(name)):
        (original,) = NYUD.glob(f"refinenet_multitask/examples/ExpNYUD_*/depth_gt_{record['image_id']}.png")
        metres = stored(original).astype(np.float64) / 5000
        errors.append(3.0 - metres[metres > 0])
        evaluator.process([record], [{"depth": torch.full(metres.shape, 3.0)}])
    expected = np.sqrt(np.mean(np.concatenate(errors) ** 2))
    assert evaluator.evaluate()["depth"]["rmse"] == pytest.approx(expected, rel=1e-6)


def test_nyud_depth_is_in_metres(nyud):
    records = get_records(f"nyud_depth:{nyud}:val")
    assert [record["image_id"] for record in records] == ["000433", "000464"]
    for record in records:
        (original,) = NYUD.glob(f"refinenet_multitask/examples/ExpNYUD_*/depth_gt_{record['image_id']}.png")
        depth = read_depth(record["depth_file_name"])
        assert np.abs(depth - stored(original).astype(np.float64) / 5000).max() < 1e-6
        assert (depth == 0).any() and 1 < np.median(depth[depth > 0]) < 5 and depth.max() < 10
        photograph = stored(original.with_name(f"{record['image_id']}.png")).astype(int)
        assert np.abs(read_image(record["file_name"]) - photograph).mean() < 1  # JPEG of quality 100


@pytest.fixture
def cityscapes(tmp_path):
    """A copy of the sample, with the file of polygons that it lacks and Detectron2 asks for the size."""
    root = tmp_path / "cityscapes"
    shutil.copytree(DATA / "cityscapes" / "mmseg_pseudo", root)
    (label_ids,) = root.glob("gtFine/val/*/*_labelIds.png")
    polygons = {"imgHeight": 128, "imgWidth": 256, "objects": []}
    label_ids.with_name(label_ids.name.replace("labelIds.png", "polygons.json")).write_text(json.dumps(polygons))
    return root


def test_published_train_ids_of_cityscapes_survive_pixel_by_pixel(cityscapes):
    name = f"cityscapes:{cityscapes}:val"
    ((record, labels),) = read_set(name)
    assert record["sem_seg_file_name"].endswith("_gtFine_labelTrainIds.png")
    assert np.array_equal(labels, stored(record["sem_seg_file_name"]))
    assert 255 in labels and (labels == 0).mean() > 0.1
    ids = stored(record["sem_seg_file_name"].replace("labelTrainIds", "labelIds"))
    scored = np.isin(ids, [7, 8, 11, 12, 13, 17, *range(19, 29), 31, 32, 33])
    # The two files of the sample were reduced one by one and disagree on a few borders.
    assert scores_of_class_0(name)["pACC"] == pytest.approx(100 * (ids == 7).sum() / scored.sum(), abs=0.3)
    sample = unchanged(name, True)(record)
    assert np.array_equal(sample["sem_seg"], labels)
    assert np.array_equal(sample["image"].permute(1, 2, 0), stored(record["file_name"]))


def test_train_ids_of_cityscapes_are_derived_as_published(cityscapes):
    (published,) = cityscapes.glob("gtFine/val/*/*_labelTrainIds.png")
    expected = stored(published)
    published.unlink()
    text = run(f"python datasets/prepare_cityscapes.py --cityscapes {cityscapes}", cityscapes.parent)
    derived = stored(published)
    # The sample's files were reduced to 256 x 128 one by one: they disagree on 77 pixels, all on borders.
    assert "wrote 1 masks" in text and np.mean(derived != expected) < 0.003
    assert set(np.unique(derived)) == set(np.unique(expected))
