"""Segment retrieval: its parts by hand, its bounds (100 with an oracle, chance with shuffled labels), its command."""

import cv2
import numpy as np
import pytest
import torch
from torch.nn import functional as F
from trees import refused

from projects.FrozenEvaluations import retrieval as segments
from projects.Pictures.tiles import TILE
from revisit.data.sources.labels import VOID
from revisit.evaluation.pixel_evaluators import confusion_matrix

from detectron2.config import CfgNode

SMALL = "SEGMENT_RETRIEVAL.IMAGE_SIZE 64"


def test_clusters_are_the_parts_that_look_alike():
    features = torch.zeros(4, 6, 8)
    features[0, :3], features[1, 3:, :4], features[2, 3:, 4:] = 5, 1, 2
    ids, descriptors = segments.cluster(F.normalize(features, dim=0), num_regions=3, seed=0)
    parts = [ids[:3], ids[3:, :4], ids[3:, 4:]]
    assert [len(np.unique(part)) for part in parts] == [1, 1, 1] and len(np.unique(ids)) == 3
    assert torch.allclose(descriptors[[int(part[0, 0]) for part in parts]], torch.eye(4)[:3])


def test_of_several_starts_the_tightest_clusters_count():
    features = torch.randn(2, 12, 12, generator=torch.Generator().manual_seed(0))
    cells = features.flatten(1).T.double().numpy()
    spreads = []
    for starts in (1, 20):
        ids = segments.cluster(features, 9, seed=0, num_starts=starts).ids.ravel()
        spreads.append(sum(((cells[ids == n] - cells[ids == n].mean(axis=0)) ** 2).sum() for n in range(9)))
    assert spreads[1] < 0.99 * spreads[0]


def test_a_descriptor_is_the_unit_mean_of_its_cells():
    features = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 3, (4, 4)).astype(np.uint8))
    ids[0, 0] = VOID
    expected = [features[:, ids == n].mean(dim=1) for n in range(3)]
    assert torch.allclose(segments.describe(features, ids, 3), F.normalize(torch.stack(expected), dim=1))


def test_true_regions_are_the_classes_of_the_mask():
    truth = np.array([[3, 3, VOID], [7, 0, 0]], np.uint8)
    ids, descriptors = segments.true_regions(segments.oracle_features(truth, 8), truth)
    assert ids.tolist() == [[1, 1, VOID], [2, 0, 0]]
    assert torch.equal(descriptors, torch.eye(8)[[0, 3, 7]])


def test_the_majority_of_valid_pixels_names_a_region():
    ids = np.array([[0, 0, 0, 1], [1, 1, 2, 2]], np.uint8)
    truth = np.array([[4, 4, 2, VOID], [3, 3, VOID, VOID]], np.uint8)
    pixels = segments.count_pixels(segments.Regions(ids, torch.zeros(3, 1)), truth, 5)
    assert pixels.tolist() == [[0, 0, 1, 0, 2, 0], [0, 0, 0, 2, 0, 1], [0, 0, 0, 0, 0, 2]]
    assert segments.majority_labels(pixels[:, :-1]).tolist() == [4, 3, VOID]
    assert segments.majority_labels(segments.keep_classes(pixels, [2, 3])).tolist() == [2, 3, VOID]
    ids[0, :3] = VOID  # pixels of no region count for none
    assert segments.count_pixels(segments.Regions(ids, torch.zeros(3, 1)), truth, 5)[0].tolist() == [0] * 6


def test_miou_by_hand():
    truth = np.array([[0, 0, 1, 1], [2, 2, VOID, 1]], np.uint8)
    predicted = np.array([[0, 1, 1, 1], [2, 0, 0, VOID]], np.uint8)
    confusion = confusion_matrix(predicted, truth, 4)
    names = ["background", "a", "b", "c"]
    mean, per_class = segments.mean_iou(confusion, names, range(4))
    assert per_class == pytest.approx({"background": 100 / 3, "a": 200 / 3, "b": 50})  # c occurs nowhere
    assert mean == pytest.approx(50)
    assert segments.mean_iou(confusion, names, [1, 2])[0] == pytest.approx(175 / 3)


