"""A model and data that are objects of a script or a notebook, in the place of chosen components."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

from decentral.data.plain import PlainData, Sets
from decentral.errors import ConfigError
from decentral.host.torchrun import under_torchrun
from decentral.models.plain import PlainModel, check
from decentral.randomness import seeded
from decentral.script.fingerprint import fingerprint, trail
from decentral.terminal.console import warn

if TYPE_CHECKING:
    from decentral.data.description import LabelledData


@dataclass
class GivenModel(PlainModel):
    """A module, which is where all workers start, or what makes one: it is called with seeded generators.

    content    a digest of all that decides what it computes
    """

    name: str = "given"
    content: str = ""
    _make: ClassVar[Any] = None

    @classmethod
    def of(cls, model: nn.Module | Callable[..., nn.Module]) -> GivenModel:
        """Raises ConfigError if it is neither."""
        if not callable(model):
            raise ConfigError(f"model= is a {type(model).__name__}: give a torch.nn.Module, or a class or function.")
        if isinstance(model, nn.Module):
            check(model, cls.name)
        found = cls(content=compared(model, getattr(model, "__name__", type(model).__name__)))
        vars(found)["_make"] = (lambda: model) if isinstance(model, nn.Module) else model
        if isinstance(model, nn.Module):
            vars(found)["facts"] = {"code": trail(model)}
        return found

    def look_at(self, data: LabelledData) -> None:
        """What a class or function makes counts, too: it may depend on files, or on what else the code does not say."""
        with seeded(0, "look at model"):
            original = self.made(data)
            made = self.tried(original, data)
        self.content = compared((self.content, made), type(made).__name__)
        vars(self)["facts"] = {"code": trail(original)}

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

    content    a digest of their examples and labels, and of the code that reads them
    """

    name: str = "given"
    content: str = ""
    whole: ClassVar[bool] = True
    _both: ClassVar[Any] = None
    _found: ClassVar[Any] = None

    @classmethod
    def of(cls, train: Any, test: Any) -> GivenData:
        """Raises ConfigError if they are no such data sets."""
        found = cls()
        vars(found)["_both"] = train, test
        vars(found)["_found"] = found._made()
        digest = hashlib.sha256(str(found._found.description).encode())
        for name, data, look in zip(("train_data", "test_data"), (train, test), found._found.looks, strict=True):
            code, unknown = fingerprint(_code(data), name)
            if not look.digest:
                code, unknown = os.urandom(8).hex(), f"{name}[0] is another example when it is read again"
            _say(unknown)
            digest.update(f"{look.digest} {code}\n".encode())
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


def compared(value: Any, name: str) -> str:
    """A digest of what a value computes; the user is told if it is a new one each time.

    Raises ConfigError if the processes of torchrun would each have another one.
    """
    digest, unknown = fingerprint(value, name)
    _say(unknown)
    return digest


def _say(unknown: str) -> None:
    if unknown and under_torchrun():
        raise ConfigError(f"{unknown}, so torchrun's processes cannot agree on the run: start one process.")
    if unknown:
        warn(f"{unknown}, so this run is new; if it is interrupted, it starts again.")


def _code(data: Any, above: tuple[Any, ...] = ()) -> list[Any]:
    """What reads the examples: it may do so at random, and otherwise than when they were looked at.

    Examples, caches, counters and paths among the attributes do not count: they show in what is read.
    """
    known = getattr(data, "__dict__", {})
    parts = [part for one in known.values() for part in _parts(one) if isinstance(part, Dataset)]
    inner = [_code(part, (*above, data)) for part in parts if not any(part is one for one in (*above, data))]
    return [type(data), {name: one for name, one in known.items() if _decides(one)}, *inner]


def _parts(value: Any) -> list[Any]:
    if isinstance(value, list | tuple | set | dict):
        return list(value.values() if isinstance(value, dict) else value)
    return [value]


def _decides(value: Any) -> bool:
    """Whether how examples are read may depend on it: what is called, a probability, a switch, a configuration."""
    data = list, tuple, set, dict, int, str, bytes, os.PathLike, Tensor, np.ndarray, Dataset
    if any(callable(part) or type(part) in (bool, float) for part in _parts(value)):
        return True
    return not (isinstance(value, data) or fingerprint(value, "")[1])
