"""The project's keys, their units, and the protocols' values."""

from detectron2.config import CfgNode


def add_linear_config(cfg: CfgNode) -> None:
    """Add LINEAR to a config, in place. DATASETS.TRAIN is for training, DATASETS.TEST for the score."""
    cfg.LINEAR = CfgNode()
    options = cfg.LINEAR
    options.METHOD = "logistic"  # logistic | svm | knn on features | sgd through the frozen network
    options.IMAGE_SIZE = 224  # px
    options.TRANSFORM = "square"  # the whole image, whatever its shape; center_crop: short side to 256/224, then a crop
    options.CACHE = ""  # folder of features; "" is OUTPUT_DIR/features
    # logistic: lambda is chosen on this data set, or on a seeded share of DATASETS.TRAIN, and fitted to both again.
    options.VALIDATION = ""
    options.VALIDATION_SHARE = 0.2
    options.LAMBDAS = (1e-5, 1e5, 45)  # lowest, highest and number, log-spaced; scikit-learn's C is 1 / lambda
    options.MAX_ITER = 1000  # of L-BFGS, for each lambda
    options.COST = 0.5  # svm: C
    options.DIFFICULT_IS_ABSENT = True  # VOC: a class of difficult objects alone is absent; False leaves the image out
    # knn: KNN_EVAL.NUM_NEIGHBORS and KNN_EVAL.TEMPERATURE. sgd: SOLVER.BASE_LR, EPOCHS, STEP_EPOCHS and so on.
