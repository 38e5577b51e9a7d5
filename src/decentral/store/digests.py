"""Cached digests of file contents: the ID of a run depends on the content of its files, not on sizes and times."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError
from decentral.store.files import at_home, write_text
from decentral.store.run_store import LOCK
from decentral.terminal.display import unless_quick

_SETTLED_NS = 2_000_000_000
"""Minimum age of a file's times for them to reveal a later change."""
_MANY = 1_000  # with more files, their facts are not read every time
_WORTH_KEEPING_S = 0.5
_CHUNK = 1 << 20

_KNOWN: dict[str, dict[str, tuple[list[int], str]]] = {}
"""Folder -> file -> what the file system said of it before it was read, and the digest."""
_LATELY: dict[tuple[str, int], tuple[float, str]] = {}
"""Many files -> until when their digest is taken for granted, and this."""


def cache_folder() -> Path:
    """`$DECENTRAL_CACHE`, else `~/.cache/decentral`."""
    return at_home(os.environ.get("DECENTRAL_CACHE") or "~/.cache/decentral")


def file_digest(path: Path) -> str:
    """The digest of one file, see `file_digests`."""
    return file_digests(path.parent, [path.name])[0]


def by_content(value: Any) -> Any:
    """A setting in which a path of a file or folder is replaced by its name and digest; in lists and dictionaries, too.

    Stored runs in a folder do not count, nor does a folder that the program works in.
    """
    if isinstance(value, list | tuple):
        return [by_content(one) for one in value]
    if isinstance(value, dict):
        return {key: by_content(one) for key, one in value.items()}
    if not isinstance(value, str) or not os.path.exists(path := os.path.expanduser(value)):
        return value
    if os.path.isfile(path):
        return [os.path.basename(path), file_digest(Path(path))]
    if not os.path.isdir(path) or Path.cwd().is_relative_to(os.path.realpath(path)):
        return value
    names = files_below(Path(path))
    runs = tuple(name.removesuffix(LOCK) for name in names if name.endswith(os.sep + LOCK))
    return [Path(path).name, folder_digest(Path(path), [name for name in names if not name.startswith(runs)])]


def folder_digest(root: Path, names: Sequence[str]) -> str:
    """A digest of the names and contents of these files of a folder.

    If there are more than 1,000, they are not looked at again for 20 times as long as that took, up to 2 minutes.
    """
    asked = os.path.abspath(root), hash(tuple(names))
    until, digest = _LATELY.get(asked, (0.0, ""))
    if (begun := time.monotonic()) < until:
        return digest
    lines = "".join(f"{name}\0{digest}\n" for name, digest in zip(names, file_digests(root, names), strict=True))
    digest = hashlib.sha256(os.fsencode(lines)).hexdigest()[:16]
    if len(names) > _MANY:
        now = time.monotonic()
        _LATELY[asked] = now + min(120.0, 20 * (now - begun)), digest
    return digest


def file_digests(root: Path, names: Sequence[str]) -> list[str]:
    """Return 16 hexadecimal digits of the SHA-256 of each file.

    A file is read again unless size, times and inode are unchanged and its times were older than two seconds at the
    reading. Slow results are cached for other processes.
    """
    begun, folder = time.monotonic(), os.path.abspath(root)
    stored = cache_folder() / "digests" / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}.json"
    if folder not in _KNOWN:
        _KNOWN[folder] = {}
        with suppress(OSError, ValueError, TypeError, AttributeError):  # missing, or not ours
            found = json.loads(stored.read_text(encoding="utf-8"))
            _KNOWN[folder] = {name: (facts, str(digest)) for name, (facts, digest) in found.items()}
    known = _KNOWN[folder]
    facts = {name: _facts(os.path.join(folder, name)) for name in names}
    stale = [name for name, each in facts.items() if known.get(name, ([], ""))[0] != each]
    fresh, size = dict[str, str](), sum(facts[name][0] for name in stale)
    with unless_quick(f"Hashing {len(stale):,} files of {root}", size) as advance:
        for name in stale:
            settled = max(facts[name][1:3]) < time.time_ns() - _SETTLED_NS
            fresh[name] = _digest(os.path.join(folder, name), advance)
            if settled:
                known[name] = facts[name], fresh[name]
    if stale and time.monotonic() - begun > _WORTH_KEEPING_S:
        with suppress(OSError):  # the cache is not writable
            stored.parent.mkdir(parents=True, exist_ok=True)
            write_text(stored, json.dumps(known))
    return [fresh[name] if name in fresh else known[name][1] for name in names]


def walked(folder: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (folder, names of its files, names of other non-folders) for this folder and all below it.

    Links are followed, except to their parent folders. Raises ConfigError for an unreadable folder.
    """
    real = os.path.realpath(folder)
    if any(one == real or one.startswith(os.path.join(real, "")) for one in above):
        return
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: "folder" if _is(entry.is_dir) else _is(entry.is_file) for entry in entries}
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read ({error.strerror}): make it readable.") from error
    yield folder, [name for name, kind in found.items() if kind is True], [name for name in found if not found[name]]
    for name in (name for name, kind in found.items() if kind == "folder"):
        yield from walked(os.path.join(folder, name), (*above, real))


def files_below(folder: Path) -> list[str]:
    """All files of a folder and of those below it, by their paths from there."""
    root = str(folder)
    return sorted(os.path.relpath(os.path.join(each, name), root) for each, names, _ in walked(root) for name in names)


def _is(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except OSError:  # a link to itself
        return False


def _facts(path: str) -> list[int]:
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _digest(path: str, advance: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()[:16]
