"""Where prepared data lives, and how it gets there: complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from decentral.errors import ConfigError
from decentral.store.digests import cache_folder


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, filled by `build(empty folder)` unless it is there already.

    One process builds while the others wait. The folder appears by one rename when it is complete, so a process that is
    killed midway leaves nothing that looks finished; what it does leave is removed by the next one.
    Raises ConfigError if the cache cannot be written, and whatever `build` raises.
    """
    from filelock import FileLock

    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if not folder.is_dir():
                _build_in_one_go(folder, build)
    except OSError as error:
        raise ConfigError(
            f"The prepared data cannot be written to {folder} ({error.strerror or error}): set the environment "
            "variable DECENTRAL_CACHE to a folder with room for it."
        ) from error
    return folder


def _build_in_one_go(folder: Path, build: Callable[[Path], None]) -> None:
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        build(unfinished)
        os.replace(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
