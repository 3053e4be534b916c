"""``scans:FOLDER``: every file of a folder whose windows can be read, such as JPEG 2000 and whole slides."""

from pathlib import Path

from projects.Tiles.slides import SLIDES
from revisit.data.images.opening import SUFFIXES
from revisit.data.sources.label_files import files_with_suffix
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout
from revisit.data.sources.records import Records
from revisit.errors import expect

_KINDS = SUFFIXES | SLIDES | {".jp2", ".j2k", ".npy"}


def load_scans(folder: Path) -> Records:
    """All below a folder, sorted. Raises UserError where there is none."""
    files = files_with_suffix(folder, *_KINDS)
    expect(files, f"no scans in {folder}, files ending in {', '.join(sorted(_KINDS))}")
    return [{"file_name": str(file)} for file in files]


LABEL_LAYOUT_REGISTRY.register(LabelLayout("scans", "FOLDER", load_scans))
