"""Files that are named by a URL: whatever Detectron2's PathManager fetches, by its own handlers or a user's."""

from pathlib import Path
from urllib.parse import urlsplit

from revisit.errors import UserError, first_line


def is_url(name: str) -> bool:
    return "://" in name


def local_copy(name: str, what: str = "file") -> Path:
    """The path itself, or where PathManager has put a copy of a URL; a query such as ``?sig=...`` is not of its name.

    Raises:
        UserError: a URL that cannot be fetched, with ``what`` it is for.
    """
    if not is_url(name):
        return Path(name).expanduser()
    from detectron2.utils.file_io import PathManager  # not at start-up: it takes a second

    copy, reason, cause = "", "no file is there, or nothing here fetches such a URL", None
    try:
        copy = PathManager.get_local_path(urlsplit(name)._replace(query="").geturl())
    except Exception as error:  # whatever a handler's library raises
        reason, cause = first_line(error), error
    if not Path(copy).is_file():
        way_out = "fetch it where there is a network, and name the file"
        raise UserError(f"{what} {name} cannot be fetched ({reason}): {way_out}") from cause
    return Path(copy)
