"""What the exit code of a process says, as multiprocessing gives it."""

from __future__ import annotations

import signal

NO_STATUS = 255
"""Of a process whose fork server is gone: nobody knows how it ended."""


def signal_of(code: int | None) -> str | None:
    """The name of the signal that killed the process; None if none did."""
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"signal {-code}"
