"""What the projects on frozen features refuse, in one table: a line that names the key, file or data set."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from trees import refusal

from projects.FrozenEvaluations import davis

SEVERAL = "DATASETS.TRAIN \"('toy_voc_labels_trainval',)\" DATASETS.TEST \"('toy_voc_labels_test',)\""
REFUSED = {
    "FrozenEvaluations/linear": [
        ("LINEAR.METHOD svm", "LINEAR.METHOD svm"),
        (f"LINEAR.METHOD knn {SEVERAL}", "LINEAR.METHOD knn"),
        ("LINEAR.METHOD sgd SOLVER.EPOCHS 0", "SOLVER.EPOCHS"),
        ("LINEAR.LAMBDAS (2.0,1.0,3)", "LINEAR.LAMBDAS"),
        ("LINEAR.LAMBDAS (1.0,2.0,0.5)", "LINEAR.LAMBDAS"),
        ("INPUT.FORMAT BGR", "INPUT.FORMAT"),
        ("MODEL.RESNETS.OUT_FEATURES \"['res4','res5']\"", "OUT_FEATURES"),
        ("DATASETS.TRAIN \"('toy_scenes_train',)\"", "toy_scenes_train"),
        ("DATASETS.TEST \"('toy_voc_labels_test',)\"", "toy_voc_labels_test"),
    ],
    "FrozenEvaluations/propagation": [
        ("LABEL_PROPAGATION.DATA nowhere", "nowhere"),
        ("LABEL_PROPAGATION.SPLIT test", "2017/test.txt"),
    ],
    "FrozenEvaluations/retrieval": [
        ("SEGMENT_RETRIEVAL.FEATURES oracle", "SEGMENT_RETRIEVAL.FEATURES"),
        ("SEGMENT_RETRIEVAL.SUBSET \"('horse',)\"", "SEGMENT_RETRIEVAL.SUBSET"),
        ("DATASETS.TEST \"('toy_nyud_segmentation_val',)\"", "toy_nyud_segmentation_val"),
        ("DATASETS.TRAIN \"('toy_objects_train',)\"", "toy_objects_train"),
        ("DATASETS.TRAIN \"('voc_2012_sem_seg_train_aug',)\"", "voc_2012_sem_seg_train_aug"),
    ],
    "Paper/crops": [("CROP_STUDY.FRAMEWORKS \"('BYOL',)\"", "CROP_STUDY.FRAMEWORKS")],
    "FrozenEvaluations/cams": [
        ("", "classifier.pth"),
        ("CAM.CLASSIFIER {folder}/torn.pth", "torn.pth"),
        ("CAM.CLASSIFIER {folder}/wide.pth", "wide.pth"),
        ("CAM.CLASSIFIER {folder}/short.pth", "short.pth"),
        ("CAM.OTHER_WEIGHTS x.pth", "CAM.OTHER_CLASSIFIER"),
        ("CAM.CLASSIFIER {folder}/right.pth CAM.OTHER_WEIGHTS x.pth CAM.OTHER_CLASSIFIER {folder}/right.pth", "x.pth"),
        ("DATASETS.TEST \"('toy_scenes_train',)\"", "toy_scenes_train"),
    ],
}


@pytest.mark.parametrize(
    ("project", "options", "named"), [(project, *case) for project, cases in REFUSED.items() for case in cases]
)
def test_bad_options_are_refused_by_name(project, options, named, tmp_path, run_project):
    (tmp_path / "torn.pth").write_bytes(b"torn")
    for name, shape in (("right", (10, 64)), ("wide", (10, 9)), ("short", (3, 64))):
        content = {"weight": torch.zeros(shape), "bias": torch.zeros(shape[0]), "transform": "square", "image_size": 64}
        torch.save(content, tmp_path / f"{name}.pth")
    assert named in refusal(run_project, project, options.format(folder=tmp_path))


def test_weights_that_do_not_fit_and_places_that_are_none_are_refused(run_project, pretrained, tmp_path):
    assert "nowhere.pth" in refusal(run_project, "FrozenEvaluations/retrieval", "", "nowhere.pth")
    wide = "MODEL.RESNETS.STEM_OUT_CHANNELS 16"
    line = refusal(run_project, "FrozenEvaluations/propagation", wide, pretrained / "backbone.pth")
    assert "MODEL.RESNETS.STEM_OUT_CHANNELS is 16" in line
    (tmp_path / "file").touch()
    assert "file/output" in refusal(run_project, "Paper/crops", "", None, tmp_path / "file/output")


def save(path, ids):
    Image.fromarray(ids).save(path)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda masks: (masks / "00007.png").unlink(), "00007"),
        (lambda masks: save(masks / "00003.png", np.ones((64, 60), np.uint8)), "00003.png is 60 x 64"),
        (lambda masks: save(masks / "00000.png", np.zeros((64, 64), np.uint8)), "00000.png"),
        (lambda masks: save(masks / "00000.png", 3 * np.eye(64, dtype=np.uint8)), r"00000.png .*\[3\]"),
        (lambda masks: save(masks / "00004.png", np.full((64, 64), 300, np.uint16)), "00004.png has ids 300"),
        (lambda masks: (masks / "00005.png").write_bytes(b"torn"), "00005.png"),
    ],
)
def test_a_bad_mask_of_a_video_is_named(spoil, named, videos):
    spoil(videos / "Annotations/480p/toy-01")

    def read() -> None:
        for sequence in davis.find_sequences(videos, "480p", "val"):
            davis.read_masks(sequence, (64, 64))

    assert re.search(named, refusal(read))
