"""A torch optimizer whose steps also average with other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from decentral.network.mixing import Mixing
from decentral.network.network import Network
from decentral.peers.flat import Bucket, FlatParameters
from decentral.peers.parameters import mean
from decentral.peers.peers import Peers
from decentral.peers.wording import hinted

_KEY = "decentral"


class Mode(Enum):
    """What a step does; see `DecentralizedOptimizer`."""

    atc = "atc"
    awc = "awc"
    push_sum = "push_sum"
    allreduce = "allreduce"


class DecentralizedOptimizer(Optimizer):
    """The steps of a torch optimizer, u_i = Opt(g_i), joined with averaging over the ranks of `net`.

        atc          x_i <- sum_j W_ij (x_j + u_j)                       adapt, then combine
        awc          x_i <- sum_j W_ij x_j + u_i                         adapt while combining
        push_sum     z_i = x_i / w_i, gradients at z_i;  x_i <- sum_j W_ij (x_j + u_j),  w_i <- sum_j W_ij w_j
        allreduce    x_i <- x_i + Opt(1/n sum_j g_j)                     no gossip: the baseline

    W is that of round t in step t = 0, 1, ... of this optimizer, whatever the number of buckets, forward or backward
    passes. Ying et al. 2021, (22) and (23), whose gradient is meant at x^(k-1); Assran et al. 2019 for push_sum, whose
    model parameters are the z_i. Optimizer state stays local. In awc, g_i is the gradient at x_i, but the optimizer
    sees the averaged parameters, so that weight decay acts on those, as in BlueFog.

    With `overlap`, rows travel during the forward and the backward pass (awc: from the first training forward of a
    step on), or during the backward pass (atc: a bucket of parameters is updated as soon as its gradients are there,
    so that gradients cannot be clipped or unscaled first).

    Learning rate schedulers, `state_dict` and `zero_grad` work as with the optimizer itself. Every rank calls `step`
    equally often.
    """

    def __init__(
        self,
        peers: Peers,
        net: Network,
        model: nn.Module,
        flat: FlatParameters,
        optimizer: Optimizer,
        mode: Mode,
        *,
        overlap: bool,
    ) -> None:
        """See `decentral.wrap`. The parameters must be the same on all ranks."""
        self.peers = peers
        self.net, self.inner, self.mode, self.round = net, optimizer, mode, 0
        self.overlap = overlap
        self._model = model
        self._flat = flat
        self._weights = net.known_ones()
        self._mixings: list[Mixing] = []  # of the first buckets, those that are on their way
        self._missing: list[set[nn.Parameter]] = []  # by bucket: whose gradients have not come yet
        self._accumulating, self._away, self._closed = False, False, False
        self._hooks: list[Any] = []
        self._forget()
        if overlap and mode is Mode.awc:
            self._hooks.append(model.register_forward_pre_hook(self._before_forward))
        if overlap and mode is Mode.atc:
            for number, bucket in enumerate(self._flat.buckets):
                for parameter in bucket.parameters:
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(self._arrival(number)))

    # -- what a training loop calls ------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step of this rank; waits for those it averages with. Raises what the network raises."""
        if closure is not None:
            raise TypeError("a decentralized step takes no closure: call backward() before it")
        if self._closed:
            raise RuntimeError("step() after close(): the wrapped optimizer's own step() still works")
        if self._away:
            raise RuntimeError("step() inside averaged() would be undone at its end: call it outside")
        self._flat.require_in_place()
        with hinted():
            {
                Mode.atc: self._adapt_then_combine,
                Mode.awc: self._adapt_while_combining,
                Mode.push_sum: self._push_sum,
                Mode.allreduce: self._all_reduce,
            }[self.mode]()
        self.round += 1
        self._forget()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """For all backward passes of a step but the last: gradients add up, and nothing is updated or sent yet."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, all ranks have the mean of their parameters and floating-point buffers (the statistics of batch norm)
        for evaluation; afterwards their own again. All ranks enter it."""
        self._require_idle("averaged()")
        buffers = [buffer for buffer in self._model.buffers() if buffer.is_floating_point()]
        own, own_buffers = self._flat.copy(), [buffer.clone() for buffer in buffers]
        with torch.no_grad(), hinted():
            for bucket in self._flat.buckets:
                self.net.mean(bucket.row)
            mean(buffers, self.peers.size)
        self._away = True
        try:
            yield
        finally:
            self._away = False
            self._flat.restore(own)
            with torch.no_grad():
                for buffer, saved in zip(buffers, own_buffers, strict=True):
                    buffer.copy_(saved)

    def close(self) -> Optimizer:
        """Take the hooks off the model and let go of the network; the optimizer that was wrapped."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._closed = True
        self.net.close()
        return self.inner

    # -- the four modes ------------------------------------------------------------------------------------------------

    def _adapt_then_combine(self) -> None:
        if not self.overlap:
            self.inner.step()
        for bucket in self._flat.buckets[len(self._mixings) :]:
            self._launch(bucket, adapt=self.overlap)
        self._combine()

    def _adapt_while_combining(self) -> None:
        self._begin_all()
        self._combine()
        self.inner.step()

    def _push_sum(self) -> None:
        """The parameters hold z_i = x_i / w_i between steps."""
        weights, biased = self._weights, bool((self._weights != 1).any())
        old = self._flat.copy() if biased else []
        self.inner.step()
        for bucket, z in zip(self._flat.buckets, old, strict=False):  # x + u = w z + u = (z + u) + (w z - z)
            bucket.row.add_(self.net.weigh(z.clone(), weights).sub_(z))
        self._begin_all()
        self._combine()
        self._weights = self.net.mix_known(weights, self.round)
        for bucket in self._flat.buckets:
            self.net.weigh(bucket.row, 1 / self._weights)

    def _all_reduce(self) -> None:
        for bucket in self._flat.buckets:
            parameters = [p for p in self._model.parameters() if p in bucket.parameters]
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters]
            mean = self.net.mean(torch.cat([g.reshape(-1) for g in gradients]).view(1, -1)).view(-1)
            for parameter, part in zip(parameters, mean.split([g.numel() for g in gradients]), strict=True):
                parameter.grad = part.view_as(parameter)
        self.inner.step()

    # -- buckets on their way ------------------------------------------------------------------------------------------

    def _launch(self, bucket: Bucket, adapt: bool) -> None:
        if adapt:
            self._step_of(bucket)
        self._mixings.append(self.net.begin_mix(bucket.row, self.round))

    def _begin_all(self) -> None:
        for bucket in self._flat.buckets[len(self._mixings) :]:
            self._launch(bucket, adapt=False)

    def _combine(self) -> None:
        for mixing in self._mixings:
            mixing.wait()

    def _forget(self) -> None:
        self._mixings.clear()
        self._missing = [set(bucket.parameters) for bucket in self._flat.buckets]

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        if module.training and torch.is_grad_enabled() and not self._away:
            with torch.no_grad():
                self._flat.require_in_place()
                self._begin_all()

    def _arrival(self, number: int) -> Callable[[Tensor], None]:
        """What to do when a parameter of bucket `number` has its gradient: all ranks launch the buckets in order."""

        @torch.no_grad()
        def arrived(parameter: Tensor) -> None:
            if self._accumulating or self._away:
                return
            if number < len(self._mixings) or parameter not in self._missing[number]:
                raise RuntimeError(
                    "a second backward() before step(), while parameters are updated during the backward pass: put "
                    "all but the last one into `with optimizer.accumulate():`, or wrap with overlap=False"
                )
            self._missing[number].remove(parameter)  # type: ignore[arg-type]
            while len(self._mixings) < len(self._missing) and not self._missing[len(self._mixings)]:
                self._launch(self._flat.buckets[len(self._mixings)], adapt=True)

        return arrived

    def _step_of(self, bucket: Bucket) -> None:
        """The optimizer's own step for the parameters of a bucket, with its usual groups and state."""
        groups = self.inner.param_groups
        parts = [{**group, "params": [p for p in group["params"] if p in bucket.parameters]} for group in groups]
        before = [dict(part) for part in parts]
        self.inner.param_groups = [part for part in parts if part["params"]]
        try:
            self.inner.step()
        finally:
            self.inner.param_groups = groups
        if before != parts:
            raise RuntimeError(
                f"{type(self.inner).__name__} changes its param_groups in a step, which cannot be done bucket by "
                "bucket: wrap with overlap=False"
            )

    def _require_idle(self, what: str) -> None:
        if self._mixings:
            raise RuntimeError(
                f"{what} between a training pass and its step(): call it after step(), and before the next pass of "
                "model.train() with gradients (evaluate under torch.no_grad())"
            )

    # -- as torch optimizers do ----------------------------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of the wrapped optimizer."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """That of the wrapped optimizer."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Those of the wrapped optimizer."""
        return self.inner.defaults

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See `torch.optim.Optimizer`."""
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """That of the wrapped optimizer, with the round and the push-sum weights; to be loaded by the same rank."""
        self._require_idle("state_dict()")
        return {**self.inner.state_dict(), _KEY: {"round": self.round, "weights": self._weights.clone()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave on this rank. The model's parameters are loaded apart, as always."""
        self._require_idle("load_state_dict()")
        own = state_dict.get(_KEY)
        if own is None:
            raise ValueError("this state_dict is not of a decentralized optimizer: load it before decentral.wrap")
        self.inner.load_state_dict({key: value for key, value in state_dict.items() if key != _KEY})
        self.round, self._weights = int(own["round"]), own["weights"].clone()

    def register_step_pre_hook(self, hook: Any) -> Any:
        """One of the wrapped optimizer, whose steps are called with it."""
        return self.inner.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Any) -> Any:
        """One of the wrapped optimizer."""
        return self.inner.register_step_post_hook(hook)

    def add_param_group(self, param_group: dict[str, Any]) -> NoReturn:
        """Not possible any more."""
        raise RuntimeError("add parameter groups before decentral.wrap: what travels has been laid out already")

    def __repr__(self) -> str:
        return f"DecentralizedOptimizer(mode={self.mode.value}, {self.inner!r})"
