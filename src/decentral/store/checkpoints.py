"""Checkpoints: every process writes its part, then one of them writes a manifest of sizes and hashes, last.

A directory without a manifest is not a checkpoint. Neither truncation nor a flipped bit goes unnoticed, which
torch.load alone does not promise; the previous checkpoint is kept for that case. The manifest names the run and the
step, so that one which was moved or comes from another run is not taken, and knows the rows of metrics that there were.
Only tensors and plain values are stored, and they are read with the restricted unpickler.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from decentral.store.files import encode, read_json, replacing, write_json
from decentral.store.metrics import Extent, LineFile

KEPT = 2
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every part has been validated."""

    step: int
    path: Path
    parts: tuple[str, ...]
    meta: dict[str, Any]


class Written(NamedTuple):
    """The expected size and hash of a part on disk."""

    size: int
    sha256: str

    def facts(self) -> dict[str, Any]:
        """The same for the manifest."""
        return {"bytes": self.size, "sha256": self.sha256}

    def pack(self) -> bytes:
        """The same as 40 bytes, to be sent to the process that writes the manifest."""
        return self.size.to_bytes(8, "big") + bytes.fromhex(self.sha256)

    @classmethod
    def unpack(cls, packed: bytes) -> Written:
        """The inverse of `pack`."""
        return cls(int.from_bytes(packed[:8], "big"), packed[8:].hex())


