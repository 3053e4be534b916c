"""How every entry script ends: quietly, with one line for the user's mistake, or with our traceback.

Like all that a script needs to understand its command line, this imports neither torch nor Detectron2.
"""

import argparse
import io
import os
import select
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from revisit.errors import (
    DEBUG,
    InterruptedRunError,
    StoppedRunError,
    UserError,
    expect,
    typed_list,
    words_of_disk,
    words_of_misfit,
)

TIMEOUT = timedelta(minutes=30)  # how long processes of a run wait for each other


def run_command(main: Callable[[], None]) -> None:
    """Run an entry script's ``main``: UserError becomes one line and its exit code, so does a full disk, Ctrl-C exit
    code 130. Where whoever reads the output has gone (``| head``), the command ends quietly, as by SIGPIPE. ``--debug``
    is no matter of ``main``. No process that it starts looks for modules in the working directory first."""
    if "--debug" in sys.argv:
        sys.argv.remove("--debug")
        os.environ[DEBUG] = "1"
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # multiprocessing starts its processes by python -c
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  (closed by the shell's >&-)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        try:
            _run(main)
        finally:
            sys.stdout.flush()
    except OSError as error:
        is_unread = _is_unread()
        if not is_unread and not words_of_disk(error):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left in the buffer
        if is_unread:
            sys.exit(128 + signal.SIGPIPE)
        print(f"error: {words_of_disk(error)}", file=sys.stderr)
        sys.exit(UserError.EXIT_CODE)


def _is_unread() -> bool:
    """Whether nobody reads stdout or stderr any more."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _run(main: Callable[[], None]) -> None:
    try:
        main()
    except UserError as error:
        if not _is_further_one_of_torchrun():  # which have found the same
            print(f"{'' if isinstance(error, StoppedRunError) else 'error: '}{error}", file=sys.stderr)
        sys.exit(error.EXIT_CODE)
    except RuntimeError as error:
        if not (words := words_of_misfit(error)):
            raise
        print(f"error: {words}", file=sys.stderr)
        sys.exit(UserError.EXIT_CODE)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(InterruptedRunError.EXIT_CODE)


def _is_further_one_of_torchrun() -> bool:
    """Whether torchrun has started this process, and another one before it on this machine. LOCAL_RANK alone does not
    say so: others set it too, for processes of their own."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("LOCAL_RANK", "0") != "0"


def natural(text: str) -> int:
    """A whole number above 0, as a type of argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text}")
    return int(text)


def whole(text: str) -> int:
    """A whole number, 0 or more, as a type of argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, got {text}")
    return int(text)


def in_shell(word: str) -> str:
    """A word as it is typed in a shell: between double quotes where it has single ones, such as ``('folder:x',)``."""
    needs_escapes = any(sign in word for sign in '"$`\\!')
    return shlex.quote(word) if "'" not in word or needs_escapes else f'"{word}"'


def pairs_of(words: Sequence[object]) -> dict[str, Any]:
    """The values by their keys, of words KEY VALUE KEY VALUE. Raises UserError unless these are pairs."""
    keys = list(map(str, words[::2]))
    if late := [key for key in keys if key.startswith("--")]:
        raise UserError(f"{late[0]} comes after KEY VALUE: options go before the first KEY, next to --config-file")
    got = " ".join(map(str, words))
    expect(len(words) % 2 == 0, f"expected pairs KEY VALUE at the end, after --opts or not, got {got}{_meant(words)}")
    return dict(zip(keys, words[1::2], strict=True))


def _meant(words: Sequence[object]) -> str:
    """The end of a message about words that are no pairs: what was probably meant by one of them."""
    for word in map(str, words):
        key, sign, value = word.partition("=")
        if sign and key.isupper():
            return f"; did you mean {key} {value}?"
        if word.endswith(".yaml"):
            return f"; did you mean --config-file {word}?"
    return in_one_word(list(map(str, words)))


def in_one_word(words: Sequence[str]) -> str:
    """``_meant`` of a value with spaces that the shell took for several words: an even number of them are pairs, too,
    of which one has a key that nobody knows."""
    keys = [_may_be_key(word) for word in words]
    first = next((n for n in range(2, len(words)) if not keys[n] and not keys[n - 1]), 0)
    if not first or not keys[first - 2]:
        return ""
    last = next((n for n in range(first, len(words)) if keys[n]), len(words))
    key, values = words[first - 2], words[first - 1 : last]
    if not key.startswith("DATASETS."):
        return f"; did you mean {key} {in_shell(' '.join(values))}?"
    kind, _, _ = values[0].partition(":")
    are_several = all(value.startswith(f"{kind}:") for value in values)
    return f"; did you mean {key} {typed_list(values if are_several else [' '.join(values)])}?"


def _may_be_key(word: str) -> bool:
    return word.isupper() and not {":", "/"} & {*word}
