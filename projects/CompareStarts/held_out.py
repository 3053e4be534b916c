"""Labelled images to choose by, which are neither learned from nor tested on: ``held_out:NAME:FEWER:MORE:SEED``.

They are those of subset:MORE:SEED:NAME that subset:FEWER:SEED:NAME does not have. Boxes are scored against these
records, as COCO's evaluator does it, whatever file they are from.
"""

from typing import TYPE_CHECKING, NamedTuple

from revisit.data.sources.catalog import get_records, register
from revisit.data.sources.class_names import class_metadata
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.subsets import nested_subset
from revisit.errors import expect

from detectron2.data import MetadataCatalog

if TYPE_CHECKING:  # every command registers the layout, and only a comparison needs what compares
    from projects.CompareStarts.comparison import Task

KIND = "held_out"
SHARE = 0.2  # of the labelled images
LEAST = 3  # images, where at least as many are left to learn from
OF_FILES = ("json_file", "image_root", "dirname", "split", "year", "year_is_known", "name", "expected_images")
EVALUATORS = {"pascal_voc": "coco"}  # that read whole files, and the one that scores records instead


def load_held_out(name: str, fewer: str, more: str, seed: str) -> LabelledSet:
    """See the module. Raises UserError where FEWER, MORE and SEED are no numbers in this order of size."""
    texts = (fewer, more, seed)
    are_numbers = all(text.isascii() and text.isdecimal() for text in texts)
    problem = f"data set '{KIND}:{name}:{fewer}:{more}:{seed}'"
    expected = "expected numbers of images FEWER below MORE, and a seed"
    expect(are_numbers and int(fewer) < int(more), f"{problem}: {expected}")
    records = get_records(name)
    learned = nested_subset(records, int(fewer), int(seed), name)
    labelled = nested_subset(records, int(more), int(seed), name)
    of_learned = set(map(id, learned))
    others = [record for record in labelled if id(record) not in of_learned]
    return LabelledSet(others, class_metadata(name))


def held_out_metadata(name: str, *_: str) -> dict:
    """Detectron2's, of the whole data set, without what names its files."""
    register(name)
    whole = vars(MetadataCatalog.get(name))
    kept = {}
    for key, value in whole.items():
        if key not in OF_FILES and value is not None:
            kept[key] = value
    kind = whole.get("evaluator_type")
    kept["evaluator_type"] = EVALUATORS.get(kind, kind)
    return kept


TEXTS = ("NAME", "FEWER", "MORE", "SEED")
LABEL_LAYOUT_REGISTRY.register(LabelLayout(KIND, ":".join(TEXTS), load_held_out, held_out_metadata, TEXTS))


class HeldOut(NamedTuple):
    """What rates and lengths are chosen by: a share of the labelled images, or with a ``name`` this data set."""

    share: float = SHARE
    name: str = ""

    def count(self, labels: int) -> int:
        """How many of so many labelled images are held out; 0 where a data set is named."""
        if self.name:
            return 0
        return min(max(round(self.share * labels), LEAST), labels // 2)

    def data_set(self, task: "Task", labels: int, seed: int) -> str:
        """The name of the held-out images, the same for all starts."""
        learned = labels - self.count(labels)
        return self.name or f"{KIND}:{task.data}:{learned}:{labels}:{seed}"


def read_held_out(text: str) -> HeldOut:
    """A share, such as 0.2, or the name of a data set. Raises UserError for a share that is none."""
    try:
        share = float(text)
    except ValueError:
        return HeldOut(name=text)
    expect(0 < share <= 0.5, f"--held-out {text}: expected a share above 0 and up to 0.5, or the name of a data set")
    return HeldOut(share)
