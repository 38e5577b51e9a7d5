"""The schema of stored files: which keys a reader relies on, and their types."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

_NUMBER = int | float
_TEXTS, _RECORDS = list[str], list[dict[str, Any]]
_MACHINE = {"runs": int, "gpu": str, "cores": int | None, "cpu": str | None}
_METHOD = {
    "!": ("title",),
    "name": str,
    "title": str,
    "base": _TEXTS,
    "search": dict[str, Any],
    "times": _NUMBER,
}
_METRIC = {"split": str, "name": str, "larger_is_better": bool | None, "unit": str, "chance": _NUMBER | None}
_MEANING = {**_METRIC, "heading": str}

ROW = {
    **{"step": int, "epoch": _NUMBER, "worker": int | str, "split": str, "metric": str, "value": _NUMBER},
    **{"wall_s": _NUMBER, "bytes_sent": _NUMBER, "simulated_s": _NUMBER, "tokens": int},
}
"""A line of metrics.jsonl."""

FILES: dict[str, dict[str, Any]] = {
    "status.json": {
        **{"run_id": str, "status": str, "step": int, "epoch": _NUMBER, "restarts": int, "rows": int},
        **{"updated": str, "wall_s": _NUMBER, "simulated_s": _NUMBER, "bytes_sent": _NUMBER, "messages_sent": _NUMBER},
        **{"times_s": dict[str, _NUMBER], "lr_factor": _NUMBER, "examples_per_worker": list[int], "tokens": int},
        **{"notes": _TEXTS, "suspects": _TEXTS, "reason": str, "failure": str, "fraction": _NUMBER, "text": str},
        **{"simulated_shares": dict[str, list[_NUMBER]], "staleness": dict[str, int], "critical": list[int]},
        **{"availability": dict[str, Any], "collectives": dict[str, list[Any]], "ratios": list[list[Any]]},
    },
    "provenance.json": {
        **{"command_line": _TEXTS, "processes": int, "git_commit": str | None, "version": str | None},
        **{"started": str, "gpus": _TEXTS, "cores": int | None, "cpu": str | None},
    },
    "metrics.json": {"metrics": [_METRIC]},
    "study.json": {
        **dict.fromkeys(("study", "scale", "command", "kind", "title", "paper", "item", "needs"), str),
        **dict.fromkeys(("started", "ended", "reported", "digest", "setup"), str),
        **dict.fromkeys(("labels", "departures", "base", "run_notes", "sweep", "at_this_scale"), _TEXTS),
        **{"changed": _TEXTS, "overrides": _TEXTS, "git_commits": list[str | None], "git_commit": str | None},
        **{"version": str | None, "git_dirty": bool, "complete": bool, "wall_s": _NUMBER},
        **{"failed": int, "diverged": int, "jobs": int, "host_cores": int | None, "wanted": dict[str, int]},
        **{"machines": [_MACHINE], "metrics": {"*": _MEANING}, "files": dict[str, str], "report": dict[str, Any]},
        **{"rules": dict[str, int | str], "layout": dict[str, Any], "packages": dict[str, Any]},
        "scenarios": [{"!": ("scenario",), "scenario": str, "family": str, "clock": str, "title": str, "steps": int}],
        "entries": [{"!": ("method", "base", "searched"), "method": str, "base": str, "searched": str}],
    },
    "submission.json": {
        **{"scale": str, "rules": int, "version": str | None, "hash": str, "packages": dict[str, str]},
        **{"methods": [_METHOD], "cells": list[dict[str, str | _NUMBER]], "files": dict[str, str]},
    },
    "verification.json": {"hash": str, "agrees": bool, "done": str, "reported": str, "version": str},
}
"""Name -> type of each known key. Further keys are allowed, and a key may be absent."""


def misfit(value: Any, hint: Any, where: str) -> str:
    """Say where `value` differs from its type; '' where it fits.

    `hint` is a type, a record {key: type} ({'*': type}: of any key; {'!': keys}: those that it must have), or a list
    [type].
    """
    if isinstance(hint, dict) and isinstance(value, dict):
        if absent := [key for key in hint.get("!", ()) if key not in value]:
            return f"{where} has no {absent[0]}"
        known = hint if "*" not in hint else dict.fromkeys(value, hint["*"])
        pairs = [
            (value[key], each, f"{where}.{key}".lstrip("."))
            for key, each in known.items()
            if key in value and key != "!"
        ]
    elif isinstance(hint, list) and isinstance(value, list):
        pairs = [(one, hint[0], f"{where}[{number}]") for number, one in enumerate(value)]
    else:
        return "" if _fits(value, hint) else f"{where or 'it'}={str(value)[:60]} has the wrong type"
    return next(filter(None, (misfit(one, each, name) for one, each, name in pairs)), "")


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(_fits(one, parts[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(one, parts[1]) for one in value.values())
    return hint is Any or type(value) is (NoneType if hint is None else hint)
