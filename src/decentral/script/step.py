"""The step of a decentralized optimizer: an algorithm of `decentral-run`, with a torch optimizer as the local rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import ASGD, Adafactor, Optimizer, Rprop

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.allreduce import AllReduce
from decentral.algorithms.dpsgd import DPSGD
from decentral.algorithms.dpsgd import Mode as Order
from decentral.algorithms.sgp import SGP
from decentral.compression.dense import NoCompression
from decentral.compression.rows import RowLayout
from decentral.errors import ConfigError
from decentral.network.kernels import wide
from decentral.network.network import Network
from decentral.optim.optimizer import Buffers
from decentral.optim.torch_rule import TorchRule, l2
from decentral.script.components import Compression
from decentral.script.parameters import Guard, ParameterRow
from decentral.terminal.console import warn
from decentral.topology.rounds import Need


class OwnStep(DPSGD):
    """D-PSGD whose local update is the optimizer's own step with the parameters' gradients: u_i is never formed."""

    def adapted(self, y: Tensor, g: Tensor, opt: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """See `DPSGD`."""
        return self.local.adapt(y, g, opt, t)


MODES: dict[str, Algorithm] = {
    "atc": OwnStep(),
    "awc": OwnStep(mode=Order.awc),
    "push_sum": SGP(),
    "allreduce": AllReduce(),
}
"""The algorithm that each mode names."""


class Method(NamedTuple):
    """The computation of the steps, and the times at which they send."""

    algorithm: Algorithm
    compression: Compression
    mode: str | None = None
    overlap: bool = False
    bucket_bytes: int = 0

    @property
    def synchronous(self) -> bool:
        """Return whether gradients are averaged, not parameters."""
        return isinstance(self.algorithm, AllReduce)

    @property
    def updates_early(self) -> bool:
        """Return whether the backward pass updates parameters, a bucket as soon as it has its gradients."""
        return self.overlap and self.mode == "atc"


class ScriptRule(TorchRule):
    """The torch optimizer of a script, k = 1. Its buffers stay in the optimizer's state."""

    def __init__(self, optimizer: Optimizer, row: ParameterRow, step: Callable[[], None]) -> None:
        super().__init__()
        self._optimizer, self._row, self._step = optimizer, row, step

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
        decays = {p: l2(self._optimizer, group) for group in self._optimizer.param_groups for p in group["params"]}
        parts = zip(self._row.parameters, self._row.split(g), self._row.split(x), strict=True)
        for parameter, gradient, values in parts:
            if decays[parameter]:
                gradient.add_(values, alpha=decays[parameter])
        return g

    def step_at(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, lr: float | None, regularised: bool = False
    ) -> None:
        """See `TorchRule`."""
        self._row.move_to(x)
        groups = self._optimizer.param_groups
        keys: tuple[str, ...] = ("lr", "weight_decay")
        settings = [{key: group[key] for key in keys if key in group} for group in groups]
        for group in groups:
            if lr is not None:
                group["lr"] = lr
            if regularised and l2(self._optimizer, group):  # the gradients have it
                group["weight_decay"] = 0.0
        try:
            with self._row.with_gradient(g):
                self._step()
        finally:
            for group, before in zip(groups, settings, strict=True):
                group.update(before)


class LocalHook:
    """A hook of the module itself; in copies of it, also from files, it does nothing."""

    def __init__(self, act: Callable[[nn.Module], object]) -> None:
        self._act = act

    def __call__(self, module: nn.Module, *_: object) -> None:
        """Call the function with the module."""
        self._act(module)

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalHook, (id,)


@dataclass
class Part:
    """A row of parameters with the algorithm's state; `end` completes a step that has begun."""

    row: ParameterRow
    algorithm: Algorithm
    state: Any
    missing: set[Tensor]
    """The parameters whose gradients a step that overlaps with the backward pass still waits for."""
    used: tuple[Tensor, list[Any]] | None = None
    """The gradients and settings that such a step has used."""
    end: Callable[[], Any] | None = None
    asked: bool = False
    """True if the algorithm has asked for the gradient of this step."""

    def set(self, state: Any) -> None:
        """Set the state; the parameters share the memory of its models."""
        self.state = state
        self.row.move_to(self.algorithm.models(state))