class _Hashing:
    """A file that is written from its beginning to its end, and hashed on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, content: bytes) -> int:
        self._digest.update(content)
        self._size += len(content)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()

    def written(self) -> Written:
        return Written(self._size, self._digest.hexdigest())


def save_part(root: Path, step: int, part: str, tensors: dict[str, Any]) -> Written:
    """Write `root/<step>/<part>.pt`, atomically: nested dicts and lists of tensors, numbers, strings and None.

    Returns its size and hash, for the manifest.

    Raises OSError if it cannot be written (disk full), without leaving anything behind. TypeError for anything that the
    restricted unpickler would refuse to read.
    """
    import torch

    directory = root / str(step)
    for folder in (root, directory):  # no parents: a deleted run stays deleted
        folder.mkdir(exist_ok=True)
    path = directory / f"{part}.pt"
    content = _storable(tensors)
    try:
        with replacing(path) as file:
            hashing = _Hashing(file)
            torch.save(content, hashing)  # type: ignore[arg-type]
    except BaseException as error:
        cause = error.__context__ if isinstance(error, RuntimeError) else error  # torch wraps the error of a full disk
        if not isinstance(cause, OSError):
            raise
        number = cause.errno or errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error
    return hashing.written()


def _storable(value: Any) -> Any:
    """Return `value` with numbers and lists for those of NumPy, and with its tensors detached and cut out of larger
    storages (a view is saved with all of its storage)."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach()
        return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
    if isinstance(value, dict):
        return {key: _storable(v) for key, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_storable(v) for v in value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if value is None or type(value) in (int, float, bool, str):
        return value
    raise TypeError(f"a checkpoint holds tensors, numbers, strings, dicts and lists, not {type(value).__name__}")


def load_part(checkpoint: Checkpoint, part: str) -> dict[str, Any]:
    """The content of one part, on the CPU."""
    import torch

    return torch.load(checkpoint.path / f"{part}.pt", weights_only=True, map_location="cpu", mmap=True)


def commit(
    root: Path, step: int, parts: Mapping[str, Written], meta: dict[str, Any], run_id: str | None, metrics: Extent
) -> None:
    """Commit the parts, which must all exist, as a checkpoint; delete other files in its directory.

    `metrics` are the rows that the run has written so far.
    """
    directory = root / str(step)
    for part, written in parts.items():
        file = directory / f"{part}.pt"
        if file.stat().st_size != written.size:
            raise OSError(errno.EIO, f"has not the {written.size} bytes that were written", str(file))
    facts = {part: written.facts() for part, written in parts.items()}
    known = {"run_id": run_id, "step": step, "metrics": metrics._asdict(), "parts": facts, "meta": meta}
    content = json.loads(json.dumps(encode(known)))
    write_json(directory / _MANIFEST, content | {"sha256": _digest(content)})
    for file in directory.iterdir():
        if file.name != _MANIFEST and file.name not in {f"{part}.pt" for part in parts}:
            file.unlink()


def prune(root: Path, step: int, known_valid: set[int], run_id: str | None) -> None:
    """Delete all checkpoints up to `step` except the newest two valid ones; later steps may be in progress.

    Those in `known_valid` are not hashed again.
    """
    kept = 0
    for other in [s for s in _steps(root) if s <= step]:
        if kept < KEPT and (other in known_valid or isinstance(validate(root, other, run_id), Checkpoint)):
            known_valid.add(other)
            kept += 1
        else:
            known_valid.discard(other)
            _remove_step(root, other)


def remove(root: Path) -> None:
    """Delete all checkpoints."""
    for step in _steps(root):
        _remove_step(root, step)


def _remove_step(root: Path, step: int) -> None:
    (root / str(step) / _MANIFEST).unlink(missing_ok=True)  # first: what is left if we die now is no checkpoint
    shutil.rmtree(root / str(step), ignore_errors=True)  # the next time will do


def newest(root: Path, run_id: str | None, metrics: LineFile | None) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that validates, and a sentence for each one that is newer and does not."""
    rejected: list[str] = []
    for step in _steps(root):
        found = validate(root, step, run_id, metrics)
        if isinstance(found, Checkpoint):
            return found, rejected
        if found is not None:
            rejected.append(found)
    return None, rejected


def newest_step(root: Path) -> int:
    """Return the step of the newest finished checkpoint, without validation; 0 if there is none."""
    return next((step for step in _steps(root) if (root / str(step) / _MANIFEST).exists()), 0)


def validate(root: Path, step: int, run_id: str | None, metrics: LineFile | None = None) -> Checkpoint | str | None:
    """Return the checkpoint of this step, a sentence on what is wrong with it, or None if it was never finished.

    `metrics` are those of the run, to check them, too.
    """
    directory = root / str(step)
    if not (directory / _MANIFEST).exists():
        return None
    manifest = read_json(directory / _MANIFEST) or {}
    written, parts = manifest.pop("sha256", None), manifest.get("parts")
    described = isinstance(parts, dict) and parts and all(isinstance(part, dict) for part in parts.values())
    whole = written == _digest(manifest) and described and isinstance(manifest.get("meta"), dict)
    if not whole:
        return f"The checkpoint of step {step} is damaged ({_MANIFEST} does not match its checksum)."
    if foreign := _foreign(manifest, step, run_id, metrics):
        return f"The checkpoint of step {step} is not used ({foreign})."
    for part, expected in manifest["parts"].items():
        file = directory / f"{part}.pt"
        try:
            if file.stat().st_size == expected.get("bytes") and _facts(file) == expected:
                continue
        except OSError:
            pass
        return f"The checkpoint of step {step} is damaged ({file.name} does not match its checksum)."
    return Checkpoint(step, directory, tuple(manifest["parts"]), manifest["meta"])


def _foreign(manifest: dict[str, Any], step: int, run_id: str | None, metrics: LineFile | None) -> str | None:
    """Why a checkpoint is not this one of this run. One that an older version has written does not say everything."""
    if manifest.get("step") != step:
        return f"it belongs to step {manifest.get('step')}, not to its folder"
    if manifest.get("run_id", run_id) != run_id:
        return f"it belongs to run {manifest['run_id']}, not to run {run_id}"
    if metrics is None or "metrics" not in manifest:
        return None
    then = Extent(**manifest["metrics"])
    if metrics.extent_of(then.num_lines) != then:
        return f"{metrics.path.name} has lost some of its {then.num_lines} rows"
    return None


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(encode(content), sort_keys=True).encode()).hexdigest()


def _facts(file: Path) -> dict[str, Any]:
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return Written(os.fstat(stream.fileno()).st_size, digest).facts()


def _steps(root: Path) -> list[int]:
    """The steps that have a directory, newest first."""
    if not root.is_dir():
        return []
    return sorted((int(entry.name) for entry in root.iterdir() if entry.name.isdecimal()), reverse=True)


def at(root: Path, step: int) -> Checkpoint:
    """The checkpoint of this step, which another process has just validated: only its manifest is read."""
    directory = root / str(step)
    manifest = read_json(directory / _MANIFEST)
    if manifest is None:
        raise OSError(errno.ENOENT, "no checkpoint: the processes of a run need a shared file system", str(directory))
    return Checkpoint(step, directory, tuple(manifest["parts"]), manifest["meta"])