def described(pixels: list[list[int]], nearest: list[int]) -> segments.Described:
    """Regions with these pixels of each class, void last, that look like the classes ``nearest``."""
    places = np.zeros((len(pixels), 2), np.int64)
    return segments.Described([], [], places, torch.eye(3)[nearest], np.array(pixels))


def test_the_background_may_be_taken_for_a_class_of_the_subset():
    """Its ten pixels look like a's: half of what is called a is right."""
    names = ["background", "a", "b"]
    cfg = CfgNode({"SEGMENT_RETRIEVAL": {"SHUFFLE_LABELS": False}, "DATASETS": {"TRAIN": ("labelled",)}})
    labelled = described([[5, 0, 0, 0], [0, 5, 0, 0], [0, 0, 5, 0]], [0, 1, 2])
    queries = described([[0, 10, 0, 0], [10, 0, 0, 0], [0, 0, 10, 0]], [1, 1, 2])
    everything, subset = segments.scored_classes(names, ["a"])
    scores = [
        segments.mean_iou(segments.retrieve(cfg, labelled, queries, 3, kept), names, counted)[0]
        for kept, counted in (everything, subset)
    ]
    assert scores == pytest.approx([50, 50])  # of 0, 50 and 100; and of a alone


@pytest.mark.parametrize(("cells", "pixels"), [((2, 3), (5, 8)), ((16, 16), (375, 500)), ((3, 3), (9, 6))])
def test_an_enlarged_pixel_is_of_the_cell_that_its_centre_lies_in(cells, pixels):
    ids = np.random.default_rng(0).integers(0, 256, cells, dtype=np.uint8)
    rows, columns = (((2 * np.arange(n) + 1) * count) // (2 * n) for n, count in zip(pixels, cells, strict=True))
    np.testing.assert_array_equal(segments.enlarge(ids, pixels), ids[rows[:, None], columns])


def test_a_region_is_drawn_as_it_is_and_the_rest_dimmed():
    region = np.zeros((TILE, TILE), bool)
    region[40:80, 50:90] = True
    tile = segments.draw_region(np.full((TILE, TILE, 3), 200, np.uint8), region)
    assert (tile[42:78, 52:88] == 200).all() and (tile[:39] == int(200 * segments.DIMMED)).all()
    assert tuple(tile[40, 60]) == segments.OUTLINE


def test_an_oracle_retrieves_every_pixel_and_shuffled_labels_fall_to_chance(run_project):
    options = f"{SMALL} SEGMENT_RETRIEVAL.REGIONS truth SEGMENT_RETRIEVAL"
    _, results = run_project("FrozenEvaluations/retrieval", f"{options}.FEATURES oracle")
    assert results["mIoU_11"] == results["mIoU_5"] == 100
    assert run_project("FrozenEvaluations/retrieval", f"{options}.SHUFFLE_LABELS True")[1]["mIoU_11"] < 10


def test_test_images_that_are_labelled_ones_too_are_warned_of(run_project, caplog):
    same = "DATASETS.TEST \"('toy_voc_sem_seg_train_aug',)\" SEGMENT_RETRIEVAL.REGIONS truth"
    run_project("FrozenEvaluations/retrieval", f"{SMALL} {same} SEGMENT_RETRIEVAL.FEATURES oracle")
    assert "are in toy_voc_sem_seg_train_aug, too: each region finds itself there" in caplog.text


def test_a_backbone_names_the_regions_of_toy_scenes(run_project, pretrained):
    output, results = run_project("FrozenEvaluations/retrieval", SMALL, pretrained / "backbone.pth")
    assert 0 < results["mIoU_11"] < 100 and "K-means 15" in results["protocol"]
    picture = cv2.imread(str(output / "gallery.png"))
    assert picture.shape[0] > 8 * TILE and picture.shape[1] > 6 * TILE and picture.std() > 10


def test_images_whose_last_cells_would_lie_beyond_them_are_refused():
    segments.check_size_of_cells(512, 32)
    message = "IMAGE_SIZE 500: the map has cells of 32 px, expected a multiple of it, such as 512"
    refused(message, segments.check_size_of_cells, 500, 32)
