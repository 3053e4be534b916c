"""The one exception that means: the user can fix this."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in the input, told in one line: what was found, what was expected, what to do.

    Entry scripts print the message without a traceback and exit with EXIT_CODE. Every other exception is
    a defect of ours and keeps its traceback.
    """

    EXIT_CODE = 2
