"""Folders that a command would write to: refused, where they cannot be used, before torch is imported."""

from __future__ import annotations

import os
from pathlib import Path

from decentral.config.files import dump
from decentral.config.identity import run_directory, run_id
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.terminal.console import is_leader

_LONGEST_NAME, _LONGEST_PATH = 255, 4096 - 256  # of what Linux takes, less what lies below a run's folder


def check_directory(config: Config) -> None:
    """Refuse a run directory that cannot be used, before torch is imported; creates none."""
    from decentral.store import RunStore

    directory = run_directory(config)
    key = "run_dir" if config.run_dir else "results_dir"
    _check_length(key, getattr(config, key), directory)
    if not is_leader() or RunStore.finished(directory, run_id(config)) is not None:
        return
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        RunStore.open(directory, run_id(config), dump(config)).close()
        return
    check_writable(key, getattr(config, key), directory)


def check_writable(key: str, value: str, directory: Path) -> None:
    """Refuse a folder that was set by key=value, if it cannot be created or written; creates nothing."""
    _check_length(key, value, directory)
    parent = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not parent.is_dir():
        raise ConfigError(f"{key}={value} cannot be created, because {parent} is a file: choose another folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{key}={value} cannot be written, because {parent} is read-only for you: choose another folder."
        )


def _check_length(key: str, value: str, directory: Path) -> None:
    """Refuse a path that the system does not take, or not with the files of a run below it."""
    whole, part = len(os.fsencode(directory.absolute())), max(len(os.fsencode(name)) for name in directory.parts)
    if whole > _LONGEST_PATH or part > _LONGEST_NAME:
        raise ConfigError(
            f"{key}={value[:40]}... is too long: a name may have {_LONGEST_NAME} bytes, and the whole path "
            f"{_LONGEST_PATH}."
        )
