"""What every console command does when something goes wrong: one sentence, and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from decentral.errors import ConfigError
from decentral.host.interrupt import end_at_once, raise_once, was_raised
from decentral.terminal.console import FAILED, INTERRUPTED, REFUSED, is_leader, report_error, say


def guarded(
    command: str,
    carry_out: Callable[[list[str]], int],
    arguments: Sequence[str] | None,
    interrupted: str = "interrupted.",
) -> NoReturn:
    """Exit with the status that `carry_out` returns of the arguments; what goes wrong becomes a sentence and a status.

    2 for what is refused (ConfigError, and a file or folder that is closed to the user), 1 for what the machine does
    not allow (OSError: a full disk, say), 130 after Ctrl-C, which is told in the words of `interrupted`.

    Without `arguments`, those of this process are taken, which is the command's: Ctrl-C ends it at any moment.
    """
    status = INTERRUPTED
    with suppress(KeyboardInterrupt):
        if arguments is None:
            os.environ["MPLBACKEND"] = "agg"  # a notebook's kernel leaves its own there; a command shows no windows
            raise_once(f"{command}: {interrupted}\n" if is_leader() else "", INTERRUPTED)
        status = _status(command, carry_out, list(sys.argv[1:] if arguments is None else arguments))
        if arguments is None:
            end_at_once("", status)
    if status == INTERRUPTED:
        report_error(interrupted, command)
        exec("")  # Python notes that one was interrupted, as of a dataclass, and would end with another status
    sys.exit(status)


def _status(command: str, carry_out: Callable[[list[str]], int], arguments: list[str]) -> int:
    try:
        status = carry_out(arguments)
        say("", end="")  # what is left in the buffer
        return status
    except Exception as error:
        if was_raised():  # what the interruption was turned into on its way
            return INTERRUPTED
        if isinstance(error, ConfigError):
            report_error(str(error), command)
            return REFUSED
        if not isinstance(error, OSError):
            raise
        if isinstance(error, PermissionError) and error.filename is not None:
            where = f"{error.filename} is closed to you: it, or a folder above it, may not be read, written or entered"
            report_error(f"{where}. Choose another one, or change its permissions.", command)
            return REFUSED
        from decentral.store.failures import advice, classify, describe

        report_error(f"{describe(error)}. {advice(classify(error))}.", command)
        return FAILED
