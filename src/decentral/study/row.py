"""What the rows of all kinds of studies have in common."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """A method, or whatever else a study has in its rows.

    method, topology    as tables and figures show them
    base                overrides of its runs
    published           'algorithm|topology' of its numbers in the published table; '' if there are none
    """

    method: str = ""
    topology: str = ""
    base: list[str] = field(default_factory=list)
    published: str = ""
