"""Loggers from a user's class: logger=mymodule:Name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError
from decentral.registry.signature import Plain, component_from, taken
from decentral.training.loggers.logger import Logger, Sink

GIVEN = ("run_id", "config", "directory")
"""Arguments passed to the class if it has a parameter of this name."""


class PlainLogger(Plain, Logger):
    """A class whose objects have `log(step, values)` and optionally `close(status)` and `place`, where a user finds the
    logs; its parameters are the settings.

    It receives the run's `run_id`, `config` (a dict) and `directory` (a Path) if it has such parameters.
    """

    def check(self) -> None:
        """Raise ConfigError for a class without `log`."""
        if isinstance(self.target(), type) and not callable(getattr(self.target(), "log", None)):
            raise ConfigError(f"logger={self.name} has no method log(step, values): define it.")

    def open(self, run_id: str, config: dict[str, Any], directory: Path) -> Sink:
        """Return an object of the class, or the function's result."""
        known = dict(zip(GIVEN, (run_id, config, directory), strict=True))
        made = self.target()(**self.settings(), **taken(self.target(), known))
        if not callable(getattr(made, "log", None)):
            raise ConfigError(
                f"logger={self.name} returns a {type(made).__name__}: return an object with log(step, values)."
            )
        return _Calls(made)


class _Calls(Sink):
    def __init__(self, made: Any) -> None:
        self._made, self.place = made, str(getattr(made, "place", ""))

    def log(self, step: int, values: dict[str, float]) -> None:
        self._made.log(step, values)

    def close(self, status: str) -> None:
        if hasattr(self._made, "close"):
            self._made.close(status)


def plain(name: str, target: Callable[..., Any]) -> type:
    """Return the logger of this name that calls a class or function."""
    return component_from("training.loggers", name, target, PlainLogger, GIVEN)
