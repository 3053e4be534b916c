"""The one exception that means: the user can fix this."""

import difflib
import errno
import logging
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

DEBUG = "REVISIT_DEBUG"  # what --debug sets: the processes of a run inherit it
_NO_ANSWER = re.compile(
    r"time[d-]? ?out|connection (was )?(closed|reset|refused|lost)|broken pipe|remote process|no route|unreachable",
    re.I,
)
_NO_PART_OF_A_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Of a URL after its scheme: perhaps what comes before an @, the place, and a query.
_URL = re.compile(r"""://([^\x00-\x20/?#'"<>\\]*@)?([^\x00-\x20?'"<>\\]*)(\?[^\x00-\x20'"<>\\]*)?""")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG}


class UserError(Exception):
    """A mistake in the input, reported in one line: what was found, what was expected, what to do.

    Entry scripts exit with EXIT_CODE. Every other exception is a defect of ours and keeps its traceback.
    """

    EXIT_CODE = 2

    def __init__(self, message: str):
        super().__init__(printable(without_secrets(told_by_worker(message, type(self).__name__))))


class MissingImportError(UserError, ImportError):
    """A package that the work needs, and that does not import here."""


def expect(condition: object, message: str) -> None:
    """Raise UserError with the message unless the condition holds."""
    if not condition:
        raise UserError(message)


@contextmanager
def translated(doing: str, *, content: bool = False) -> Iterator[None]:
    """While a run is set up from its config: what a library raises in the block becomes one line, a UserError with what
    the block was ``doing`` and the library's words.

    The traceback goes to the run's log.txt once that is open, and with ``--debug``, which every command has, to the
    screen. What is no defect (``is_no_defect``) passes. Where the block reads ``content`` of the user's, a ValueError
    says what is wrong with it, and a KeyError what it lacks.
    """
    try:
        yield
    except Exception as error:
        if content and isinstance(error, FileNotFoundError):
            raise UserError(f"{doing}: No such file{_which(error)}") from error
        if content and isinstance(error, ValueError | KeyError):
            raise UserError(f"{doing}: {words_of(error)}{' is missing' * isinstance(error, KeyError)}") from error
        if words := words_of_disk(error):
            raise UserError(f"{doing}: {words}") from error
        if is_no_defect(error):
            raise
        handlers = logging.getLogger("revisit").handlers  # one that keeps messages until there is a log has no stream
        logged = any(isinstance(handler, logging.StreamHandler) for handler in handlers)
        logging.getLogger(__name__).debug(f"{doing} failed", exc_info=True)
        if DEBUG in os.environ:
            traceback.print_exc()
        where = "the traceback is in log.txt, and --debug prints it" if logged else "--debug prints the traceback"
        raise UserError(f"{doing}: {type(error).__name__}: {words_of(error)} ({where})") from error


@contextmanager
def enough_memory() -> Iterator[None]:
    """A GPU whose memory does not suffice for the block is one line, a UserError with the keys that help."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"{first_line(error)} Set SOLVER.AMP.ENABLED True, SOLVER.ACCUMULATION_STEPS 2 or a smaller "
            "SOLVER.IMS_PER_BATCH; --dry-run says what a process needs"
        ) from error


def is_no_defect(error: BaseException) -> bool:
    """Whether an error is a mistake of the user, another process that does not answer, or a GPU or a disk that is full;
    or whoever read the output has gone."""
    of_machine = is_out_of_memory(error) or words_of_disk(error) != "" or isinstance(error, BrokenPipeError)
    return isinstance(error, UserError) or is_lost_contact(error) or of_machine


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is how torch says that a GPU's memory does not suffice."""
    return "OutOfMemoryError" in {kind.__name__ for kind in type(error).__mro__}


def words_of_disk(error: BaseException) -> str:
    """One line for an error by which the system refuses to read or write a file; "" for any other."""
    if not isinstance(error, OSError) or error.errno not in _FULL | _REFUSED:
        return ""
    place = error.filename or "a file"
    if error.errno in _FULL:
        return f"{place} cannot be written ({error.strerror}): free some space and give the same command again"
    return f"{place} cannot be read or written ({error.strerror}): expected another place, or permission"


