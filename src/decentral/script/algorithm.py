"""Algorithms of `decentral-run` in a script, with a torch optimizer as the local rule (`algo=`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import ASGD, Adafactor, Optimizer, Rprop

from decentral.algorithms.algorithm import Algorithm
from decentral.compression.compressor import Compressor
from decentral.compression.dense import NoCompression
from decentral.errors import ConfigError
from decentral.network.network import Network
from decentral.optim.optimizer import Buffers
from decentral.optim.torch_rule import TorchRule, l2
from decentral.script.modes import LocalHook
from decentral.script.parameters import Guard, ParameterRow
from decentral.topology.rounds import Need


class ScriptRule(TorchRule):
    """The torch optimizer of a script, k = 1. Its buffers stay in the optimizer's state."""

    def __init__(self, optimizer: Optimizer, parameters: ParameterRow, guard: Guard) -> None:
        super().__init__()
        self._optimizer, self._parameters, self._guard = optimizer, parameters, guard

    def direction(self, g: Tensor, x: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """See `TorchRule`. Raises ConfigError for an optimizer whose update is not linear in its learning rate."""
        if isinstance(self._optimizer, Adafactor | ASGD | Rprop):
            raise ConfigError(
                f"the update of {type(self._optimizer).__name__} is not linear in its learning rate, as this "
                "algorithm's formula requires: use another optimizer, or algo='dpsgd'."
            )
        return super().direction(g, x, buffers, t)

    def lr(self, t: int) -> float:
        """Return the current learning rate of all parameter groups.

        Raises ConfigError if they differ: the formula of the calling algorithm has one learning rate.
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
        """Return no buffers: the torch optimizer has them."""
        return ()

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """Return g + weight_decay x if the optimizer's weight decay is part of the gradient; in g's memory.

        Raises ConfigError for an optimizer with `maximize`: the calling algorithms have a descending momentum.
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
                self._guard.step()
        finally:
            for group, settings in zip(groups, own, strict=True):
                group.update(settings)


class AlgorithmStep:
    """The steps of an algorithm. Between steps the parameters share the memory of `algorithm.models(state)`."""

    def __init__(
        self,
        net: Network,
        parameters: ParameterRow,
        inner: Optimizer,
        algorithm: Algorithm,
        compressor: Compressor,
        guard: Guard,
        model: nn.Module,
        topology: str,
    ) -> None:
        """`compressor` is bound to the rows of these parameters; `topology` says which matrices the state is for."""
        self.net, self.inner, self.round, self.guard = net, inner, 0, guard
        self._topology = topology
        self.accumulating, self.away = False, False  # nothing is sent before `step`
        self._parameters = parameters
        self._algorithm = algorithm.bind(ScriptRule(inner, parameters, guard), compressor)
        self._asked = False
        self._set(self._algorithm.init(parameters.row, net))
        self._before: Tensor | None = None  # the row before the model loaded a checkpoint
        self._resumed = False  # whether the algorithm's state was loaded since the last step
        modules = model.modules() if self._holds_more() else ()
        self._hooks = [each.register_load_state_dict_pre_hook(LocalHook(self._before_load)) for each in modules]

    @property
    def name(self) -> str:
        """Its name as passed to `decentral.wrap`."""
        compressor = self._algorithm.compressor
        sent = "" if isinstance(compressor, NoCompression) else f", compress={compressor!r}"
        return f"algo={self._algorithm!r}{sent}"

    @property
    def rows(self) -> list[Tensor]:
        """The parameters, as a writable row [1, P]."""
        return [self._parameters.row]

    @property
    def under_way(self) -> bool:
        """Whether rows of an unfinished step are in flight: never."""
        return False

    def step(self) -> None:
        """Take one step with the accumulated gradients."""
        self._asked, self._resumed, self._before = False, False, None
        self._set(self._algorithm.step(self._state, self._gradient, self.net, self.round))
        self.round += 1

    def flush(self) -> None:
        """Deliver all messages in flight, together with all other ranks."""
        self._set(self._algorithm.flush(self._state, self.net))

    def change(self) -> str:
        """Describe how the trained parameters differ from the registered ones; "" if they do not."""
        return self.guard.change(self._parameters.in_place()) or self._loaded()

    def state(self) -> dict[str, Any]:
        """Return the checkpoint content besides the optimizer's state: the round and this rank's tensors of the
        algorithm, including compression residuals."""
        self.flush()
        tensors = {name: value.clone() for name, value in self._tensors().items()}
        algorithm, compress = type(self._algorithm).__name__, self._algorithm.compressor.name
        own = {"algorithm": algorithm, "compress": compress, "rank": self.guard.rank, "size": self.net.n}
        if self._algorithm.needs & {Need.static, Need.tree}:
            own["topology"] = self._topology
        return {"round": self.round, **own, "state": tensors}

    def load(self, state: dict[str, Any]) -> None:
        """Load the result of `state` into existing memory. Raises ValueError if it is of another algorithm."""
        self.flush()
        name = type(self._algorithm).__name__
        if state.get("algorithm") != name:
            raise ValueError(f"this state_dict is of {state.get('algorithm', 'a mode')}, not of {name} as wrapped here")
        compress, other = self._algorithm.compressor.name, state.get("compress", "none")
        if compress != other:
            raise ValueError(f"this state_dict is of {name} with compress='{other}', not of compress='{compress}'")
        own, saved = self._tensors(), state["state"]
        more = self._holds_more()
        if more and state.get("rank", self.guard.rank) != self.guard.rank:
            raise ValueError(
                f"this state_dict is of rank {state['rank']}, not of rank {self.guard.rank}: let every rank load its "
                "own"
            )
        if more and state.get("size", self.net.n) != self.net.n:
            raise ValueError(
                f"this state_dict of {name} is of {state['size']} ranks, not of {self.net.n}, and its corrections hold "
                "for these only: load the state_dict() of its .inner instead"
            )
        if more and (topology := state.get("topology", self._topology)) != self._topology:
            raise ValueError(
                f"this state_dict of {name} is for {topology}, not for {self._topology}, and its corrections hold for "
                "these matrices only: load the state_dict() of its .inner instead"
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
        self._resumed, self._before = True, None

    def close(self) -> None:
        """Remove the hooks from the model and the optimizer."""
        for hook in self._hooks:
            hook.remove()
        self.guard.close()

    def _holds_more(self) -> bool:
        """Return whether the state has more than the models: anchors, corrections, replicas."""
        return sum(value.numel() for value in self._tensors().values()) > self._parameters.row.numel()

    def _before_load(self, module: nn.Module) -> None:
        """Keep the models from before `module` loads a checkpoint."""
        if self._before is None and not self._resumed and not self.away:
            self._before = self._parameters.row.clone()

    def _loaded(self) -> str:
        """Describe a checkpoint of the model only, which the rest of the state does not fit; "" if there is none."""
        if self._before is None or torch.equal(self._before, self._parameters.row):
            return ""
        return (
            f"the model has loaded other weights since decentral.wrap, but algo={self._algorithm.name} keeps more than "
            "the weights (an anchor, corrections): load them before wrap, or also load the optimizer's state_dict()."
        )

    def _gradient(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        """Return the gradients that the script computed at the parameters: the algorithm's oracle.

        `workers` can only be the single local worker.
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
        """Return the tensors of the state by name, without the torch optimizer's buffers."""
        return {name: value for name, value in self._state._asdict().items() if isinstance(value, Tensor)}


def _shape(value: Tensor | None) -> tuple[int, ...] | None:
    """Return None for an empty tensor, which a state of another version may lack."""
    return tuple(value.shape) if value is not None and value.numel() else None
