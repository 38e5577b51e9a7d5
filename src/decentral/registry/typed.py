"""Arguments of public functions are what their annotations say, or one sentence tells."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature, unwrap
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

from decentral.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")


def typed(*names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Refuse arguments of other types than annotated, by ConfigError: those of these names, or all without names."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameters = signature(function).parameters

        @wraps(function)
        def call(*arguments: P.args, **settings: P.kwargs) -> T:
            for name, value in signature(function).bind(*arguments, **settings).arguments.items():
                kind, hint = parameters[name].kind, parameters[name].annotation
                if (names and name not in names) or kind is Parameter.VAR_KEYWORD or hint is Parameter.empty:
                    continue
                for each in value if kind is Parameter.VAR_POSITIONAL else [value]:
                    if not _fits(each, _evaluated(hint, function)):
                        kinds = hint.replace("nn.", "torch.nn.").replace(" | ", " or ")
                        raise ConfigError(f"{name}= is a {type(each).__name__}: give a {kinds}.")
            return function(*arguments, **settings)

        return call

    return decorate


def _evaluated(hint: str, function: Any) -> Any:
    """Return the type of an annotation; Any if a name in it is imported for type checkers only."""
    import torch

    try:
        return eval(hint, {"nn": torch.nn, "Tensor": torch.Tensor} | unwrap(function).__globals__)
    except NameError:
        return Any


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    kind = get_origin(hint) or hint
    if kind in (int, float, bool):
        try:
            return float(value).is_integer() or kind is not int
        except (TypeError, ValueError):
            return False
    if kind is Callable:
        return callable(value)
    if kind is Iterable:  # also classes with __getitem__ only
        return hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    if kind in (None, NoneType):
        return value is None
    if kind in (Any, object):
        return True
    return not isinstance(kind, type) or isinstance(value, os.PathLike if kind is Path else kind)
