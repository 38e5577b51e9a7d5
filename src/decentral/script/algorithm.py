"""An algorithm of `decentral-run` in a script: its own steps, with a torch optimizer as the local rule (`algo=`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from decentral.algorithms.algorithm import Algorithm
from decentral.compression.compressor import Compressor
from decentral.compression.dense import NoCompression
from decentral.errors import ConfigError
from decentral.network.network import Network
from decentral.optim.optimizer import Buffers
from decentral.optim.torch_rule import TorchRule, l2
from decentral.script.parameters import Guard, ParameterRow


class ScriptRule(TorchRule):
    """The torch optimizer of a script, k = 1. The buffers stay in the optimizer's own state."""

    def __init__(self, optimizer: Optimizer, parameters: ParameterRow) -> None:
        super().__init__()
        self._optimizer, self._parameters = optimizer, parameters

    def lr(self, t: int) -> float:
        """The learning rate that all groups of parameters have now.

        Raises ConfigError if they differ: an algorithm that asks has one learning rate in its formula.
        """
        rates = {float(group["lr"]) for group in self._optimizer.param_groups}
        if len(rates) != 1:
            told = " and ".join(f"{rate:g}" for rate in sorted(rates))
            raise ConfigError(
                f"this algorithm has one learning rate in its formula, but the parameter groups have {told}: give all "
                "groups the same lr, or use an algorithm without this restriction, such as algo='dpsgd'."
            )
        return rates.pop()

    def init(self, x: Tensor) -> Buffers:
        """None: they are the torch optimizer's."""
        return ()

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """g + weight_decay x where the optimizer's weight decay is part of the gradient; in g's memory.

        Raises ConfigError for an optimizer that ascends: the momentum of the algorithms that ask for this descends.
        """
        if any(group.get("maximize") for group in self._optimizer.param_groups):
            raise ConfigError(
                "maximize=True cannot be used with an algorithm with its own momentum: minimize the negative "
                "objective instead."
            )
        sizes = [parameter.numel() for parameter in self._parameters.parameters]
        decays = {p: l2(self._optimizer, group) for group in self._optimizer.param_groups for p in group["params"]}
        if any(decays.values()):
            parts = zip(self._parameters.parameters, g.view(-1).split(sizes), x.view(-1).split(sizes), strict=True)
            for parameter, row, values in parts:
                row.add_(values, alpha=decays[parameter])
        return g

    def step_at(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, lr: float | None, regularised: bool = False
    ) -> None:
        """See `TorchRule`."""
        self._parameters.move_to(x)
        groups = self._optimizer.param_groups
        keys: tuple[str, ...] = ("lr", "weight_decay")
        own = [{key: group[key] for key in keys if key in group} for group in groups]
        for group in groups:
            if lr is not None:
                group["lr"] = lr
            if regularised and l2(self._optimizer, group):  # the gradients have it
                group["weight_decay"] = 0.0
        try:
            with self._parameters.with_gradient(g):
                self._optimizer.step()
        finally:
            for group, settings in zip(groups, own, strict=True):
                group.update(settings)


class AlgorithmStep:
    """The steps of an algorithm. Between them the parameters are `algorithm.models(state)`, in that very memory."""

    def __init__(
        self,
        net: Network,
        parameters: ParameterRow,
        inner: Optimizer,
        algorithm: Algorithm,
        compressor: Compressor,
        guard: Guard,
    ) -> None:
        """`compressor` is bound to the rows of these parameters."""
        self.net, self.inner, self.round, self.guard = net, inner, 0, guard
        self.accumulating, self.away = False, False  # nothing is sent before `step` anyhow
        self._parameters = parameters
        self._algorithm = algorithm.bind(ScriptRule(inner, parameters), compressor)
        self._asked = False
        self._set(self._algorithm.init(parameters.row, net))

    @property
    def name(self) -> str:
        """As `decentral.wrap` was told."""
        compressor = self._algorithm.compressor
        sent = "" if isinstance(compressor, NoCompression) else f", compress={compressor!r}"
        return f"algo={self._algorithm!r}{sent}"

    @property
    def rows(self) -> list[Tensor]:
        """The parameters, as a row [1, P] that may be written to."""
        return [self._parameters.row]

    @property
    def under_way(self) -> bool:
        """Whether rows of a step that is not finished are travelling: never."""
        return False

    def step(self) -> None:
        """One step with the gradients that have been accumulated."""
        self._asked = False
        self._set(self._algorithm.step(self._state, self._gradient, self.net, self.round))
        self.round += 1

    def flush(self) -> None:
        """Bring home what is on its way, together with all other ranks."""
        self._set(self._algorithm.flush(self._state, self.net))

    def change(self) -> str:
        """Why what is trained is not what was laid out; "" if it is."""
        return self.guard.change(self._parameters.in_place())

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the optimizer's state: the round and the algorithm's tensors of this rank, the
        residuals of compression among them."""
        self.flush()
        tensors = {name: value.clone() for name, value in self._tensors().items()}
        algorithm, compress = type(self._algorithm).__name__, self._algorithm.compressor.name
        own = {"algorithm": algorithm, "compress": compress, "rank": self.guard.rank}
        return {"round": self.round, **own, "state": tensors}

    def load(self, state: dict[str, Any]) -> None:
        """What `state` gave, into the memory that is there. Raises ValueError if it is not of this algorithm."""
        self.flush()
        name = type(self._algorithm).__name__
        if state.get("algorithm") != name:
            raise ValueError(f"this state_dict is of {state.get('algorithm', 'a mode')}, not of {name} as wrapped here")
        compress, other = self._algorithm.compressor.name, state.get("compress", "none")
        if compress != other:
            raise ValueError(f"this state_dict is of {name} with compress='{other}', not of compress='{compress}'")
        own, saved = self._tensors(), state["state"]
        more = sum(value.numel() for value in own.values()) > self._parameters.row.numel()  # than the models
        if more and state.get("rank", self.guard.rank) != self.guard.rank:
            raise ValueError(
                f"this state_dict is of rank {state['rank']}, not of rank {self.guard.rank}: let every rank load its "
                "own"
            )
        for key in own.keys() | saved.keys():
            mine, other = (_shape(each.get(key)) for each in (own, saved))
            if mine != other:
                raise ValueError(
                    f"this state_dict is of {name} for another model or topology: its {key} is {other}, not {mine}"
                )
        for name, value in own.items():
            if value.numel():
                value.copy_(saved[name])
        self.round = int(state["round"])

    def close(self) -> None:
        """Nothing is held."""

    def _gradient(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        """The algorithm's oracle: the gradients that the script has computed, which are those at the parameters.

        `workers`, some of the local ones, can only be the one that there is.
        """
        if self._asked or x.data_ptr() != self._parameters.row.data_ptr():
            raise RuntimeError(
                f"{type(self._algorithm).__name__} asks for "
                + ("a second gradient" if self._asked else "a gradient elsewhere than at its models")
                + ", but a script has computed one, at the parameters, before step()"
            )
        self._asked = True
        return self._parameters.gradient()

    def _set(self, state: Any) -> None:
        self._state = state
        self._parameters.move_to(self._algorithm.models(state))

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors of the state by name; the torch optimizer has its buffers itself."""
        return {name: value for name, value in self._state._asdict().items() if isinstance(value, Tensor)}


def _shape(value: Tensor | None) -> tuple[int, ...] | None:
    """None for what is empty, which a state of another version may lack."""
    return tuple(value.shape) if value is not None and value.numel() else None
