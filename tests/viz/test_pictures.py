"""The gallery of neighbours, and curves from metrics.json."""

import json

import cv2
import numpy as np
import pytest
from tiny import tiny_config, tiny_model

from revisit.evaluation.features import Features, extract_features
from revisit.viz import neighbor_gallery as gallery
from revisit.viz.curves import plot_curves, read_metrics

TEST = ("DATASETS.TEST", ("toy_objects_train",), "KNN_EVAL.BANK", "toy_objects_train", "KNN_EVAL.IMAGE_SIZE", 48)


@pytest.fixture
def features(toy_datasets) -> Features:
    return extract_features(tiny_model(), "toy_objects_train", 48, 0)


def test_the_gallery_finds_an_image_itself_first_and_frames_labels(features, tmp_path, monkeypatch):
    """The queries are taken from the bank, so each one's nearest neighbour is itself."""
    rows = []
    monkeypatch.setattr(gallery, "save_sheet", lambda path, found, *texts, **more: rows.extend(found))
    gallery.neighbor_gallery(tiny_config(*TEST), features, features, tmp_path, num_queries=3, num_neighbors=4)
    assert [len(row.tiles) for row in rows] == [5] * 3
    for row, query in zip(rows, np.linspace(0, len(features.rows) - 1, 3).astype(int), strict=True):
        first, nearest, *_ = row.tiles
        assert np.array_equal(first[4:-4, 4:-4], nearest[4:-4, 4:-4])
        order = (features.rows @ features.rows[query]).argsort(descending=True)[:4]
        frames = [gallery.GREEN if features.labels[n] == features.labels[query] else gallery.RED for n in order]
        assert [tuple(tile[0, 0].tolist()) for tile in row.tiles] == [(0, 0, 0), *frames]


def test_a_gallery_that_cannot_be_written_is_logged_and_ends_nothing(features, tmp_path, caplog):
    gallery.neighbor_gallery(tiny_config(*TEST), features, features, tmp_path / "nowhere/g.png", num_queries=1)
    assert "nowhere/g.png cannot be written" in caplog.text
    (tmp_path / "nowhere").mkdir()
    gallery.neighbor_gallery(tiny_config(*TEST), features, features, tmp_path / "nowhere/g.png", num_queries=1)
    assert cv2.imread(str(tmp_path / "nowhere/g.png")).std() > 10


@pytest.mark.parametrize("torn", ['{"iteration": 3, "loss', '{"iteration": 1, "loss_inst": 4.0}'])
def test_metrics_skip_a_torn_line_and_count_a_repeated_iteration_once(tmp_path, torn):
    lines = [json.dumps({"iteration": i, "loss_inst": value}) for i, value in ((0, 5.0), (1, 4.5), (2, 3.0))]
    (tmp_path / "metrics.json").write_text("\n".join([*lines, torn]))
    expected = 4.0 if torn.endswith("}") else 4.5
    assert read_metrics(tmp_path / "metrics.json") == {"loss_inst": [(0, 5.0), (1, expected), (2, 3.0)]}


def test_curves_are_drawn_from_what_there_is(tmp_path):
    pictures = []
    for values in ({"loss_inst": 5.0, "knn_top1": 12.0}, {"something_else": 1.0}):
        (tmp_path / "metrics.json").write_text(json.dumps({"iteration": 0, **values}))
        plot_curves(tmp_path / "metrics.json", tmp_path / "curves.png")
        pictures.append(cv2.imread(str(tmp_path / "curves.png")))
    assert pictures[0].shape == pictures[1].shape and not np.array_equal(*pictures)
