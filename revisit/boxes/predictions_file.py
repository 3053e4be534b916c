"""What detectors have found, as files: COCO's results, and next to them what the ids of images and classes mean."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from revisit.boxes.boxes import Boxes
from revisit.data.sources.records import PARTS, Records, changes, fingerprint
from revisit.errors import UserError, expect, first_line
from revisit.files import is_url, read_json

RESULTS, IMAGES = "predictions.json", "images.json"  # of tools/predict.py
# What an evaluation writes below OUTPUT_DIR: boxes in COCO's result format, and what their numbers mean.
PREDICTIONS, OF_PREDICTIONS = "inference/coco_instances_results.json", "inference/data_set.json"


def read_results(path: Path, images: Iterable[Any], classes: Iterable[Any]) -> list[Boxes]:
    """Of each of ``images``, by their ids, what COCO's results say; classes are places among the ids ``classes``.

    Raises UserError for a file that is no JSON, or has other images; KeyError, TypeError or ValueError for what is none
    of COCO's results.
    """
    numbers = {str(identity): number for number, identity in enumerate(classes)}  # keys of JSON are texts
    of_image = defaultdict(list)
    for result in read_json(path):
        of_image[result["image_id"]].append({**result, "category_id": numbers[str(result["category_id"])]})
    found = [Boxes.of_results(of_image.pop(image, ())) for image in images]
    gone = f"{len(of_image)} of those that were predicted for are gone"
    expect(not of_image, f"the data set has other images by now: {gone}")
    return found


@contextmanager
def refused(named: str, expected: str) -> Iterator[None]:
    """A block that reads predictions. Raises UserError, with what was ``named`` and ``expected``, for other files."""
    try:
        yield
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{named} ({first_line(error)}): {expected}") from error


def read_predictions(path: Path) -> tuple[list[tuple[str, Boxes]], list[str]]:
    """Of a predictions.json and the images.json next to it: files with what is in them, and names of classes. Raises as
    ``read_results``."""
    about = read_json(path.with_name(IMAGES))
    files = {image["id"]: image["file_name"] for image in about["images"]}
    names = {category["id"]: category["name"] for category in about["categories"]}
    return list(zip(files.values(), read_results(path, files, names), strict=True)), list(names.values())


class EvaluatedSet(NamedTuple):
    """What an evaluation says of the data set that it has scored."""

    name: str
    classes: dict[str, str]  # names by ids as texts, in the network's order
    images: list[dict]  # their ``fingerprint``; [] of an earlier version, which wrote none

    def changes(self, records: Records, *, labels: bool = True) -> list[str]:
        """What differs in records of the data set from those that were scored."""
        return changes(self.images, fingerprint(records, labels=labels), times=False) if self.images else []

    def changed_labels(self, records: Records) -> bool:
        """Whether the labels are others than those that were scored against.

        Raises UserError where the images are others, so that ids may mean others of them.
        """
        changed = self.changes(records)
        others = [part for part in changed if part != PARTS["labels"]]
        expect(not others, f"the data set has other images by now, by {', '.join(others)}: evaluate again")
        return bool(changed)


def expect_on_disk(name: str) -> None:
    """Raises UserError where a file, and no user, names a data set at a URL."""
    expect(not is_url(name), f"they are of {name}, and nothing is fetched for a file: expected a copy on this machine")


def evaluated_set(file: Path) -> EvaluatedSet:
    """What an OF_PREDICTIONS says. Raises UserError for a data set at a URL; others as ``read_results``."""
    about = read_json(file)
    name = about["data_set"]
    expect_on_disk(name)
    return EvaluatedSet(name, dict(about["classes"]), about.get("images", []))
