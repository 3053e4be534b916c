"""The project's keys and their units; VIEWS says how crops are drawn, as in pretraining."""

from detectron2.config import CfgNode


def add_crop_study_config(cfg: CfgNode) -> None:
    """Add CROP_STUDY to a config, in place."""
    cfg.CROP_STUDY = CfgNode()
    options = cfg.CROP_STUDY
    options.IMAGE_SIZE = (480, 640)  # height and width of the image that crops are drawn from, px
    options.NUM_PAIRS = 20000  # pairs of crops for each limit
    options.MAX_IOUS = (1.0, 0.6, 0.4, 0.2, 0.0)  # limits on the IoU of a pair; 1 is none
    # Folders of pretraining runs, each with config.yaml (its VIEWS.MAX_IOU) and metrics.json.
    options.RUNS = ()
    # Folders with the evaluation.json of each run, in the order of RUNS; () means RUNS themselves.
    options.EVALUATIONS = ()
    options.SCORE = "knn_top1"  # a key of evaluation.json; a dot goes a level down: bbox.AP50
