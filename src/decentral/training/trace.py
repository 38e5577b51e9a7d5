"""The models of all workers after every step (`trace=true`), and the other fields of the state (`trace=state`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from decentral.errors import ConfigError
from decentral.store.files import replacing
from decentral.training.checkpoint import state_fields, tensors_of, whole_state
from decentral.training.stepper import Extension, Stepper

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from decentral.config.prepared import Prepared
    from decentral.network.world import World

_LONGEST = 8 << 30  # bytes


class Trace(Extension):
    """The trace, on the leader; all processes take part."""

    def __init__(self, run: Prepared, world: World, total_steps: int) -> None:
        self.world, self.total_steps = world, total_steps
        self.whole, self.asynchronous = run.config.trace == "state", run.kind.asynchronous
        self.iterates: Tensor = torch.empty(0)
        """[steps + 1, n, P]"""
        self.fields: dict[str, list[Tensor]] = {}
        """Per step: each field of the state if requested; `simulated_s` for asynchronous workers."""

    def check(self, stepper: Stepper) -> None:
        """Raise ConfigError for a trace that is too large; otherwise begin it with the initial models."""
        x, steps = stepper.models, self.total_steps + 1
        shape = steps, stepper.net.n, x.shape[-1]
        if math.prod(shape) * x.element_size() > _LONGEST:
            raise ConfigError(
                f"trace=true would keep {list(shape)} numbers in memory, more than 8 GiB: use fewer steps."
            )
        fields = [value for _, _, values in state_fields(stepper.state) for value in tensors_of(values)]
        if self.whole and sum(field.nbytes for field in fields) * steps * self.world.size > _LONGEST:
            raise ConfigError("trace=state would keep more than 8 GiB in memory: use fewer steps, or trace=true.")
        if self.world.leader:
            self.iterates = torch.empty(shape, dtype=x.dtype)
        self._note(stepper)

    def after_step(self, stepper: Stepper) -> None:
        """Deliver everything in flight, and trace the models."""
        stepper.flush()
        self._note(stepper)

    def _note(self, stepper: Stepper) -> None:
        models = stepper.net.gather(stepper.models)
        fields = whole_state(stepper.state, self.world) if self.whole else {}
        if not self.world.leader:
            return
        self.iterates[stepper.t] = models
        if self.asynchronous and stepper.simulated_s is not None:
            fields["simulated_s"] = torch.tensor(stepper.simulated_s, dtype=torch.float64)
        for name, value in fields.items():
            self.fields.setdefault(name, []).append(value)
        self.length = stepper.t + 1

    def state(self) -> dict[str, Any]:
        """Return the trace so far, on the leader."""
        if not self.world.leader:
            return {}
        fields = {name: torch.stack(values) for name, values in self.fields.items()}
        return {"trace": self.iterates[: self.length], "traced": fields}

    def load_state(self, part: dict[str, Any], step: int) -> None:
        """See `Extension`."""
        if self.world.leader:
            self.length = step + 1
            self.iterates[: self.length] = part["trace"]
            self.fields = {name: list(values) for name, values in part.get("traced", {}).items()}

    def store(self, directory: Path, stepper: Stepper) -> None:
        """Write `trace.npz`."""
        fields: dict[str, Any] = {name: torch.stack(values).numpy() for name, values in self.fields.items()}
        with replacing(directory / "trace.npz") as file:
            np.savez_compressed(file, iterates=self.iterates[: self.length].numpy(), **fields)
