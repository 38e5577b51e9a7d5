"""The rows and the columns of a study's table, as its YAML has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from decentral.settings import Settings


@dataclass
class Row(Settings):
    """A method, or whatever else a study has in its rows.

    method, topology    as tables and figures show them
    base                overrides of its runs
    published           'algorithm|topology' of its numbers in the published table; '' if there are none
    """

    method: str = ""
    topology: str = ""
    base: list[str] = field(default_factory=list)
    published: str = ""


def points(columns: Mapping[str, list[Any]], only: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Label -> value for every combination of values; `only` replaces the values of some labels."""
    values = {label: only.get(label, listed) for label, listed in columns.items()}
    return [dict(zip(values, point, strict=True)) for point in product(*values.values())]


def overrides_of(point: Mapping[str, Any], keys: Mapping[str, str]) -> list[str]:
    """What a combination says to decentral-run; `keys` has the keys of labels that are not called like theirs.

    A label without a value, '', says nothing: what it stands for does not exist in that row.
    """
    return [f"{keys.get(label, label)}={value}" for label, value in point.items() if value != ""]
