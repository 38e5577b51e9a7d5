"""Output of the console commands: exit statuses, sentences, tables, and times and sizes for people."""

from __future__ import annotations

import contextlib
import os
import re
import sys

from decentral.errors import ConfigError
from decentral.host.torchrun import place, under_torchrun


def aligned(rows: list[list[str]], left: int = 1) -> str:
    """Format a table as plain text: a header, a rule, and rows; the first `left` columns to the left, the others to the
    right."""
    rows = [[re.sub(r"[\n\r\t]", " ", printable(cell)) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        places = enumerate(zip(row, widths, strict=True))
        cells = [cell.ljust(width) if place < left else cell.rjust(width) for place, (cell, width) in places]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def printable(text: str) -> str:
    """Return text without characters that move the cursor, color or hide what a terminal shows."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", "\N{REPLACEMENT CHARACTER}", text)


def duration(seconds: float) -> str:
    """Format a time for people: '9.7 s', '3 min 20 s', '1 h 5 min'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def in_bytes(count: float) -> str:
    """Format a number of bytes for people: '18.3 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


REFUSED, FAILED, INTERRUPTED = 2, 1, 130


def say(text: str, end: str = "\n") -> None:
    """Print text on stdout. A closed pipe (`| head`), or text that cannot be shown, does not stop the run."""
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
    """Print a warning on stderr; a failure to do so does not stop the run."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"warning: {printable(message)}", file=sys.stderr, flush=True)


def report_error(message: str, program: str = "decentral-run") -> None:
    """Print one line on stderr, from one process."""
    if is_leader():
        print(f"{program}: {printable(' '.join(message.split()))}", file=sys.stderr)


def is_leader() -> bool:
    """Return whether this process is the one that prints."""
    if not under_torchrun():
        return True
    try:
        return place().rank == 0
    except ConfigError:  # which somebody has to say
        return True
