"""What goes wrong, in the words of somebody who writes a script: sentences of the command line, and hints on hangs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_SETTING = re.compile(r"\b(?:topology|communication)\.(\w+)=(\w[\w.]*)")
_HINT = (
    "every rank has to call the same verbs in the same order, and step() equally often; "
    "decentral.join(..., check=True) compares what all ranks are about to do before anything is sent"
)


def in_a_script(sentence: str) -> str:
    """`topology.weights=metropolis` is weights='metropolis' in a call, and `algo=sgp` is mode='push_sum'."""

    def argument(found: re.Match[str]) -> str:
        value = found[2].rstrip(".")
        number = value.replace(".", "", 1).isdigit() or value in ("None", "True", "False")
        return f"{found[1]}={value if number else repr(value)}" + found[2][len(value) :]

    sentence = _SETTING.sub(argument, sentence).replace("algo=sgp", "mode='push_sum'")
    return re.sub(r"topology=matrices with num_workers=\d+", "the given matrices", sentence)


@contextmanager
def hinted() -> Iterator[None]:
    """An error of the transport (a rank that is gone, or does something else) gets a note that says what to look at."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        error.add_note(_HINT)
        raise
