"""What the records of boxes say of their images, however their files do."""

import os

from revisit.data.images.reader import read_size


def size_of(record: dict) -> tuple[int, int]:
    """Height and width of a record's image, px, from its file where the record does not have them."""
    size = record if "height" in record and "width" in record else read_size(record["file_name"])
    return size["height"], size["width"]


def with_whole_name(record: dict) -> dict[str, str]:
    """The ``file_name`` of a record's image, as it is found from any folder."""
    return {"file_name": os.path.abspath(record["file_name"])}