class Step:
    """The steps of an algorithm on the rows of a model: one row; or several, by dtype or as buckets.

    With `overlap`, a step begins before `step()`: in awc, all rows at the first training forward pass; in atc, each
    bucket when the backward pass has its gradients, in the same order on all ranks.
    """

    def __init__(
        self,
        method: Method,
        opened: Callable[[torch.device], Network],
        rows: Sequence[ParameterRow],
        inner: Optimizer,
        model: nn.Module,
        guard: Guard,
        topology: str,
    ) -> None:
        """`opened` opens the network for a device again; `topology` says which matrices the state is for."""
        self.method, self._opened, self.inner, self.guard, self.round = method, opened, inner, guard, 0
        self._is_new = True  # whether no step has been taken
        self.accumulating = False  # whether more backward passes of this step follow
        self.away = False  # whether the parameters are temporarily not this rank's own
        self._topology = topology
        names = {parameter: name for name, parameter in model.named_parameters()}
        self._parts = [self._part(row, names) for row in rows]
        self._begun = 0  # the parts with a step in flight: the first ones
        self._forget()
        self._before: Tensor | None = None  # the row before the model loaded a checkpoint
        self._resumed = False  # whether the algorithm's state was loaded since the last step
        self._hooks: list[Any] = []
        if self._holds_more():
            hook = LocalHook(self._before_load)
            self._hooks = [module.register_load_state_dict_pre_hook(hook) for module in model.modules()]
        if method.updates_early:
            for number, part in enumerate(self._parts):
                arrived = self._arrival(number)
                self._hooks += [p.register_post_accumulate_grad_hook(arrived) for p in part.row.parameters]
        elif method.overlap:
            self._hooks.append(model.register_forward_pre_hook(LocalHook(self._before_forward)))

    def _part(self, row: ParameterRow, names: dict[nn.Parameter, str]) -> Part:
        compressor, seed, steps_per_epoch = self.method.compression
        algorithm = self.method.algorithm
        layout = RowLayout(tuple(names[p] for p in row.parameters), tuple(tuple(p.shape) for p in row.parameters))
        bound = compressor.bound(layout, seed, steps_per_epoch / algorithm.attends_steps)
        algorithm = algorithm.bind(ScriptRule(self.inner, row, partial(self._step_of, row)), bound)
        part = Part(row, algorithm, None, set())
        part.set(algorithm.init(row.row, self.net))
        return part

    @property
    def net(self) -> Network:
        """The network that sends the rows."""
        return self.guard.net

    @property
    def name(self) -> str:
        """The method as passed to `decentral.wrap`."""
        if self.method.mode:
            return f"mode={self.method.mode}"
        compressor = self.method.compression.compressor
        sent = "" if isinstance(compressor, NoCompression) else f", compress={compressor!r}"
        return f"algo={self.method.algorithm!r}{sent}"

    @property
    def rows(self) -> list[Tensor]:
        """The parameters, as writable rows [1, P']."""
        return [part.row.row for part in self._parts]

    @property
    def under_way(self) -> bool:
        """Return whether a step has begun that `step` has not completed."""
        return self._begun > 0

    def step(self) -> None:
        """Take one step with the accumulated gradients; waits for the ranks that this one averages with."""
        if self.method.synchronous and len(self._parts) > 1 and len(self.inner._optimizer_step_pre_hooks) > 1:
            self.guard.require(
                "a hook before the optimizer's step would see the averaged gradients of one dtype only: convert the "
                "model to one dtype, or remove the hook."
            )
        self._resumed, self._before = False, None
        try:
            for part in self._parts[self._begun :]:
                self._begin(part)
            for part in self._parts:
                assert part.end is not None
                part.set(part.end())
            self.round += 1
            self._is_new = False
        finally:
            self._forget()

    def flush(self) -> None:
        """Deliver all messages in flight, together with all other ranks."""
        for part in self._parts:
            part.set(part.algorithm.flush(part.state, self.net))

    def change(self) -> str:
        """Describe what has changed since wrap or since the backward pass and would not be averaged; "" if nothing
        has."""
        if self._is_new and not self._begun:
            self._follow()
        return self.guard.change(self._in_place()) or self._edited() or self._loaded()

    def _in_place(self) -> bool:
        return all(part.row.in_place() for part in self._parts)

    @torch.no_grad()
    def _follow(self) -> None:
        """Compare all ranks before the first step. If the parameters of any have moved since wrap, flatten those of all
        where they are now.

        Raises ConfigError on all ranks if the layouts differ, or if a row has several dtypes or devices.
        """
        dtypes = [{parameter.dtype for parameter in part.row.parameters} for part in self._parts]
        devices = {parameter.device for part in self._parts for parameter in part.row.parameters}
        kinds = sorted({str(dtype).removeprefix("torch.") for dtype in set.union(*dtypes)})
        numbers = sum(parameter.numel() for part in self._parts for parameter in part.row.parameters)
        layout = f"{numbers} numbers of {'/'.join(kinds)} on {'/'.join(sorted(device.type for device in devices))}"
        fits = len(devices) == 1 and all(len(each) == 1 for each in dtypes)
        problem = "" if fits else self.guard.change(in_place=False)
        if not self.guard.compare(self._in_place(), f"{layout} in round {self.round}", problem):
            return
        saved = self.state() if self._resumed else None
        self.net.close()
        self.guard.net = self._opened(devices.pop())
        for part in self._parts:
            part.row.flatten()
            part.set(part.algorithm.init(part.row.row, self.net))
        if saved is not None:
            self.load(saved)
        if self._before is not None:
            self._before = self._before.to(self.rows[0])
        if self.guard.rank == 0:
            warn(f"the parameters have moved since decentral.wrap; training continues with {layout}")

    def close(self) -> None:
        """Remove the hooks from the model and the optimizer."""
        for hook in self._hooks:
            hook.remove()
        self.guard.close()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the checkpoint content besides the optimizer's state: the round, and the push-sum weights of a mode,
        or this rank's tensors of the algorithm, including compression residuals."""
        self.flush()
        if self.method.mode:
            return {"round": self.round, "weights": self._push_sum_weights().clone()}
        tensors = {name: value.clone() for name, value in self._tensors().items()}
        algorithm, compress = type(self.method.algorithm).__name__, self.method.compression.compressor.name
        facts = {"algorithm": algorithm, "compress": compress, "rank": self.guard.rank, "size": self.net.n}
        if self.method.algorithm.needs & {Need.static, Need.tree}:
            facts["topology"] = self._topology
        return {"round": self.round, **facts, "state": tensors}

    def load(self, state: dict[str, Any]) -> None:
        """Load the result of `state` into existing memory. Raises ValueError if it does not fit."""
        self.flush()
        if problem := self._unfit_mode(state) if self.method.mode else self._unfit(state):
            raise ValueError(f"this state_dict is {problem}")
        if self.method.mode == "push_sum":
            for part in self._parts:
                part.state = part.state._replace(w=state["weights"].clone())
        for name, value in {} if self.method.mode else self._tensors().items():
            if value.numel():
                value.copy_(state["state"][name])
        self.round = int(state["round"])
        self.guard.resumed &= self.round > 0  # some libraries load the state of a new optimizer into itself
        self._resumed, self._before = True, None

    def _unfit_mode(self, state: dict[str, Any]) -> str:
        if "weights" not in state:
            return f"of {state.get('algorithm')}, not of {self.name} as wrapped here"
        ranks, here = len(state["weights"]), len(self._push_sum_weights())
        return f"of {ranks} ranks, not of {here}" if self.method.mode == "push_sum" and ranks != here else ""

    def _unfit(self, state: dict[str, Any]) -> str:
        """Say how the state is not of this algorithm, compressor, rank, group or topology; "" if it fits."""
        name, compress = type(self.method.algorithm).__name__, self.method.compression.compressor.name
        if state.get("algorithm") != name:
            return f"of {state.get('algorithm', 'a mode')}, not of {name} as wrapped here"
        if state.get("compress", "none") != compress:
            return f"of {name} with compress='{state.get('compress', 'none')}', not of compress='{compress}'"
        if self._holds_more():
            remedy = "load the state_dict() of its .inner instead"
            if (rank := state.get("rank", self.guard.rank)) != self.guard.rank:
                return f"of rank {rank}, not of rank {self.guard.rank}: let every rank load its own"
            if (size := state.get("size", self.net.n)) != self.net.n:
                return f"of {size} ranks, not of {self.net.n}, and its corrections hold for these only: {remedy}"
            if (topology := state.get("topology", self._topology)) != self._topology:
                return (
                    f"of {name} for {topology}, not for {self._topology}, and its corrections hold for these matrices "
                    f"only: {remedy}"
                )
        tensors, saved = self._tensors(), state["state"]
        for key in tensors.keys() | saved.keys():
            mine, other = (_shape(each.get(key)) for each in (tensors, saved))
            if mine != other:
                return f"of {name} for another model or topology: its {key} is {other}, not {mine}"
        return ""

    def _push_sum_weights(self) -> Tensor:
        weights: Tensor = getattr(self._parts[0].state, "w", self.net.known_ones())
        return weights

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state by name, without the torch optimizer's buffers."""
        state = self._parts[0].state._asdict()
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}

    def _holds_more(self) -> bool:
        """Return whether the state has more than the models: anchors, corrections, replicas."""
        numbers = sum(value.numel() for value in self._tensors().values())
        return not self.method.mode and numbers > self.rows[0].numel()

    def _before_load(self, module: nn.Module) -> None:
        """Keep the models from before `module` loads a checkpoint."""
        if self._before is None and not self._resumed and not self.away:
            self._before = self.rows[0].clone()

    def _loaded(self) -> str:
        """Describe a checkpoint of the model only, which the rest of the state does not fit; "" if there is none."""
        if self._before is None or torch.equal(self._before, self.rows[0]):
            return ""
        return (
            f"the model has loaded other weights since decentral.wrap, but algo={self.method.algorithm.name} keeps "
            "more than the weights (an anchor, corrections): load them before wrap, or also load the optimizer's "
            "state_dict()."
        )

    # -- a step and its parts ------------------------------------------------------------------------------------------

    def _begin(self, part: Part) -> None:
        """Begin the step of a part. Only the modes of D-PSGD send before its end."""
        arguments = part.state, partial(self._gradient, part), self.net, self.round
        if isinstance(part.algorithm, OwnStep):
            part.end = part.algorithm.begin(*arguments)
        else:
            part.end = partial(part.algorithm.step, *arguments)
        self._begun += 1

    def _begin_early(self, part: Part) -> None:
        with self.guard.hears():  # a pass of the model calls this
            if not self._begun:
                self.guard.require(self.change())
            self._begin(part)

    def _forget(self) -> None:
        self._begun = 0
        for part in self._parts:
            part.end, part.used, part.asked = None, None, False
            part.missing = set(part.row.parameters)

    def _before_forward(self, module: nn.Module) -> None:
        if module.training and torch.is_grad_enabled() and not self.away:
            with torch.no_grad():
                for part in self._parts[self._begun :]:
                    self._begin_early(part)

    def _arrival(self, number: int) -> Callable[[Tensor], None]:
        """Return the hook for a new gradient of a parameter in part `number`: all ranks begin parts in order."""

        @torch.no_grad()
        def arrived(parameter: Tensor) -> None:
            if self.accumulating or self.away:
                return
            missing = self._parts[number].missing
            if number < self._begun or parameter not in missing:
                raise RuntimeError(
                    "a second backward() before step() conflicts with updates during the backward pass: put all but "
                    "the last one into `with optimizer.accumulate():`, or wrap with overlap=False"
                )
            missing.remove(parameter)
            while self._begun < len(self._parts) and not self._parts[self._begun].missing:
                part = self._parts[self._begun]
                self._begin_early(part)
                part.used = _summary(part.row), _settings(self.inner)

        return arrived

    def _gradient(self, part: Part, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        """Return the gradients that the script computed at the parameters: the algorithm's oracle.

        `workers` can only be the single local worker.
        """
        if part.asked or x.data_ptr() != part.row.row.data_ptr():
            raise RuntimeError(
                f"{type(part.algorithm).__name__} asks for "
                + ("a second gradient" if part.asked else "a gradient elsewhere than at its models")
                + ", but a script has computed one, at the parameters, before step()"
            )
        part.asked = True
        if self.method.synchronous:
            part.row.share = self.net.mean(part.row.has_gradients())
        return part.row.gradient(unread=isinstance(part.algorithm, OwnStep))

    def _step_of(self, row: ParameterRow) -> None:
        """Take the optimizer's own step for the parameters of a row, with its usual groups and state."""
        if len(self._parts) == 1:
            return self.guard.step()
        groups, members = self.inner.param_groups, set(row.parameters)
        parts = [{**group, "params": [p for p in group["params"] if p in members]} for group in groups]
        before = [dict(part) for part in parts]
        self.inner.param_groups = [part for part in parts if part["params"]]
        try:
            self.guard.step()
        finally:
            self.inner.param_groups = groups
        if before != parts:
            raise RuntimeError(
                f"{type(self.inner).__name__} counts its steps, or changes its param_groups in one, but with "
                "overlap=True, or parameters of several dtypes, it takes several: wrap with overlap=False, or convert "
                "the model"
            )

    def _edited(self) -> str:
        """Describe what has changed since the optimizer's step for a bucket in the backward pass; "" if nothing has."""
        for part in self._parts:
            if part.used is None:
                break
            gradients, settings = part.used
            same = torch.allclose(_summary(part.row), gradients, rtol=0, atol=0, equal_nan=True)
            if not same or _settings(self.inner) != settings:
                what = "the optimizer's settings" if same else "gradients"
                remedy = ", or change them before backward() or after step()" if same else ""
                return (
                    f"{what} were changed between backward() and step(), but overlap=True has used them in the "
                    f"backward pass: wrap with overlap=False{remedy}."
                )
        return ""


def _shape(value: Tensor | None) -> tuple[int, ...] | None:
    """Return None for an empty tensor, which a state of another version may lack."""
    return tuple(value.shape) if value is not None and value.numel() else None


def _summary(row: ParameterRow) -> Tensor:
    """Return the sum and the norm of each gradient of a row; nan where there is none."""
    nothing = wide(row.row.new_full((1,), torch.nan))
    gradients = [nothing if p.grad is None else wide(p.grad.to_dense()) for p in row.parameters]
    return torch.stack([*torch._foreach_norm(gradients), *(each.sum() for each in gradients)])


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of all parameter groups, with the present numbers of tensors."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    numbers = lambda value: value.tolist() if isinstance(value, Tensor) else value  # noqa: E731
    return [{key: numbers(value) for key, value in group.items()} for group in groups]
