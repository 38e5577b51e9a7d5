"""The trained models of a run, in `models.safetensors` of its directory: tensors by name, and nothing that is executed.

`worker3.<name>` is a tensor of worker 3's model, `averaged.<name>` one of the averaged model, where <name> is that of
the `nn.Module`'s `state_dict`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decentral.errors import ConfigError
from decentral.store.files import sync_directory

if TYPE_CHECKING:
    from torch import Tensor

FILE = "models.safetensors"
AVERAGED = "averaged"
_HINT = "delete the run's directory and repeat the run"


class Models(NamedTuple):
    """What is in the file: the tensors of each model, and what is known of them all."""

    models: dict[str, dict[str, Tensor]]
    """`averaged`, `worker0`, ... -> name -> tensor."""
    facts: dict[str, str]
    """run_id, step, and what else the writer knew."""


def save_models(directory: Path, models: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, object]) -> None:
    """Replace the file atomically and durably. Raises OSError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    places: set[int] = set()
    for model, named in models.items():
        for name, tensor in named.items():
            own = tensor.detach().cpu().contiguous()  # views of rows stay: a copy would be as large as all models
            tensors[f"{model}.{name}"] = own.clone() if own.data_ptr() in places else own
            places.add(own.data_ptr())
    temporary = directory / f".{FILE}.tmp"
    try:
        save_file(tensors, temporary, metadata={key: str(value) for key, value in facts.items()})
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, directory / FILE)
    except SafetensorError as error:  # it says an operating system's error in words only
        full = "os error 28" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error), str(directory / FILE)) from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(directory)


def stored_facts(directory: Path) -> dict[str, str]:
    """What the writer knew of the models; {} if there are none. Never raises."""
    if not (directory / FILE).is_file():
        return {}
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(directory / FILE, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError):
        return {}


def load_models(directory: Path, run_id: str | None = None) -> Models:
    """What `save_models` wrote.

    Raises ConfigError if there is no such file, if it is damaged, or belongs to another run than `run_id`.
    """
    from safetensors import SafetensorError, safe_open

    path = directory / FILE
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: the run is not finished, or was made with save=none.")
    models: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            facts = dict(file.metadata() or {})
            for key in file.keys():  # noqa: SIM118
                model, _, name = key.partition(".")
                models.setdefault(model, {})[name] = file.get_tensor(key)
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged ({error}): {_HINT}.") from None
    if "run_id" not in facts or (run_id is not None and facts["run_id"] != run_id):
        theirs = f"run {facts['run_id']}" if "run_id" in facts else "no run of decentral"
        raise ConfigError(f"{path} belongs to {theirs}, not to run {run_id or directory.name}: {_HINT}.")
    return Models(models, facts)
