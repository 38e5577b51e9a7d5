"""A model and data that are objects of a script or a notebook, in the place of chosen components."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from decentral.data.loading.map_style import example, seeded
from decentral.data.plain import PlainData, Sets
from decentral.errors import ConfigError
from decentral.models.plain import PlainModel

if TYPE_CHECKING:
    from torch import Tensor

_LOOKED_AT = 64
"""Examples whose values are part of a run's identity, with all labels: reading all of them could take long."""


@dataclass
class GivenModel(PlainModel):
    """A module, which is where all workers start, or what makes one: it is called with seeded generators.

    content    a digest of its structure, values, plain attributes and source
    """

    name: str = "given"
    content: str = ""
    _make: ClassVar[Any] = None

    @classmethod
    def of(cls, model: nn.Module | Callable[..., nn.Module]) -> GivenModel:
        """Raises ConfigError if it is neither."""
        if not callable(model):
            raise ConfigError(f"model= is a {type(model).__name__}: give a torch.nn.Module, or a class or function.")
        digest = hashlib.sha256()
        if isinstance(model, nn.Module):
            digest.update(repr(model).encode() + "".join(_known_of(part) for part in model.modules()).encode())
            for name, tensor in model.state_dict().items():
                digest.update(name.encode() + _bytes(tensor))
        else:
            digest.update(_origin(model).encode())
        found = cls(content=digest.hexdigest()[:16])
        make = (lambda: copy.deepcopy(model)) if isinstance(model, nn.Module) else model
        vars(found)["_make"] = make
        return found

    def target(self) -> Callable[..., Any]:  # type: ignore[override]
        """What makes the module."""
        made: Callable[..., Any] = self._make
        return made

    def settings(self) -> dict[str, Any]:
        """None: what it is made with has been decided."""
        return {}


@dataclass
class GivenData(PlainData):
    """Two map-style data sets of pairs (tensor, label).

    content    a digest of their labels and some of their examples
    """

    name: str = "given"
    content: str = ""
    _both: ClassVar[Any] = None
    _found: ClassVar[Any] = None

    @classmethod
    def of(cls, train: Any, test: Any) -> GivenData:
        """Raises ConfigError if they are no such data sets."""
        found = cls()
        vars(found)["_both"] = train, test
        vars(found)["_found"] = found._made()
        digest = hashlib.sha256()
        for data in (train, test):
            numbers = np.unique(np.linspace(0, len(data) - 1, _LOOKED_AT).astype(int)).tolist()
            with seeded(0, "look at data"):
                for number in numbers:
                    digest.update(_bytes(example(data[number])))
        sets: Sets = found._found
        digest.update(sets.train_labels.tobytes() + sets.test_labels.tobytes() + str(sets.description).encode())
        found.content = digest.hexdigest()[:16]
        return found

    def target(self) -> Callable[..., Any]:  # type: ignore[override]
        """What returns both."""
        return lambda: self._both

    def settings(self) -> dict[str, Any]:
        """None."""
        return {}

    def _sets(self) -> Sets:
        found: Sets = self._found
        return found


def _origin(make: Callable[..., Any], inside: tuple[int, ...] = ()) -> str:
    """Name and source of a class or function, its defaults and what it has from around it, and what a functools.partial
    has fixed of it."""
    if isinstance(make, partial):
        return f"{_origin(make.func, inside)} {_described([*make.args, make.keywords], inside)}"
    found = f"{make.__module__}.{getattr(make, '__qualname__', type(make).__qualname__)}"
    with suppress(OSError, TypeError):  # typed into a console: nothing but the name is known
        found += inspect.getsource(make)
    if isinstance(make, FunctionType):
        around = list[Any]()
        for cell in make.__closure__ or ():
            with suppress(ValueError):  # nothing is in it yet
                around.append(cell.cell_contents)
        found += _described([make.__defaults__, make.__kwdefaults__, around], inside)
    return found


def _known_of(module: nn.Module, inside: tuple[int, ...] = ()) -> str:
    """The source of a module that is not torch's own, and its attributes but for parameters and submodules."""
    source = ""
    if type(module).__module__.partition(".")[0] != "torch":
        with suppress(OSError, TypeError):  # typed into a console
            source = inspect.getsource(type(module))
    own = {key: value for key, value in vars(module).items() if not key.startswith("_") and key != "training"}
    return source + _described(dict(sorted(own.items())), inside)


def _described(value: Any, inside: tuple[int, ...] = ()) -> str:
    """A value in words that are the same in another process: plain ones as they are, functions by their source, of
    other objects the type. `inside` are the ones that it is a part of."""
    if id(value) in inside:
        return "itself"
    inside = (*inside, id(value))
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_described(one, inside)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_described(one, inside) for one in value) + "]"
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(_bytes(value)).hexdigest()
    if isinstance(value, nn.Module):
        return repr(value) + _known_of(value, inside) + _described(dict(value.state_dict()), inside)
    if callable(value):
        return _origin(value, inside)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
