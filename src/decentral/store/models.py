"""The trained models of a run, in `models.safetensors` of its directory: named tensors without executable content.

`worker3.<name>` is a tensor of worker 3's model, `averaged.<name>` one of the averaged model, where <name> is that of
the `nn.Module`'s `state_dict`. The header has what safetensors does not support: `tied`, names that share a tensor;
`complex`, tensors stored as pairs of real numbers; `extra`, results of `get_extra_state`; and `sha256`, of all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decentral.errors import ConfigError
from decentral.store.files import sync_directory

if TYPE_CHECKING:
    from torch import Tensor

FILE = "models.safetensors"
AVERAGED = "averaged"
_HINT = "delete the run's directory and repeat the run"
_SEQUENCES: dict[str, Any] = {each.__name__: each for each in (list, tuple, set, deque)}
_MAPPINGS: dict[str, Any] = {each.__name__: each for each in (dict, OrderedDict)}


def packed(value: Any) -> Any:
    """A plain value as tensors, numbers, strings, None and lists of these. Raises TypeError for any other."""
    import torch

    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is torch.Tensor and not value.requires_grad:
        return value.clone()
    if type(value) is complex:
        return ["complex", value.real, value.imag]
    if isinstance(value, np.ndarray | np.generic):
        return ["array", torch.from_numpy(np.array(value))]
    kind = type(value).__name__
    if type(value) is _SEQUENCES.get(kind):
        return [kind, [packed(one) for one in (sorted(value, key=repr) if kind == "set" else value)]]
    if type(value) is _MAPPINGS.get(kind):
        return [kind, [[packed(key), packed(one)] for key, one in value.items()]]
    raise TypeError(f"a {kind} is no plain value")


def unpacked(value: Any) -> Any:
    """The inverse of `packed`."""
    if not isinstance(value, list):
        return value.clone() if hasattr(value, "clone") else value
    kind, *rest = value
    if kind == "complex":
        return complex(*rest)
    if kind == "array":
        return rest[0].numpy().copy()
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]((unpacked(key), unpacked(one)) for key, one in rest[0])
    return _SEQUENCES[kind](map(unpacked, rest[0]))


def save_models(directory: Path, models: Mapping[str, Mapping[str, Any]], facts: Mapping[str, object]) -> None:
    """Replace the file atomically and durably. Raises OSError; TypeError for extra state that is not a plain value."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors, header = _flattened(models)
    header |= {key: str(value) for key, value in facts.items()}
    temporary = directory / f".{secrets.token_hex(8)}.tmp"  # a name as in `files.replacing`
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        mode = os.fstat(descriptor).st_mode
        os.close(descriptor)
        save_file(tensors, temporary, metadata=header | {"sha256": _digest(tensors, header)})
        os.chmod(temporary, mode)  # safetensors creates files readable by the owner only
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, directory / FILE)
    except SafetensorError as error:  # it reports an operating system's error as text only
        full = "os error 28" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error), str(directory / FILE)) from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(directory)


def _flattened(models: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of all models in one dict, and their header."""
    import torch

    tensors, tied, extra, numbers = dict[str, torch.Tensor](), dict[str, str](), dict[str, Any](), list[str]()
    places: dict[tuple[object, ...], str] = {}
    memory: set[int] = set()
    for model, named in models.items():
        for name, value in named.items():
            key = f"{model}.{name}"
            if not isinstance(value, torch.Tensor):
                extra[key] = packed(value)
                continue
            own = value.detach().cpu()
            place = own.data_ptr(), own.shape, own.stride(), own.dtype
            if own.numel() and place in places:
                tied[key] = places[place]
                continue
            places[place] = key
            if own.is_complex():
                own, numbers = torch.view_as_real(own.resolve_conj()), [*numbers, key]
            own = own.contiguous()  # keeps views of rows: a copy would be as large as all models
            tensors[key] = own.clone() if own.data_ptr() in memory else own
            memory.add(own.data_ptr())

    def take(tensor: Tensor) -> dict[str, str]:
        key = f"extra.{sum(name.startswith('extra.') for name in tensors)}"
        tensors[key] = tensor.cpu().contiguous()
        return {"tensor": key}

    said: dict[str, Any] = {"tied": tied, "complex": numbers, "extra": extra}
    return tensors, {key: json.dumps(value, default=take) for key, value in said.items() if value}


def _digest(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """Return the digest of the file's content, except this digest."""
    import torch

    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for key in sorted(tensors):
        tensor = tensors[key]
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def stored_facts(directory: Path) -> dict[str, str]:
    """Return the writer's facts on the models; {} if there are none. Never raises."""
    from safetensors import SafetensorError, safe_open

    try:
        with open(directory / FILE, "rb"), safe_open(directory / FILE, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError):
        return {}


def load_models(directory: Path, run_id: str | None = None) -> dict[str, dict[str, Any]]:
    """Load the output of `save_models`: `averaged`, `worker0`, ... -> name -> tensor, or extra state.

    Raises ConfigError if the file is missing, unreadable, damaged, or belongs to another run than
    `run_id`.
    """
    from safetensors import SafetensorError, safe_open

    path = directory / FILE
    try:
        with open(path, "rb"), safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if "run_id" not in header or (run_id is not None and header["run_id"] != run_id):
            theirs = f"run {header['run_id']}" if "run_id" in header else "no run of decentral"
            raise ConfigError(f"{path} belongs to {theirs}, not to run {run_id or directory.name}: {_HINT}.")
        written = header.pop("sha256", None)  # those that are older have none
        if written is not None and written != _digest(tensors, header):
            raise ValueError("its content does not match its checksum")
        return _models(tensors, header)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: the run is not finished, or was made with save=none.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (SafetensorError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"{path} is damaged ({error}): {_HINT}.") from None


def _models(tensors: dict[str, Tensor], header: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The inverse of `_flattened`."""
    import torch

    said = {key: json.loads(header.pop(key)) for key in ("tied", "complex") if key in header}
    named = lambda found: tensors.pop(found["tensor"]) if found.keys() == {"tensor"} else found  # noqa: E731
    extra = json.loads(header.pop("extra", "{}"), object_hook=named)
    # a copy: the file aligns its numbers to 8 bytes, and torch reads complex ones from 16
    aligned = {key: torch.view_as_complex(tensors[key].clone()) for key in said.get("complex", ())}
    every: dict[str, Any] = tensors | aligned
    every |= {key: every[other] for key, other in said.get("tied", {}).items()}
    every |= {key: unpacked(value) for key, value in extra.items()}
    models: dict[str, dict[str, Any]] = {}
    for key, value in every.items():
        model, _, name = key.partition(".")
        if model != AVERAGED and not re.fullmatch(r"worker\d{1,9}", model):
            raise ValueError(f"{key[:40]!r} belongs to no worker")
        models.setdefault(model, {})[name] = value
    if AVERAGED not in models:
        raise ValueError("there is no averaged model")
    return models
