"""Whether boxes can be scored against a data set, as its evaluator will read it."""

import logging
from pathlib import Path

from revisit.data.sources.split_files import read_split
from revisit.errors import expect, first_few, translated

from detectron2.data import MetadataCatalog
from detectron2.evaluation.pascal_voc_evaluation import parse_rec

logger = logging.getLogger(__name__)


def check_truth(name: str) -> None:
    """Raise UserError for a data set that boxes cannot be scored against; warn of a year that nothing tells."""
    metadata = MetadataCatalog.get(name)
    whole = metadata.get("subset_of")
    expect(not whole, f"data set {name!r}: boxes are scored against whole files; expected {whole}")
    if metadata.get("evaluator_type") != "pascal_voc":
        return
    check_voc_truth(name, Path(metadata.dirname), metadata.split, metadata.thing_classes)
    if not metadata.get("year_is_known", True):
        logger.warning(
            f"data set {name!r}: neither annotations (<folder>VOC2012</folder>) nor path name one year, so AP is "
            "taken at 11 points of recall, as until 2009"
        )


def check_voc_truth(name: str, folder: Path, split: str, classes: list[str]) -> None:
    """Read what Detectron2's evaluator of Pascal VOC will read, as it does, which may be hours later.

    Raises:
        UserError: a split with a byte order mark or empty lines; an object without ``pose``, ``truncated`` or
            ``difficult``, with fractions of a pixel, or with blanks around its class.
    """
    split_file = folder / "ImageSets" / "Main" / f"{split}.txt"
    text = split_file.read_text()
    expect(
        not text.startswith("\ufeff"),
        f"{split_file} begins with a byte order mark, which the evaluator takes for a part of the first name: save it "
        "as UTF-8 without one",
    )
    names = [line.strip() for line in text.splitlines()]
    expect(
        names == read_split(split_file),
        f"{split_file} has empty lines, or slashes before names, which the evaluator takes for names: expected the "
        "name of an image in each line",
    )
    for name_of_image in names:
        file = folder / "Annotations" / f"{name_of_image}.xml"
        with translated(
            f"data set {name!r}, scored against {file}, which needs name, pose, truncated, difficult (0 or 1) and a "
            "bndbox in whole pixels of every object",
            content=True,
        ):
            labels = {thing["name"] for thing in parse_rec(str(file))}
            if not labels <= set(classes):
                raise ValueError(f"class {first_few(sorted(labels - set(classes)))!r}")
