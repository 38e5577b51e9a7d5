"""The built-in modes of a decentralized step (`mode=`): parameters are sent in buckets, some during the passes."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from decentral.network.kernels import wide
from decentral.network.network import Network
from decentral.script.parameters import Bucket, FlatParameters, Guard


class Mode(Enum):
    """The formula of a step; see `decentral.DecentralizedOptimizer`."""

    atc = "atc"
    awc = "awc"
    push_sum = "push_sum"
    allreduce = "allreduce"


class LocalHook:
    """A hook of the module itself; in copies of it, also from files, it does nothing."""

    def __init__(self, act: Callable[[nn.Module], object]) -> None:
        self._act = act

    def __call__(self, module: nn.Module, *_: object) -> None:
        """Call the function with the module."""
        self._act(module)

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalHook, (id,)


class ModeStep:
    """The steps of a mode, with model hooks that start sending buckets early (`overlap`)."""

    def __init__(
        self,
        net: Network,
        flat: FlatParameters,
        inner: Optimizer,
        mode: Mode,
        overlap: bool,
        model: nn.Module,
        guard: Guard,
    ) -> None:
        self.net, self.inner, self.mode, self.round, self.guard = net, inner, mode, 0, guard
        self.accumulating = False  # whether more backward passes of this step follow
        self.away = False  # whether the parameters are temporarily not this rank's own
        self._flat, self._overlap = flat, overlap
        self._weights = net.known_ones()
        self._mixings: list[Callable[[], Tensor]] = []  # of the first buckets, those in flight
        self._missing: list[set[nn.Parameter]] = []  # by bucket: parameters whose gradients are pending
        self._consumed: list[tuple[Tensor, list[Any]]] = []  # by launched bucket: gradients, settings of groups
        self._hooks: list[Any] = []
        self._forget()
        if overlap and mode is Mode.awc:
            self._hooks.append(model.register_forward_pre_hook(LocalHook(self._before_forward)))
        if overlap and mode is Mode.atc:
            for number, bucket in enumerate(self._flat.buckets):
                for parameter in bucket.parameters:
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(self._arrival(number)))

    @property
    def name(self) -> str:
        """Its name as passed to `decentral.wrap`."""
        return f"mode={self.mode.value}"

    @property
    def rows(self) -> list[Tensor]:
        """The parameters, as writable rows [1, P']."""
        return [bucket.row for bucket in self._flat.buckets]

    @property
    def under_way(self) -> bool:
        """Whether rows of an unfinished step are in flight."""
        return bool(self._mixings)

    def step(self) -> None:
        """Take one step; waits for the ranks that this one averages with."""
        {
            Mode.atc: self._adapt_then_combine,
            Mode.awc: self._adapt_while_combining,
            Mode.push_sum: self._push_sum,
            Mode.allreduce: self._all_reduce,
        }[self.mode]()
        self.round += 1
        self._forget()

    def flush(self) -> None:
        """Do nothing: no messages are in flight between steps."""

    def change(self) -> str:
        """Describe how the trained parameters differ from the registered ones; "" if they do not."""
        return self.guard.change(self._flat.in_place()) or self._edited()

    def _edited(self) -> str:
        """Describe what has changed since the optimizer's step for a bucket in the backward pass; "" if nothing has."""
        settings = _settings(self.inner) if self._consumed else []
        for bucket, (gradients, then) in zip(self._flat.buckets, self._consumed, strict=False):
            same = torch.allclose(_summary(bucket), gradients, rtol=0, atol=0, equal_nan=True)
            if not same or settings != then:
                what = "the optimizer's settings" if same else "gradients"
                remedy = ", or change them before backward() or after step()" if same else ""
                return (
                    f"{what} were changed between backward() and step(), but overlap=True has used them in the "
                    f"backward pass: wrap with overlap=False{remedy}."
                )
        return ""

    def state(self) -> dict[str, Any]:
        """Return the checkpoint content besides the optimizer's state: the round and the push-sum weights [n, d]."""
        return {"round": self.round, "weights": self._weights.clone()}

    def load(self, state: dict[str, Any]) -> None:
        """Load the result of `state`. Raises ValueError if it is an algorithm's."""
        if "weights" not in state:
            raise ValueError(f"this state_dict is of {state.get('algorithm')}, not of {self.name} as wrapped here")
        weights = state["weights"].clone()
        if self.mode is Mode.push_sum and weights.shape != self._weights.shape:
            raise ValueError(f"this state_dict is of {len(weights)} ranks, not of {len(self._weights)}")
        self.round, self._weights = int(state["round"]), weights if self.mode is Mode.push_sum else self._weights

    def close(self) -> None:
        """Remove the hooks from the model and the optimizer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.guard.close()

    # -- the four modes ------------------------------------------------------------------------------------------------

    def _adapt_then_combine(self) -> None:
        if not self._overlap:
            self.guard.step()
        for bucket in self._flat.buckets[len(self._mixings) :]:
            self._launch(bucket, adapt=self._overlap)
        self._combine()

    def _adapt_while_combining(self) -> None:
        self._begin_all()
        self._combine()
        self.guard.step()

    def _push_sum(self) -> None:
        """The parameters hold z_i = x_i / w_i between steps."""
        weights = self._weights
        biased = any(bool((weights.to(dtype) != 1).any()) for dtype in {row.dtype for row in self.rows})
        old = [row.clone() for row in self.rows] if biased else []
        self.guard.step()
        for bucket, z in zip(self._flat.buckets, old, strict=False):  # x + u = w z + u = (z + u) + (w z - z)
            bucket.row.add_(self.net.weigh(z.clone(), weights).sub_(z))
        self._begin_all()
        self._combine()
        self._weights = self.net.mix_known(weights, self.round)
        for bucket in self._flat.buckets:
            self.net.weigh(bucket.row, 1 / self._weights)

    def _all_reduce(self) -> None:
        """All-reduce like DistributedDataParallel with find_unused_parameters: missing gradients count as zero."""
        for bucket in self._flat.buckets:
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in bucket.ordered]
            have = bucket.row.new_tensor([float(p.grad is not None) for p in bucket.ordered])  # sent after them
            mean = self.net.mean(torch.cat([*(g.reshape(-1) for g in gradients), have]).view(1, -1)).view(-1)
            *parts, some = mean.split([*(g.numel() for g in gradients), len(have)])
            for parameter, part, has in zip(bucket.ordered, parts, some.unbind(), strict=True):
                if parameter.grad is not None or has:  # synchronizes with the device only if necessary
                    parameter.grad = part.view_as(parameter)
        self.guard.step()

    # -- buckets in flight --------------------------------------------------------------------------------------------

    def _launch(self, bucket: Bucket, adapt: bool) -> None:
        with self.guard.hears():  # a backward pass may call this
            if not self._mixings:
                self.guard.require(self.change())
            if adapt:
                self._step_of(bucket)
                self._consumed.append((_summary(bucket), _settings(self.inner)))
            self._mixings.append(self.net.begin_mix(bucket.row, self.round))

    def _begin_all(self) -> None:
        for bucket in self._flat.buckets[len(self._mixings) :]:
            self._launch(bucket, adapt=False)

    def _combine(self) -> None:
        for mixing in self._mixings:
            mixing()

    def _forget(self) -> None:
        self._mixings.clear()
        self._consumed.clear()
        self._missing = [set(bucket.parameters) for bucket in self._flat.buckets]

    def _before_forward(self, module: nn.Module) -> None:
        if module.training and torch.is_grad_enabled() and not self.away:
            with torch.no_grad():
                self._begin_all()

    def _arrival(self, number: int) -> Callable[[Tensor], None]:
        """Return the hook for a new gradient of a parameter in bucket `number`: all ranks launch buckets in order."""

        @torch.no_grad()
        def arrived(parameter: Tensor) -> None:
            if self.accumulating or self.away:
                return
            if number < len(self._mixings) or parameter not in self._missing[number]:
                raise RuntimeError(
                    "a second backward() before step() conflicts with updates during the backward pass: put all but "
                    "the last one into `with optimizer.accumulate():`, or wrap with overlap=False"
                )
            self._missing[number].remove(parameter)  # type: ignore[arg-type]
            while len(self._mixings) < len(self._missing) and not self._missing[len(self._mixings)]:
                self._launch(self._flat.buckets[len(self._mixings)], adapt=True)

        return arrived

    def _step_of(self, bucket: Bucket) -> None:
        """Take the optimizer's own step for the parameters of a bucket, with its usual groups and state."""
        groups = self.inner.param_groups
        parts = [{**group, "params": [p for p in group["params"] if p in bucket.parameters]} for group in groups]
        before = [dict(part) for part in parts], _counters(self.inner)
        self.inner.param_groups = [part for part in parts if part["params"]]
        try:
            self.guard.step()
        finally:
            self.inner.param_groups = groups
        if before != (parts, _counters(self.inner)):
            raise RuntimeError(
                f"{type(self.inner).__name__} counts its steps, or changes its param_groups in one, but with "
                "overlap=True it takes a step per bucket: wrap with overlap=False"
            )


def _summary(bucket: Bucket) -> Tensor:
    """Return the sum and the norm of each gradient of a bucket; nan where there is none."""
    nothing = wide(bucket.row.new_full((1,), torch.nan))
    gradients = [nothing if p.grad is None else wide(p.grad.to_dense()) for p in bucket.ordered]
    return torch.stack([*torch._foreach_norm(gradients), *(each.sum() for each in gradients)])


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of all parameter groups, with the present numbers of tensors."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    numbers = lambda value: value.tolist() if isinstance(value, Tensor) else value  # noqa: E731
    return [{key: numbers(value) for key, value in group.items()} for group in groups]


def _counters(optimizer: Optimizer) -> list[float]:
    """Return the numbers that an optimizer keeps outside its groups and outside the states of parameters."""
    entries = [entry for key, entry in optimizer.state.items() if not isinstance(key, Tensor)]
    parts = [vars(optimizer).values(), *(each.values() if isinstance(each, dict) else [each] for each in entries)]
    values = [value for part in parts for value in part]
    return [float(each) for each in values if type(each) in (int, float) or (type(each) is Tensor and not each.dim())]
