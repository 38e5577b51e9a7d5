"""The data set class for a user's or library's function: data=module:function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decentral.data.hugging_face import HuggingFace
from decentral.data.own import PlainData
from decentral.registry.signature import component_from


def plain(name: str, target: Callable[..., Any]) -> type:
    """Return the data set class of this name that calls a class or function."""
    if name in ("datasets:load_dataset", "datasets:load_from_disk"):
        return component_from("data", name, target, HuggingFace, ("name", "split", "cache_dir", "streaming"))
    return component_from("data", name, target, PlainData, ())