def words_of_misfit(error: BaseException) -> str:
    """One line for what torchvision raises where it was built for another torch; "" for any other error."""
    if "operator torchvision::" not in str(error):
        return ""
    return (
        f"torchvision was built for another torch than the one installed here ({first_line(error)}): expected a "
        "pair, by pip install --upgrade torch torchvision, or by `make env`"
    )


def words_of(error: Exception) -> str:
    """What a library's exception says first; the line of code that raised it where it says nothing."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error  # str() would quote the words
    if str(text).strip():
        return first_line(text)
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].line if frames else "") or "no reason given"


def is_lost_contact(error: BaseException) -> bool:
    """Whether an error is how gloo, NCCL or torch's store say that another process of the run does not answer."""
    # By name: whoever only reads a command line has not imported torch.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    by_network = "DistError" in kinds or ("RuntimeError" in kinds and "gloo" in str(error))
    return by_network and _NO_ANSWER.search(str(error)) is not None


def printable(text: str) -> str:
    """The text, on one line whatever it quotes: names of files may hold line ends, and bytes that are no text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def without_secrets(text: str) -> str:
    """The text whose URLs lack their queries (``?X-Amz-Signature=...``) and their passwords (``user:password@``): what
    is written, logged or sent anywhere has the place alone, and two signatures of one place are no difference."""
    return _URL.sub(_without_secret, text)


def _without_secret(url: re.Match) -> str:
    user, place, _ = url.groups(default="")
    # Azure's abfs://container@account is a place; before the @ of a web server stands a token.
    is_of_web = url.string[max(0, url.start() - 5) : url.start()].lower().endswith(("http", "https"))
    return f"://{'' if is_of_web or ':' in user else user}{place}"


def on_one_line(text: str) -> str:
    """The text without what ends a line or tells a terminal to do something, each written as an escape; all else is
    as it was, so that files are found by their names."""
    return _NO_PART_OF_A_LINE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def told_by_worker(error: object, kind: str) -> str:
    """The message of an exception, which torch raises again with a loader worker's whole traceback as its message."""
    return str(error).rstrip().rpartition(f"{kind}: ")[2]


def _which(error: FileNotFoundError) -> str:
    """The file that is missing, or a store's words for it."""
    if error.filename:
        return f" {error.filename}"
    return f" ({first_line(error)})" if str(error) else ""


def first_line(error: object) -> str:
    """What an exception says first, for a message of ours; its kind where it says nothing.

    Without objects of Python's, ``<_io.BytesIO object at 0x7f...>``, in whose place the message has a name.
    """
    lines = re.sub(r" ?<_io\.[^>]*>", "", str(error)).strip().splitlines()
    return printable((lines or [type(error).__name__])[0][:160])


def did_you_mean(word: str, choices: Iterable[str], most: int = 1) -> str:
    """The end of a message about a word that is none of ``choices``: those that are like it; "" where none is."""
    close = difflib.get_close_matches(word, choices, n=most, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def typed_list(names: Sequence[str]) -> str:
    """Names as a shell takes them for a key that is a list: ``"('folder:a',)"``, also those with an apostrophe."""
    words = [f'\\"{name}\\"' if "'" in name else f"'{name}'" for name in names]
    return f'"({", ".join(words)}{"," * (len(words) == 1)})"'


def first_few(names: Sequence[str]) -> str:
    """The first five of many names, for a message."""
    return ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")


class KilledWorkerError(UserError):
    """The system killed a loader's worker."""

    EXIT_CODE = 137  # 128 + SIGKILL, as shells count it


class FolderGoneError(UserError, FileNotFoundError):
    """A file cannot be written because something has removed its folder while this command was at work."""

    def __init__(self, folder: str | os.PathLike[str]):
        gone = f"{folder} is gone, which something has removed while this command was at work"
        super().__init__(f"{gone}: give the same command again")
        self.strerror = gone


class LostContactError(UserError):
    """Another process or machine of the run no longer answers: the run can be started again with ``--resume``."""

    EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h


class StoppedRunError(UserError):
    """A signal stopped the run after a checkpoint: no mistake, but not the end either."""

    EXIT_CODE = 75


class InterruptedRunError(StoppedRunError):
    """Ctrl-C stopped the run after a checkpoint."""

    EXIT_CODE = 130  # 128 + SIGINT, as shells count it
