"""Optimizers of torch or of a user's module, by their dotted names: optim=torch.optim:RAdam."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.compression.rows import RowLayout
from decentral.errors import ConfigError
from decentral.optim.optimizer import Buffers, check_decay
from decentral.optim.rows import add, clip
from decentral.optim.torch_rule import TorchRule, l2
from decentral.registry import blame
from decentral.registry.signature import Plain, component_from, parameters_of, taken
from decentral.settings import Settings, setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


_TRIED = 12
"""Number of test steps before a run."""
_KEPT = (
    "keep it in state[parameter], as a tensor or a number, or as a number of the group, or use another optimizer, such "
    "as torch.optim:RAdam."
)
_SOME_RATE = 0.1
"""Initial learning rate of an optimizer whose current rate is 0."""


@dataclass
class PlainOptimizer(Plain, Settings, where="optim"):
    """A torch optimizer; its parameters are the settings, except the learning rate, which is `lr`.

    Each worker has one with a separate state, as if it trained alone: u_i = Opt_i(g_i). All parameters of the model are
    one group.

    clip_norm   maximum norm of each worker's gradient, clipped before the optimizer's step, as by
                `torch.nn.utils.clip_grad_norm_`
    """

    clip_norm: float | None = setting(None, above=0, hint="or null for no clipping", older=None)
    weight_decay = 0.0  # for optimizers without this parameter

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that the optimizer refuses, or if it cannot serve several workers at once."""
        if getattr(self, "maximize", False):
            raise ConfigError("optim.maximize=true cannot be used: training minimizes; leave it out.")
        self._try()

    def made(self, parameters: list[nn.Parameter], lr: float) -> Any:
        """Create the optimizer of a worker. Raises ConfigError if that fails."""
        with self.explained():
            made = self.target()(parameters, **self.settings(), **taken(self.target(), {"lr": lr}))
            if "lr" not in made.param_groups[0]:
                raise ConfigError(
                    f"optim={self.name} has no learning rate in its param_groups for lr= to set: use another optimizer."
                )
        return made

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Convert exceptions of the optimizer to ConfigError."""
        import torch

        try:
            with blame.named():
                yield
        except (ConfigError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ConfigError(
                f"optim={self.name} cannot be used: {blame.sentence(error)}; use another optimizer, such as "
                "torch.optim:RAdam."
            ) from error

    def rule(self, lr: Callable[[int], float], layout: RowLayout) -> TorchRows:
        """Return an optimizer for each worker, on rows of this layout."""
        return TorchRows(self, lr, layout)

    def _try(self) -> None:
        """Check that two workers with states in rows take the same steps as two with separate optimizers."""
        import torch

        x = torch.tensor([[0.1, -0.2, 0.3, 0.5], [-0.4, 0.2, -0.6, 0.1]])
        g = torch.tensor([[0.3, 0.1, -0.2, 0.4], [0.2, -0.5, 0.1, -0.3]])
        alone = [torch.nn.Parameter(row.view(2, 2).clone()) for row in x]
        optimizers = [self.made([parameter], 0.1) for parameter in alone]
        rows = TorchRows(self, lambda t: 0.1, RowLayout(("weight",), ((2, 2),)), clips=False)
        with torch.no_grad():
            buffers = rows.init(x)
            for t in range(_TRIED):
                for parameter, optimizer, row in zip(alone, optimizers, g * (t + 1), strict=True):
                    parameter.grad = row.view(2, 2)
                    with self.explained():
                        optimizer.step()
                rows.adapt(x, g * (t + 1), buffers, t)
        if not torch.equal(x, torch.stack([parameter.data.flatten() for parameter in alone])):
            raise ConfigError(
                f"optim={self.name} keeps data outside its parameters' state, or draws at random, so workers cannot "
                f"have separate copies: {_KEPT}"
            )


class _Slot(NamedTuple):
    """The position of an entry of an optimizer's state in the rows of a buffer."""

    owner: int | None
    """The parameter it belongs to; None: the group."""
    key: str
    kind: type
    shape: tuple[int, ...]
    buffer: int
    place: slice

    @property
    def is_number(self) -> bool:
        """Return whether it is a Python number, not a tensor."""
        return issubclass(self.kind, int | float)


