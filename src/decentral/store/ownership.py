"""Whose a run directory is: which run it belongs to, and which process may write it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from decentral.errors import ConfigError
from decentral.store.files import is_leftover, read_json, try_lock

LOCK = "run.lock"
LOG = "log.txt"  # what a launcher of many runs opens before the run begins
HEADER = "# run "  # before the run's id, at the beginning of config.yaml


class DirectoryTaken(ConfigError):
    """Another living process writes the run directory."""


class DirectoryLost(ConfigError):
    """The run directory that this process writes was deleted, moved or replaced."""


def take(lock: int, path: Path) -> None:
    """Take the lock, an open file, and write into it who has it.

    Raises DirectoryTaken if another process does, ConfigError where there are no locks.
    """
    try:
        free = try_lock(lock)
    except OSError as error:
        raise ConfigError(f"run_dir={path} is on a file system without locks: {error.strerror}.") from error
    if not free:
        writer = os.pread(lock, 1000, 0).decode(errors="replace").strip() or "another process"
        raise DirectoryTaken(f"run_dir={path} is being written by {writer}: wait for it, or choose another run_dir.")
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def recorded_id(path: Path) -> str | None:
    """The id of the run that a directory belongs to, from the first line of its configuration or from its status."""
    written = id_in_config(path)
    if written is not None:
        return written
    found = (read_json(path / "status.json") or {}).get("run_id")
    return found if isinstance(found, str) else None


def id_in_config(path: Path) -> str | None:
    """The id in the first line of the configuration; None if there is no such line."""
    try:
        with open(path / "config.yaml", encoding="utf-8") as file:
            first = file.readline()
    except (OSError, UnicodeDecodeError):
        return None
    return first.removeprefix(HEADER).strip() if first.startswith(HEADER) else None


def refuse_foreign(path: Path, run_id: str) -> None:
    """Raise ConfigError if there is something at `path` that is not the directory of this run."""
    try:
        if not path.exists():
            return
    except OSError as error:  # its name is too long, or a link to itself is in it
        raise ConfigError(f"run_dir={path} cannot be used ({error.strerror}): choose another folder.") from None
    if not path.is_dir():
        raise ConfigError(f"run_dir={path} is a file: choose a folder that is new or empty.")
    recorded = recorded_id(path)
    if recorded not in (None, run_id):
        raise ConfigError(f"run_dir={path} holds run {recorded}, this is run {run_id}: choose another run_dir.")
    entries = list(path.iterdir())
    link = next((one for one in [*entries, *path.glob("checkpoints/*")] if one.is_symlink()), None)
    if link is not None:
        raise ConfigError(f"{link} is a link, and a run writes into its own folder only: remove the link.")
    ours = [one for one in entries if one.name in (LOCK, LOG) or is_leftover(one.name)]
    if recorded is None and len(ours) < len(entries):  # more than a start that was killed leaves behind
        raise ConfigError(f"run_dir={path} has files in it but is no run directory: choose one that is new or empty.")
