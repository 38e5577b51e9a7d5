"""What the console commands have in common: exit statuses, and what they say."""

from __future__ import annotations

import contextlib
import os
import sys

from decentral.errors import ConfigError
from decentral.host.torchrun import place, under_torchrun
from decentral.terminal.text import printable

REFUSED, FAILED, INTERRUPTED = 2, 1, 130


def say(text: str, end: str = "\n") -> None:
    """Text on stdout. Where nobody reads it any more (`| head`), or it cannot be shown, the run does not suffer."""
    if sys.stdout is None:  # closed before the start
        return
    text = printable(text)
    try:
        print(text, end=end, flush=True)
    except UnicodeEncodeError:  # a terminal that knows only ASCII
        print(text.encode("ascii", "replace").decode(), end=end, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(message: str) -> None:
    """A sentence on stderr about what goes on all the same; even that must not fail the run."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"warning: {printable(message)}", file=sys.stderr, flush=True)


def report_error(message: str, program: str = "decentral-run") -> None:
    """One line on stderr, from one process."""
    if is_leader():
        print(f"{program}: {printable(' '.join(message.split()))}", file=sys.stderr)


def is_leader() -> bool:
    """Whether this process is the one that talks."""
    if not under_torchrun():
        return True
    try:
        return place().rank == 0
    except ConfigError:  # which somebody has to say
        return True
