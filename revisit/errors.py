"""The one exception that means: the user can fix this."""

from collections.abc import Sequence


class UserError(Exception):
    """A mistake in the input, reported in one line: what was found, what was expected, what to do.

    Entry scripts print the message without a traceback and exit with EXIT_CODE. Every other exception is
    a defect of ours and keeps its traceback.
    """

    EXIT_CODE = 2

    def __init__(self, message: str):
        super().__init__(printable(told_by_worker(message, "UserError")))


def expect(condition: bool, message: str) -> None:
    """Raise UserError with the message unless the condition holds."""
    if not condition:
        raise UserError(message)


def printable(text: str) -> str:
    """The text, on one line whatever it quotes: names of files may hold line ends, and bytes that are no text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def told_by_worker(error: object, kind: str) -> str:
    """The message of an exception, which torch raises again with a loader worker's whole traceback as its message."""
    return str(error).rstrip().rpartition(f"{kind}: ")[2]


def first_line(error: object) -> str:
    """What an exception says first, for a message of ours; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def some(names: Sequence[str]) -> str:
    """The first five of many names, for a message."""
    return ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")


class KilledWorkerError(UserError):
    """The system killed a loader's worker."""

    EXIT_CODE = 137  # 128 + SIGKILL, as shells count it


class LostContactError(UserError):
    """Another process or machine of the run no longer answers: the run can be started again with ``--resume``."""

    EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h


class StoppedRunError(UserError):
    """A signal stopped the run after a checkpoint: no mistake, but not the end either."""

    EXIT_CODE = 75


class InterruptedRunError(StoppedRunError):
    """Ctrl-C stopped the run after a checkpoint."""

    EXIT_CODE = 130  # 128 + SIGINT, as shells count it
