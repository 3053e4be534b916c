"""The project's keys, their units, and the protocol's values."""

from detectron2.config import CfgNode

METHODS = ("propagate", "copy")


def add_label_propagation_config(cfg: CfgNode) -> None:
    """Add LABEL_PROPAGATION to a config, in place."""
    cfg.LABEL_PROPAGATION = CfgNode()
    options = cfg.LABEL_PROPAGATION
    options.DATA = "DAVIS"  # a tree in DAVIS's layout, seen from $DETECTRON2_DATASETS
    options.RESOLUTION = "480p"  # the folder below JPEGImages and Annotations
    options.SPLIT = "val"  # ImageSets/2017/SPLIT.txt; names the result files too
    options.SEQUENCES = ()  # these alone, and no split file is read
    options.METHOD = "propagate"  # copy: the first mask for every frame, what features have to beat
    options.NUM_CONTEXT = 20  # previous frames that a frame looks at, beside the first
    options.RADIUS = 12.0  # cells of the feature map: how far a cell of these frames may be, exclusive
    options.TOP_K = 10  # cells that vote, of all these frames together
    options.TEMPERATURE = 0.05  # votes weigh exp(cosine / temperature)
    options.FRAMES_PER_SECOND = 10  # of the overlay pictures
