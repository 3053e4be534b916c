"""The names of data sets whose labels are of whole images, in the layouts of their downloads."""

from functools import partial

from projects.FrozenEvaluations import classification_datasets as whole
from revisit.data.sources.catalog import register_source
from revisit.data.sources.named_sets import DataSource, by_split
from revisit.data.sources.voc_boxes import VOC_CLASSES

CIFAR10 = {
    f"cifar10_{split}": DataSource(
        (f"cifar10/{split}", "cifar-10-batches-py"),
        partial(whole.load_cifar10, split=split),
        size,
        whole.CIFAR10_CLASSES,
    )
    for split, size in (("train", 50000), ("test", 10000))
}
VOC_2007_SIZES = {"train": 2501, "val": 2510, "trainval": 5011, "test": 4952}

SOURCES: dict[str, DataSource] = {
    **CIFAR10,
    **by_split("food101", "food-101", whole.load_food101, whole.food101_classes, train=75750, test=25250),
    **by_split("cars", "stanford_cars", whole.load_cars, whole.cars_classes, train=8144, test=8041),
    **by_split("pets", "oxford-iiit-pet", whole.load_pets, whole.pets_classes, trainval=3680, test=3669),
    **by_split("sun397", "SUN397", whole.load_sun397, whole.sun397_classes, train=19850, test=19850),
    **by_split("voc_2007_labels", "VOC2007", whole.load_voc_labels, VOC_CLASSES, **VOC_2007_SIZES),
}

for _name, _source in SOURCES.items():
    register_source(_name, _source)
