"""What images are called by: their files. Those in memory, and those in shards, have none of their own."""

from revisit.data.sources.records import Records
from revisit.errors import expect

EXPECTED = "a data set with a file for each image"


def file_names(records: Records, named: str, expected: str = EXPECTED) -> list[str]:
    """The file of each image, as the data set ``named`` so has it. Raises UserError for images without one."""
    in_memory = any("file_name" not in record for record in records)
    in_shards = any("offset" in record for record in records)
    place = "in memory" if in_memory else "in shards"
    expect(not (in_memory or in_shards), f"{named}: images {place} have no names: expected {expected}")
    return [str(record["file_name"]) for record in records]
