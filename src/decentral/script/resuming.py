"""Checkpoints of a script: `decentral.checkpoint` and `decentral.resume`, with one file per rank and step.

A rank writes `<path>/<step>/rank0of4.new.pt`. Once all ranks have written theirs, each renames its file to
`rank0of4.pt` and deletes its files of other steps. So the files of the newest step that every rank has, under either
name, are a whole checkpoint whenever a process dies, and a renamed file proves that all ranks had one.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from decentral.errors import ConfigError, check_at_least
from decentral.gradients.passes.worker_models import with_versions
from decentral.network.world import World
from decentral.registry import blame
from decentral.registry.typed import typed
from decentral.script.agreement import Proposal, agree, heard_by_all
from decentral.script.handle import hinted
from decentral.script.optimizer import DecentralizedOptimizer
from decentral.script.peers import Peers
from decentral.store.checkpoints import save_part
from decentral.store.files import at_home, make_folder, sync_directory

_GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "torch": (torch.get_rng_state, torch.set_rng_state),
    "cuda": (torch.cuda.get_rng_state, torch.cuda.set_rng_state),
    "numpy": (np.random.get_state, np.random.set_state),
    "python": (random.getstate, random.setstate),
}
"""The random generators of a process: how to read and to set their states."""


@typed("path", "model", "optimizer", "step", "peers")
@hinted()
def checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    step: int | None = None,
    peers: Peers | None = None,
    **extra: Any,
) -> None:
    """Save the training state of all ranks, each in its own file below `path`, atomically. All ranks call this at once.

    A file holds the model, the wrapped optimizer with the round and the algorithm's state, the extras, and the states
    of the random generators of torch, numpy and Python. The previous checkpoint is kept until all ranks have written.

    path     a folder, which need not be shared: a rank only reads its own files. One folder per training
    step     the number of the checkpoint; None: the round of the optimizer, which is the number of its steps
    peers    the group from `decentral.join`, for an optimizer that is not wrapped; it needs `step`
    extra    objects with a `state_dict`, such as a scheduler or a GradScaler; and values, such as epoch=3: tensors,
             numbers, text, and lists and dictionaries of them

    Raises ConfigError on every rank if one cannot write, or if the ranks are at different steps.
    """
    world, root, name, objects, values = _prepared(path, model, optimizer, peers, extra)
    step = getattr(optimizer, "round", -1) if step is None else step
    check_at_least("step", step, 0)
    agree(world, Proposal("checkpoint", f"{', '.join(objects | values)} at step {step}", (), ()))
    with heard_by_all(world):
        states = {key: each.state_dict() for key, each in objects.items()}
        generators = {
            key: state() for key, (state, _) in _GENERATORS.items() if key != "cuda" or torch.cuda.is_initialized()
        }
        make_folder(root)
        save_part(root, step, f"{name}.new", {"objects": states, "values": values, "generators": generators})
    agree(world, Proposal("checkpoint", f"the files of step {step}", (), ()))
    file = root / str(step) / f"{name}.pt"
    os.replace(file.with_name(f"{name}.new.pt"), file)
    sync_directory(file.parent)
    _keep_only(step, root, name)


@typed("path", "model", "optimizer", "peers")
@hinted()
def resume(
    path: str | Path, model: nn.Module, optimizer: Optimizer, *, peers: Peers | None = None, **extra: Any
) -> dict[str, Any]:
    """Load the newest checkpoint that all ranks have, after `decentral.wrap`, and return its values, with its "step".

    All ranks call this at once, with the arguments of `checkpoint`. Objects are loaded in place. Without a checkpoint,
    the given values are returned, with step 0. Training continues bit for bit if the script draws its data from the
    stored generators, or by step or epoch.

    Raises ConfigError on every rank if the files are of another number of ranks or do not fit the model, the method or
    the extras, or if a rank lacks its file of a checkpoint that was complete.
    """
    world, root, name, objects, values = _prepared(path, model, optimizer, peers, extra)
    files = {int(file.parent.name): file for end in (".new.pt", ".pt") for file in root.glob(f"[0-9]*/{name}{end}")}
    complete = [step for step, file in files.items() if file.name == f"{name}.pt"]
    others = {file.stem.partition("of")[2] for file in root.glob("[0-9]*/rank*of*[0-9].pt")} - {str(world.size)}
    problem = (
        f"{path} has files of {'/'.join(others)} ranks, not of {world.size}: start as many, or use another folder."
    )
    agree(world, Proposal("resume", ", ".join(objects), (), (), problem=problem if others else ""))
    seen = [json.loads(told) for told in world.collect_any(json.dumps([[*files], complete]).encode())]
    step = max(set.intersection(*(set(steps) for steps, _ in seen)), default=-1)
    newest = max((most for _, ended in seen for most in ended), default=-1)
    with heard_by_all(world):
        if step < newest:
            lacking = next(rank for rank, (steps, _) in enumerate(seen) if newest not in steps)
            raise ConfigError(
                f"rank {lacking} lacks its file {Path(path, str(newest), f'rank{lacking}of{world.size}.pt')}, which "
                "all ranks had: restore it, or start over in another folder."
            )
        _keep_only(step, root, name)
        if step >= 0:
            values = _load(files[step], objects)
    agree(world, Proposal("resume", f"step {step}", (), ()))
    return values | {"step": max(step, 0)}


def _prepared(
    path: str | Path, model: nn.Module, optimizer: Optimizer, peers: Peers | None, extra: dict[str, Any]
) -> tuple[World, Path, str, dict[str, Any], dict[str, Any]]:
    """Return the group, the folder, the name of this rank's files, the objects with a state to load, and the values."""
    group = optimizer.peers if isinstance(optimizer, DecentralizedOptimizer) else peers
    if group is None:
        raise ConfigError(
            f"optimizer= is a plain {type(optimizer).__name__}: give the one that decentral.wrap returned, or also "
            "peers=, from decentral.join."
        )
    if isinstance(optimizer, DecentralizedOptimizer) and optimizer.is_averaged:
        raise ConfigError("inside averaged(), all ranks have the mean instead of their own models: checkpoint outside.")
    given = {"model": model, "optimizer": optimizer} | extra
    objects = {key: each for key, each in given.items() if hasattr(each, "load_state_dict")}
    values = {key: each for key, each in given.items() if key not in objects}
    return group.world, at_home(path), f"rank{group.rank}of{group.size}", objects, values


def _keep_only(step: int, root: Path, name: str) -> None:
    """Delete this rank's files of other steps, and their folders, if empty."""
    for file in root.glob(f"[0-9]*/{name}.*"):
        if file.parent.name != str(step):
            file.unlink()
            with suppress(OSError):
                file.parent.rmdir()


def _load(file: Path, objects: dict[str, Any]) -> dict[str, Any]:
    """Load the objects and the random generators from a file; return its values."""
    try:
        saved = torch.load(file, weights_only=True, map_location="cpu")
        if differ := sorted(saved["objects"].keys() ^ objects.keys()):
            raise ConfigError(f"{differ[0]}= was given to one of decentral.checkpoint and decentral.resume only")
        for key, each in objects.items():
            state = saved["objects"][key]
            each.load_state_dict(with_versions(each, state) if isinstance(each, nn.Module) else state)
            if isinstance(each, DecentralizedOptimizer):
                each._accept_weights()
        for key, state in saved["generators"].items():
            if key != "cuda" or torch.cuda.is_initialized():
                _GENERATORS[key][1](state)
        return dict(saved["values"])
    except Exception as error:
        told = error if isinstance(error, ConfigError) else blame.sentence(error)
        raise ConfigError(f"{file} cannot be resumed: {told}") from error
