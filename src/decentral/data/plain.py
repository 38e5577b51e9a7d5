"""The data set class for a user's or library's function: data=module:function."""

from __future__ import annotations

from functools import cache

from decentral.data.hugging_face import HuggingFace
from decentral.data.own import PlainData
from decentral.registry.signature import component_from


@cache
def plain(name: str) -> type:
    """Return the data set class for `module:function`. Raises ConfigError if it does not exist."""
    if name == "datasets:load_dataset":
        return component_from("data", name, HuggingFace, ("name", "split", "cache_dir", "streaming"))
    return component_from("data", name, PlainData, ())
