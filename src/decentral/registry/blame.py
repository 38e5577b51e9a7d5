"""The origin of an exception: file and line of the user's code that raised it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import decentral
from decentral.errors import ConfigError
from decentral.registry import plugins
from decentral.registry.sources import SITES

_PACKAGE = Path(decentral.__file__).resolve().parent
_STDLIB = Path(traceback.__file__).resolve().parent
_TYPED = ("<stdin>", "<ipython")


def is_own(file: str) -> bool:
    """Return whether a source file is the user's: not ours, not Python's, not of a package without components."""
    if file.startswith("<"):
        return file.startswith(_TYPED)
    path = Path(file).resolve()
    if path.is_relative_to(_PACKAGE):
        return False
    if any(path.is_relative_to(root) for root in plugins.installed_roots()):
        return True
    return SITES.isdisjoint(path.parts) and not path.is_relative_to(_STDLIB)


def place(error: BaseException) -> str | None:
    """Return the place in the user's code, such as 'mine/algorithms/choco.py, line 12'; None if it is not user code."""
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename):
        return f"{shown(error.filename)}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    return f"{shown(frames[-1].filename)}, line {frames[-1].lineno}" if frames else None


def sentence(error: BaseException) -> str:
    """Return what happened, without the place."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())}".rstrip(".: ")


def shown(file: str | Path) -> str:
    """A path as the user would write it."""
    path = Path(file).resolve()
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def shorten(error: BaseException) -> None:
    """Leave only the user's frames in the traceback of an exception, and in those of its causes."""
    if (cause := error.__cause__ or error.__context__) is not None:
        shorten(cause)
    steps, error.__traceback__ = list(_steps(error.__traceback__)), None
    for step in reversed(steps):
        if is_own(step.tb_frame.f_code.co_filename):
            error.__traceback__ = TracebackType(error.__traceback__, step.tb_frame, step.tb_lasti, step.tb_lineno)


def _steps(step: TracebackType | None) -> Iterator[TracebackType]:
    while step is not None:
        yield step
        step = step.tb_next


@contextmanager
def named(otherwise: str = "") -> Iterator[None]:
    """Convert an exception in the user's code to a ConfigError that names file and line; any other one to a ConfigError
    with the text `otherwise`, if given."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        where = place(error) or otherwise
        if not where:
            raise
        raise ConfigError(f"{where}: {sentence(error)}.") from error


@contextmanager
def calling(what: str) -> Iterator[None]:
    """An exception in a function that a setting names, `key=module:function`, becomes a ConfigError that names both."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        where = place(error)
        raise ConfigError(f"{what} fails{f' ({where})' if where else ''}: {sentence(error)}.") from error
