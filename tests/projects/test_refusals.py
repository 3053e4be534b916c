"""Options that mean nothing, weights and classifiers that do not fit: what the projects on frozen features say."""

import re

import pytest
import torch

from revisit.errors import UserError

SEVERAL = "DATASETS.TRAIN \"('toy_voc_labels_trainval',)\" DATASETS.TEST \"('toy_voc_labels_test',)\""
REFUSED = {
    "LinearClassification": [
        ("LINEAR.METHOD guess", "LINEAR.METHOD is 'guess': expected one of logistic, svm, knn, sgd"),
        ("LINEAR.METHOD svm", "LINEAR.METHOD svm is for images that show several classes"),
        (f"LINEAR.METHOD knn {SEVERAL}", "LINEAR.METHOD knn is for images of one class each"),
        ("LINEAR.METHOD sgd SOLVER.EPOCHS 0", "SOLVER.EPOCHS is 0: LINEAR.METHOD sgd expects at least 1"),
        ("LINEAR.LAMBDAS (0.0,1.0,3)", "expected 3 values, each a number above 0"),
        ("LINEAR.LAMBDAS (2.0,1.0,3)", "expected 0 < lowest <= highest"),
        ("LINEAR.LAMBDAS (1.0,)", "expected 3 values"),
        ("LINEAR.MAX_ITER -1", "LINEAR.MAX_ITER is -1: expected a whole number of at least 1"),
        ("INPUT.FORMAT BGR", "INPUT.FORMAT is BGR: frozen features are of RGB images"),
        ("MODEL.RESNETS.OUT_FEATURES \"['res4','res5']\"", "expected one map, such as res5"),
        ("DATASETS.TRAIN \"('toy_scenes_train',)\"", "data set 'toy_scenes_train' has no labels"),
        ("DATASETS.TEST \"('toy_voc_labels_test',)\"", "have different classes"),
    ],
    "LabelPropagation": [
        ("LABEL_PROPAGATION.METHOD guess", "LABEL_PROPAGATION.METHOD is 'guess': expected one of propagate, copy"),
        ("LABEL_PROPAGATION.TOP_K 0", "LABEL_PROPAGATION.TOP_K is 0: expected a whole number"),
        ("LABEL_PROPAGATION.TEMPERATURE 0.0", "expected a number above 0"),
        ("LABEL_PROPAGATION.DATA nowhere", "no DAVIS tree at"),
        ("LABEL_PROPAGATION.RADIUS_ 3", "did you mean"),
        ("LABEL_PROPAGATION.SPLIT test", "2017/test.txt not found"),
    ],
    "SegmentRetrieval": [
        ("SEGMENT_RETRIEVAL.REGIONS guess", "SEGMENT_RETRIEVAL.REGIONS is 'guess': expected one of kmeans, truth"),
        ("SEGMENT_RETRIEVAL.FEATURES oracle", "set SEGMENT_RETRIEVAL.REGIONS truth"),
        ("SEGMENT_RETRIEVAL.NUM_REGIONS 300", "expected a whole number from 1 to 254"),
        ("SEGMENT_RETRIEVAL.SUBSET \"('horse',)\"", "SEGMENT_RETRIEVAL.SUBSET ('horse',): expected some of background"),
        ("DATASETS.TEST \"('toy_nyud_segmentation_val',)\"", "have different classes"),
        ("DATASETS.TRAIN \"('toy_objects_train',)\"", "data set 'toy_objects_train' has no masks"),
        ("DATASETS.TRAIN \"('voc_2012_sem_seg_train_aug',)\"", "'voc_2012_sem_seg_train_aug' not found: looked for"),
    ],
    "CropStudy": [
        ('VIEWS.LARGE_SCALE "(0.0, 1.0)"', "expected 2 values, in rising order, each a number above 0, and at most 1"),
        ('CROP_STUDY.MAX_IOUS "(1.5,)"', "expected a list, each a number"),
        ("CROP_STUDY.NUM_PAIRS 0", "CROP_STUDY.NUM_PAIRS is 0: expected a whole number"),
        ('CROP_STUDY.IMAGE_SIZE "(480,)"', "expected 2 values, each a whole number from 1 to 16384 px"),
    ],
    "ClassActivationMaps": [
        ("", "classifier (none) not found: projects/LinearClassification writes classifier.pth"),
        ("CAM.CLASSIFIER {folder}/torn.pth", "torn.pth is no classifier"),
        ("CAM.CLASSIFIER {folder}/wide.pth", "is for 9 channels, but the network has 64"),
        ("CAM.CLASSIFIER {folder}/short.pth", "has 3 classes, toy_objects_heldout has 10 or more"),
        ("CAM.OTHER_WEIGHTS x.pth", "needs both CAM.OTHER_WEIGHTS and CAM.OTHER_CLASSIFIER"),
        ("CAM.OTHER_WEIGHTS x.pth CAM.OTHER_CLASSIFIER x.pth", "CAM.OTHER_WEIGHTS x.pth not found"),
        ("DATASETS.TEST \"('toy_scenes_train',)\"", "has no class for each image"),
    ],
}


@pytest.mark.parametrize(
    ("project", "options", "expected"), [(project, *case) for project, cases in REFUSED.items() for case in cases]
)
def test_bad_options_are_refused(project, options, expected, tmp_path, run_project):
    (tmp_path / "torn.pth").write_bytes(b"torn")
    for name, shape in (("wide", (10, 9)), ("short", (3, 64))):
        content = {"weight": torch.zeros(shape), "bias": torch.zeros(shape[0]), "transform": "square", "image_size": 64}
        torch.save(content, tmp_path / f"{name}.pth")
    with pytest.raises(UserError, match=re.escape(expected)):
        run_project(project, options.format(folder=tmp_path))


def test_weights_that_are_not_there_are_refused(run_project):
    with pytest.raises(UserError, match="--weights nowhere.pth not found: expected a file of weights, or random"):
        run_project("SegmentRetrieval", weights="nowhere.pth")


def test_a_file_for_the_output_folder_is_refused(run_project, tmp_path):
    (tmp_path / "output").touch()
    with pytest.raises(UserError, match="output' cannot be a folder"):
        run_project("CropStudy")
