from __future__ import annotations

import json

import cv2
import numpy as np
from tiny import tiny_config, tiny_model

from revisit.evaluation.features import extract_features
from revisit.viz.curves import plot_curves, read_metrics
from revisit.viz.neighbor_gallery import neighbor_gallery

TEST = ("DATASETS.TEST", ("toy_objects_train",), "KNN_EVAL.BANK", "toy_objects_train", "KNN_EVAL.IMAGE_SIZE", 48)


def test_the_gallery_finds_an_image_itself_first_and_frames_it_green(toy_datasets, tmp_path):
    """The queries are taken from the bank, so each one's nearest neighbour is itself."""
    features = extract_features(tiny_model(), "toy_objects_train", 48, 0)
    neighbor_gallery(tiny_config(*TEST), features, features, tmp_path / "g.png", num_queries=3, num_neighbors=2)
    picture = cv2.imread(str(tmp_path / "g.png"))
    assert picture.shape == (3 * 100, 3 * 100 + 12, 3)
    for row in range(3):
        query, nearest = picture[row * 100 + 4 : row * 100 + 92, 4:92], picture[row * 100 + 4 : row * 100 + 92, 116:204]
        assert np.array_equal(query, nearest)
        assert picture[row * 100, 112].tolist() == [60, 160, 40]  # BGR green


def test_a_gallery_that_cannot_be_written_is_said_and_ends_nothing(toy_datasets, tmp_path, caplog):
    features = extract_features(tiny_model(), "toy_objects_train", 48, 0)
    neighbor_gallery(tiny_config(*TEST), features, features, tmp_path / "nowhere/g.png", num_queries=1)
    assert "nowhere/g.png cannot be written" in caplog.text


def test_metrics_skip_a_line_that_a_killed_run_left_torn(tmp_path):
    lines = [json.dumps({"iteration": i, "loss_inst": 5.0 - i}) for i in range(3)]
    (tmp_path / "metrics.json").write_text("\n".join(lines) + '\n{"iteration": 3, "loss')
    assert read_metrics(tmp_path / "metrics.json") == {"loss_inst": [(0, 5.0), (1, 4.0), (2, 3.0)]}


def test_iterations_that_a_resumed_run_made_again_count_once(tmp_path):
    lines = [json.dumps({"iteration": i, "loss_inst": value}) for i, value in ((0, 5), (1, 4), (2, 3), (1, 4.5))]
    (tmp_path / "metrics.json").write_text("\n".join(lines))
    assert read_metrics(tmp_path / "metrics.json") == {"loss_inst": [(0, 5), (1, 4.5), (2, 3)]}


def test_curves_are_drawn_from_what_there_is(tmp_path):
    (tmp_path / "metrics.json").write_text(json.dumps({"iteration": 0, "loss_inst": 5.0, "knn_top1": 12.0}))
    plot_curves(tmp_path / "metrics.json", tmp_path / "curves.png")
    (tmp_path / "metrics.json").write_text(json.dumps({"iteration": 0, "something_else": 1.0}))
    plot_curves(tmp_path / "metrics.json", tmp_path / "empty.png")
    assert not np.array_equal(cv2.imread(str(tmp_path / "curves.png")), cv2.imread(str(tmp_path / "empty.png")))
    assert cv2.imread(str(tmp_path / "curves.png")).shape[1] == 1540
