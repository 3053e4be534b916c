"""The project's keys."""

from detectron2.config import CfgNode


def add_cam_config(cfg: CfgNode) -> None:
    """Add CAM to a config, in place. The images are DATASETS.TEST, each with one class or several."""
    cfg.CAM = CfgNode()
    options = cfg.CAM
    options.CLASSIFIER = ""  # classifier.pth of projects/LinearClassification, made with the same --weights
    # A second network of the same architecture and its classifier, for a comparison side by side.
    options.OTHER_WEIGHTS = ""
    options.OTHER_CLASSIFIER = ""
    options.NUM_IMAGES = 10  # rows of cams.png, spread over the data set