class TorchRows(TorchRule):
    """A torch optimizer for each of k workers, with states in rows.

    A torch optimizer creates its state in its first step. So does each worker here, possibly at different steps: the
    first buffer is 1 for workers that have taken one.
    """

    def __init__(
        self, optimizer: PlainOptimizer, lr: Callable[[int], float], layout: RowLayout, clips: bool = True
    ) -> None:
        super().__init__()
        self.optimizer, self.lr, self._layout = optimizer, lr, layout
        self._clip_norm = optimizer.clip_norm if clips else None
        self._slots: list[_Slot] = []
        self._held = threading.local()
        self._weight_decay = 0.0
        self._proportional: bool | None = None
        self.changes: Callable[[int], dict[str, Any]] | None = None

    def scheduled(self, changes: Callable[[int], dict[str, Any]]) -> TorchRows:
        """Let a schedule change numbers of the group: step t -> their values."""
        self.changes = changes
        return self

    def init(self, x: Tensor) -> Buffers:
        """Return rows for the optimizer's state after two steps. Raises ConfigError if that is impossible."""
        import torch

        row = x[:1].clone()
        parameters = self._parameters(row)
        made = self.optimizer.made(parameters, self._rates(self.lr(0), len(x))[0] or _SOME_RATE)
        if len(made.param_groups) != 1:
            raise ConfigError(
                f"optim={self.optimizer.name} has {len(made.param_groups)} parameter groups instead of one: use "
                "another optimizer, such as torch.optim:RAdam."
            )
        group = made.param_groups[0]
        group.update(self.changes(0) if self.changes else {})
        before = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in group.items()}
        for _ in range(2):
            self._point(parameters, row[0], row[0].clone())
            with self.optimizer.explained(), torch.no_grad():
                made.step()
        self._weight_decay = l2(made, before)
        held: list[tuple[int | None, str, Any]] = [
            (owner, key, value) for owner, one in enumerate(parameters) for key, value in made.state[one].items()
        ]
        for key, value in group.items():
            if isinstance(value, torch.Tensor) and not (key in before and torch.equal(value, before[key])):
                raise ConfigError(
                    f"optim={self.optimizer.name} changes a tensor ('{key}') in its param_groups, which workers would "
                    f"share: {_KEPT}"
                )
            if isinstance(value, int | float) and before.get(key) != value:
                held.append((None, key, value))
        return self._laid_out(x, held)

    def _laid_out(self, x: Tensor, held: list[tuple[int | None, str, Any]]) -> Buffers:
        """Return a buffer for all entries of a common name and type; numbers stay on the CPU."""
        import torch

        self._slots, sizes = [], {("", torch.float64, torch.device("cpu")): 1}
        for owner, key, value in held:
            if value is not None and not isinstance(value, int | float | torch.Tensor):
                raise ConfigError(
                    f"optim={self.optimizer.name} keeps a {type(value).__name__} ('{key}') in its state, which only "
                    "holds tensors and numbers: use another optimizer, such as torch.optim:RAdam."
                )
            tensor = value if isinstance(value, torch.Tensor) else torch.tensor(0.0, dtype=torch.float64)
            kind = (key, tensor.dtype, tensor.device)
            start = sizes.get(kind, 0)
            sizes[kind] = start + tensor.numel()
            place = slice(start, sizes[kind])
            self._slots.append(_Slot(owner, key, type(value), tuple(tensor.shape), list(sizes).index(kind), place))
        return tuple(torch.zeros(len(x), size, dtype=kind[1], device=kind[2]) for kind, size in sizes.items())

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """Return the gradient, clipped, and with weight decay if that is part of the gradient; in g's memory."""
        g = self._clipped(g)
        return add(g, x, alpha=self._weight_decay) if self._weight_decay else g

    def direction(self, g: Tensor, x: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """See `TorchRule`. Raises ConfigError if the updates are not proportional to the rate."""
        check_decay(self.changes, t)
        if self._proportional is None:
            self._proportional = _is_proportional(self.optimizer)
        if not self._proportional:
            raise ConfigError(
                f"optim={self.optimizer.name} has updates that are not proportional to the learning rate, as this "
                "algorithm's formula requires: use another optimizer, or another algorithm, such as dpsgd."
            )
        return super().direction(g, x, buffers, t)

    def step_at(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, lr: float | None, regularised: bool = False
    ) -> None:
        """See `TorchRule`: the optimizer takes a step on each row."""
        rates = self._rates(self.lr(t) if lr is None else lr, len(x))
        if not regularised:
            g = self._clipped(g)
        if getattr(self._held, "parameters", None) is None:
            self._held.parameters = self._parameters(x)
            self._held.optimizer = self.optimizer.made(self._held.parameters, rates[0] or _SOME_RATE)
        parameters = self._held.parameters
        for row, (begun, rate) in enumerate(zip(buffers[0].flatten().tolist(), rates, strict=True)):
            self._point(parameters, x[row], g[row])
            made = self._held.optimizer if begun else self.optimizer.made(parameters, rate or _SOME_RATE)
            if begun:
                self._load(made, parameters, buffers, row)
            group = made.param_groups[0]
            group.update(self.changes(t) if self.changes else {})
            decay = group.get("weight_decay")
            group["lr"] = group["lr"].fill_(rate) if hasattr(group["lr"], "fill_") else rate  # as torch's schedulers do
            if regularised and self._weight_decay:
                group["weight_decay"] = 0.0
            before = _numbers(group), _numbers(vars(made))
            with self.optimizer.explained():
                made.step()
            self._check_kept(made, parameters, *before)
            for one, place in zip(parameters, self._layout.slices, strict=True):
                if one.data_ptr() != x[row, place].data_ptr():  # it moved the parameter to other memory
                    x[row, place] = one.data.reshape(-1)
            if decay is not None:
                group["weight_decay"] = decay
            self._store(made, parameters, buffers, row)
            buffers[0][row] = 1

    def _rates(self, lr: Any, k: int) -> list[float]:
        """Return k workers' rates; `lr` is a number or rates [k, 1]. Raises ConfigError for rates per coordinate."""
        if isinstance(lr, int | float):
            return [lr] * k
        if lr.shape != (k, 1):
            raise ConfigError(f"optim={self.optimizer.name} has one learning rate for all parameters: use optim=sgd.")
        rates: list[float] = lr.flatten().tolist()
        return rates

    def _clipped(self, g: Tensor) -> Tensor:
        return g if self._clip_norm is None else clip(g, self._clip_norm)

    def _parameters(self, x: Tensor) -> list[nn.Parameter]:
        from torch import nn

        return [nn.Parameter(x.new_zeros(shape)) for shape in self._layout.shapes]

    def _point(self, parameters: list[nn.Parameter], x: Tensor, g: Tensor) -> None:
        """Make the parameters views of a row x [P], and their gradients views of g [P]."""
        for one, place, shape in zip(parameters, self._layout.slices, self._layout.shapes, strict=True):
            one.grad = None
            one.data, one.grad = x[place].view(shape), g[place].view(shape)

    def _load(self, made: torch.optim.Optimizer, parameters: list[nn.Parameter], buffers: Buffers, row: int) -> None:
        made.state.clear()
        for slot in self._slots:
            part = buffers[slot.buffer][row, slot.place].view(slot.shape)
            value = None if slot.kind is type(None) else slot.kind(part.item()) if slot.is_number else part
            self._owner(made, parameters, slot)[slot.key] = value

    def _store(self, made: torch.optim.Optimizer, parameters: list[nn.Parameter], buffers: Buffers, row: int) -> None:
        for slot in self._slots:
            part = buffers[slot.buffer][row, slot.place].view(slot.shape)
            value = self._owner(made, parameters, slot)[slot.key]
            if slot.is_number:
                part.fill_(value)
            elif value is not None and value.data_ptr() != part.data_ptr():
                part.copy_(value)

    def _check_kept(
        self,
        made: torch.optim.Optimizer,
        parameters: list[nn.Parameter],
        group: dict[str, float],
        attributes: dict[str, float],
    ) -> None:
        """Raise ConfigError for state that it keeps or changed in this step but that no row holds."""
        held = {(slot.owner, slot.key) for slot in self._slots}
        new = [key for owner, one in enumerate(parameters) for key in made.state[one] if (owner, key) not in held]
        now = _numbers(made.param_groups[0])
        new += [key for key, value in group.items() if now.get(key) != value and (None, key) not in held]
        now = _numbers(vars(made))
        new += [key for key, value in attributes.items() if now.get(key) != value]
        if new:
            raise ConfigError(
                f"optim={self.optimizer.name} keeps or changes '{new[0]}', which is not in its parameters' state "
                "after two steps, so workers cannot have separate copies: use another optimizer, such as "
                "torch.optim:RAdam."
            )

    def _owner(self, made: torch.optim.Optimizer, parameters: list[nn.Parameter], slot: _Slot) -> dict[str, Any]:
        return made.param_groups[0] if slot.owner is None else made.state[parameters[slot.owner]]


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in values.items() if isinstance(value, int | float) and key[0] != "_"}


def _is_proportional(optimizer: PlainOptimizer) -> bool:
    """Return whether ten times the learning rate gives ten times the update, from the same state."""

    def update(rate: float) -> Tensor:
        import torch

        from decentral.compression.rows import RowLayout

        rows = TorchRows(optimizer, lambda t: rate if t == 2 else 0.1, RowLayout(("weight",), ((2, 2),)))
        g = torch.tensor([[0.3, 0.1, -0.2, 0.4]], dtype=torch.float64)
        x = torch.zeros_like(g)
        buffers = rows.init(x)
        for t in range(2):
            rows.adapt(x, g * (t + 1), buffers, t)
        return rows(g.clone(), x, buffers, 2)[0]

    return bool((update(1.0) - 10 * update(0.1)).abs().max() < 1e-9)


def plain(name: str, target: Callable[..., Any]) -> type:
    """Return the optimizer of this name that calls a class or function."""
    first = next(iter(parameters_of(target)), "")
    return component_from("optim", name, target, PlainOptimizer, (first, "lr"))
