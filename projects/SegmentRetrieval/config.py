"""The project's keys, their units, and the protocol's values."""

from detectron2.config import CfgNode

REGIONS = ("kmeans", "truth")
FEATURES = ("network", "oracle")


def add_segment_retrieval_config(cfg: CfgNode) -> None:
    """Add SEGMENT_RETRIEVAL to a config, in place. The labelled images are DATASETS.TRAIN, the others DATASETS.TEST."""
    cfg.SEGMENT_RETRIEVAL = CfgNode()
    options = cfg.SEGMENT_RETRIEVAL
    options.IMAGE_SIZE = 512  # px, both sides; the aspect ratio is given up
    options.NUM_REGIONS = 15  # K of K-means, per image
    options.NORMALIZE = True  # unit features before they are clustered and averaged
    options.REGIONS = "kmeans"  # truth: the classes of the mask
    options.FEATURES = "network"  # oracle: a cell's true class, with REGIONS truth, which must give 100
    options.SHUFFLE_LABELS = False  # give each labelled region another one's label: what chance reaches
    # Beside all classes, these alone: the others are void, and the mean leaves the background out.
    options.SUBSET = ("aeroplane", "bottle", "bus", "car", "cat", "cow", "person")
    options.GALLERY_QUERIES = 8  # rows of gallery.png
    options.GALLERY_NEIGHBORS = 5  # nearest labelled regions in each
