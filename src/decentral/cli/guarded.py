"""What every console command does when something goes wrong: one sentence, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from decentral.errors import ConfigError
from decentral.terminal.console import FAILED, INTERRUPTED, REFUSED, report_error, say


def guarded(command: str, carry_out: Callable[[], int], interrupted: str = "interrupted.") -> NoReturn:
    """Exit with the status that `carry_out` returns; what goes wrong becomes a sentence and a status.

    2 for what is refused (ConfigError, and a file or folder that is closed to the user), 1 for what the machine does
    not allow (OSError: a full disk, say), 130 after Ctrl-C, which is told in the words of `interrupted`.
    """
    try:
        status = carry_out()
        say("", end="")  # what is left in the buffer
        sys.exit(status)
    except ConfigError as error:
        report_error(str(error), command)
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        report_error(interrupted, command)
        sys.exit(INTERRUPTED)
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename is not None:
            where = f"{error.filename} is closed to you: it, or a folder above it, may not be read, written or entered"
            report_error(f"{where}. Choose another one, or change its permissions.", command)
            sys.exit(REFUSED)
        from decentral.store.failures import advice, classify, describe

        report_error(f"{describe(error)}. {advice(classify(error))}.", command)
        sys.exit(FAILED)
