"""The columns of a study: every combination of a few settings."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any


def points(columns: Mapping[str, list[Any]], only: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Label -> value for every combination of values; `only` replaces the values of some labels."""
    values = {label: only.get(label, listed) for label, listed in columns.items()}
    return [dict(zip(values, point, strict=True)) for point in product(*values.values())]


def overrides_of(point: Mapping[str, Any], keys: Mapping[str, str]) -> list[str]:
    """What a combination says to decentral-run; `keys` has the keys of labels that are not called like theirs."""
    return [f"{keys.get(label, label)}={value}" for label, value in point.items()]
