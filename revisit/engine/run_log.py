"""The log of a run: on the console, and in OUTPUT_DIR/log.txt."""

import io
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler

from revisit.errors import on_one_line, without_secrets

from detectron2.utils import comm
from detectron2.utils.logger import setup_logger

LIBRARIES = ("detectron2", "fvcore")
OWN = ("revisit", "projects")
_COLOR = re.compile(r"\x1b\[[\d;]*m")
_CONTROL = re.compile(r"(\x1b\[[\d;]*m|\n|\t)|[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # what may stay, then all of them
# Starts of what Detectron2 logs and a run's own lines say already, or what names a temporary file.
SUPERFLUOUS = (
    "Converting ",
    "Distribution of instances among",
    "Evaluation results for",
    "Following weights matched with",
    "Loaded ",
    "Loading ",
    "Preparing results for COCO",
    "Removed 0 images",
    "Running precise-BN",
    "Serialized dataset takes",
    "Serializing ",
    "Some metrics cannot be computed",
    "Trying to convert",
    "copypaste: ",
)


class Shown(logging.Formatter):
    """Another formatter's text as it may be shown and kept: URLs without secrets, control characters escaped, and
    ``colored`` or without the colours that Detectron2 puts into its messages."""

    def __init__(self, inner: logging.Formatter, *, colored: bool = False):
        super().__init__()
        self._inner, self._colored = inner, colored

    def format(self, record: logging.LogRecord) -> str:
        text = without_secrets(self._inner.format(record))
        text = text if self._colored else _COLOR.sub("", text)
        return _CONTROL.sub(lambda found: found[1] or on_one_line(found[0]), text)


class News(logging.Filter):
    """Drops Detectron2's SUPERFLUOUS messages. Those about data, which loaders repeat, pass once; warnings always."""

    def __init__(self) -> None:
        super().__init__()
        self._about_data: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.INFO or not record.name.startswith(LIBRARIES):
            return True
        message = _COLOR.sub("", record.getMessage())
        if message.startswith(SUPERFLUOUS) or message in self._about_data:
            return False
        if record.name.startswith("detectron2.data"):
            self._about_data.add(message)
        return True


def open_log(folder: str) -> None:
    """Send what the libraries, the core and the projects log to the console and to FOLDER/log.txt.

    Other processes than the main one write log.txt.rankN alone. Colours are for terminals, and messages at level DEBUG,
    which are tracebacks (``revisit.errors.translated``), for the file.
    """
    logging.raiseExceptions = False  # a terminal that is closed or a disk that is full ends no run
    for name in (*LIBRARIES, *OWN):
        for handler in setup_logger(folder, distributed_rank=comm.get_rank(), name=name).handlers:
            if isinstance(handler.stream, io.TextIOWrapper):
                handler.stream.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
            if not isinstance(handler.formatter, Shown):
                handler.setFormatter(Shown(handler.formatter, colored=handler.stream.isatty()))
            if not any(isinstance(installed, News) for installed in handler.filters):
                handler.addFilter(News())
            if handler.stream is sys.stdout:
                handler.setLevel(logging.INFO)


@contextmanager
def log_before_the_log() -> Iterator[list[logging.LogRecord]]:
    """What the core and the projects log in the block from INFO on, for the log that is opened later; after the block
    it is plain text, so that it can be sent to other processes."""
    handler = MemoryHandler(capacity=2**20, flushLevel=logging.CRITICAL + 1)
    levels = {}
    for logger in map(logging.getLogger, OWN):
        levels[logger] = logger.level
        logger.addHandler(handler)
        logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    try:
        yield handler.buffer
    finally:
        for logger, level in levels.items():
            logger.removeHandler(handler)
            logger.setLevel(level)
        for record in handler.buffer:
            record.msg = record.getMessage()
            record.args = None
            record.exc_info = None
