"""The page of decentral as a library: its public names, with their signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from docstrings import fence, markdown

import decentral


def page() -> str:
    """All public names of `decentral`."""
    parts = ["# decentral as a library", "How to use it: [your own training script](own_script.md). Every public name:"]
    for name in sorted(decentral._HOMES):
        thing = getattr(decentral, name)
        parts += [f"## decentral.{name} {{ #{name} }}", *_described(name, thing)]
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            for method, function in _methods(thing):
                parts += [f"### {name}.{method}", *_described(method, function)]
    return "\n\n".join(parts)


def _described(name: str, thing: Any) -> Iterator[str]:
    if isinstance(thing, property):
        yield markdown(inspect.getdoc(thing) or "")
        return
    if not (inspect.isclass(thing) and issubclass(thing, Exception)):
        yield fence(f"{name}{_signature(thing)}", "python")
    yield markdown(inspect.getdoc(thing) or "")


def _signature(thing: Any) -> str:
    """On one line, or an argument on each."""
    signature = inspect.signature(thing)
    kept = [p for p in signature.parameters.values() if p.name != "self"]
    text = str(signature.replace(parameters=kept)).replace("'", "")
    if len(text) < 90:
        return text
    ends = str(signature.replace(parameters=[])).replace("'", "")[2:]
    shown = []
    for number, parameter in enumerate(kept):
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and kept[number - 1].kind not in (
            inspect.Parameter.KEYWORD_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
        ):
            shown.append("*")
        shown.append(str(parameter).replace("'", ""))
    return "(\n    " + ",\n    ".join(shown) + f",\n){ends}"


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield name, member
