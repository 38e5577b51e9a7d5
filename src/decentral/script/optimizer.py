"""A torch optimizer whose steps also average parameters with other ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from decentral.models.layers.statistics import has_mean
from decentral.network import presence
from decentral.script.agreement import Proposal, agree
from decentral.script.handle import hinted, refuse_a_fork
from decentral.script.parameters import align, broadcast, mean
from decentral.script.peers import Peers
from decentral.script.step import Step

KEY = "decentral"
"""The key of the round and other state in an optimizer's state, next to its parameters, where torch keeps it."""


class DecentralizedOptimizer(Optimizer):
    """The steps of a torch optimizer, u_i = Opt(g_i), combined with averaging over the ranks of `peers`.

        atc          x_i <- sum_j W_ij (x_j + u_j)                       adapt, then combine
        awc          x_i <- sum_j W_ij x_j + u_i                         adapt while combining
        push_sum     z_i = x_i / w_i, gradients at z_i;  x_i <- sum_j W_ij (x_j + u_j),  w_i <- sum_j W_ij w_j
        allreduce    x_i <- x_i + Opt(1/n sum_j g_j)                     no gossip: the baseline

    or with a step of any other algorithm of `decentral-run` (`algo=`), whose formula is in `decentral.algorithms`. The
    modes are dpsgd, dpsgd with mode=awc, sgp and allreduce.

    Step t = 0, 1, ... of this optimizer uses W of round t, for any number of forward or backward passes. Ying et al.
    2021, (22) and (23), with the gradient taken at x^(k-1); Assran et al. 2019 for push_sum, whose model parameters are
    the z_i. Optimizer state stays local. In awc, g_i is the gradient at x_i, but the optimizer sees the
    averaged parameters, so weight decay acts on those, as in BlueFog.

    With `overlap`, messages overlap the forward and backward passes (awc: starting at the first training forward of a
    step), or the backward pass (atc: a bucket of parameters is updated as soon as its gradients are ready, so gradients
    cannot be clipped or unscaled first).

    Between steps, the parameters are the models x_i of the algorithm. A missing gradient counts as zero; where the
    direction is zero as well (allreduce: where no rank has a gradient), the optimizer skips the parameter, as in torch.

    Learning rate schedulers, `state_dict` and `zero_grad` work as with the wrapped optimizer. All ranks call `step`
    equally often.
    """

    def __init__(self, peers: Peers, model: nn.Module, how: Step) -> None:
        """See `decentral.wrap`. The parameters must be the same on all ranks."""
        self.peers, self.inner = peers, how.inner
        self._how, self._model, self._closed = how, model, False

    @property
    def round(self) -> int:
        """The number of steps taken, which is the topology round of the next step."""
        return self._how.round

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Return whether a GradScaler asks, which then calls step() after an overflow; Lightning would not clip."""
        return bool(sys._getframe(1).f_globals.get("__name__") == torch.amp.GradScaler.__module__)

    # -- what a training loop calls ------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take one step; waits for the ranks that this one averages with. Raises what the network raises.

        closure    a function that computes the gradients, called once, before the step
        Returns what the closure returns, such as the loss; None without one.
        """
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        refuse_a_fork(self.peers.turn.process, "step()")
        if self._closed:
            raise RuntimeError("step() after close(): the wrapped optimizer's own step() still works")
        if self.is_averaged:
            raise RuntimeError("step() inside averaged() would be undone at its end: call it outside")
        with self._how.guard.hears():
            presence.look()
            self._how.guard.require(self._how.change())
            if not self._overflows():
                self._how.step()
        return loss

    def _overflows(self) -> bool:
        """Unscale the gradients for a GradScaler; return whether any rank's are infinite, so that all skip the step."""
        if (found := getattr(self, "found_inf", None)) is None:
            return False
        if self._how.under_way:
            self._how.guard.require(
                "a GradScaler may skip a step after its communication has started: wrap with overlap=False."
            )
        if (scale := self.grad_scale) is not None:  # type: ignore[attr-defined]
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale)
        return self.peers.world.any(bool(found))[0]

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Accumulate gradients without updates or messages, for all backward passes of a step but the last."""
        before, self._how.accumulating = self._how.accumulating, True
        try:
            yield
        finally:
            self._how.accumulating = before

    no_sync = accumulate
    """`accumulate`, under the name in torch's DistributedDataParallel."""

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give all ranks the mean of their parameters and floating-point buffers (batch norm statistics), to evaluate;
        restore their own on exit. All ranks enter it after equally many steps.

        Values without a mean (counters, the vectors of spectral norm, 8-bit floats) are rank 0's.
        """
        problem = self._not_idle("averaged()") or self._how.change()
        named = dict(self._model.named_buffers())
        told = ", ".join(f"{name} {list(buffer.shape)} {buffer.dtype}" for name, buffer in named.items())
        means = [buffer for name, buffer in named.items() if has_mean(self._model, name, buffer)]
        others = [buffer for name, buffer in named.items() if not has_mean(self._model, name, buffer)]
        with torch.no_grad(), hinted():
            agree(self.peers.world, Proposal("averaged", told and f"the buffers {told}", (), (), problem=problem))
            self._how.flush()
            rows = self._how.rows
        changing = [*rows, *means, *others]
        before = [tensor.clone() for tensor in changing]
        self._how.away = True
        try:
            with torch.no_grad(), hinted():
                mean([*rows, *means], self.peers.size)
                broadcast(others, 0)
            yield
        finally:
            self._how.away = False
            with torch.no_grad():
                for tensor, saved in zip(changing, before, strict=True):
                    tensor.copy_(saved)

    @property
    def is_averaged(self) -> bool:
        """Return whether the model is the mean of all ranks, inside `averaged`."""
        return self._how.away

    def close(self) -> Optimizer:
        """Remove the hooks from the model, close the network, and return the wrapped optimizer."""
        self._how.close()
        self._closed = True
        presence.look(now=True)
        return self.inner

    def _not_idle(self, what: str) -> str:
        """Explain why rows in flight forbid this; "" if there are none."""
        refuse_a_fork(self.peers.turn.process, what)
        if not self._how.under_way:
            return ""
        return (
            f"{what} between a training pass and its step(): call it after step(), and before the next pass of "
            "model.train() with gradients (evaluate under torch.no_grad())."
        )

    def _require_idle(self, what: str) -> None:
        if problem := self._not_idle(what):
            raise RuntimeError(problem)

    # -- as torch optimizers do ----------------------------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return those of the wrapped optimizer."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """Return the state of the wrapped optimizer."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Return those of the wrapped optimizer."""
        return self.inner.defaults

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See `torch.optim.Optimizer`."""
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer, with the round and the push-sum weights or the algorithm's state.

        Load it on the same rank. With algo='async_push_sum' all ranks call this at once, after equally many steps:
        shares in flight are delivered first.
        """
        self._require_idle("state_dict()")
        with torch.no_grad(), hinted():
            saved, own = self.inner.state_dict(), self._how.state()
            return {**saved, "state": {**saved["state"], KEY: own}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict` on this rank; all ranks load theirs. Load the model's parameters separately,
        as usual, before this or after it.

        Raises ValueError for a state that is not of a decentralized optimizer, or of another algorithm.
        """
        self._require_idle("load_state_dict()")
        saved = dict(state_dict["state"])
        own = saved.pop(KEY, None)
        if own is None:
            raise ValueError("this state_dict is not of a decentralized optimizer: load it before decentral.wrap")
        before = self.inner.state_dict()
        self.inner.load_state_dict({**state_dict, "state": saved})
        align(self.inner)
        try:
            with torch.no_grad(), hinted():
                self._how.load(own)
        except ValueError:  # all or nothing
            self.inner.load_state_dict(before)
            raise

    def _accept_weights(self) -> None:
        """Accept that each rank's weights and optimizer state have been loaded together since `decentral.wrap`."""
        self._how.guard.replaced = None

    def register_step_pre_hook(self, hook: Any) -> Any:
        """Register a hook on the steps of the wrapped optimizer."""
        return self.inner.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Any) -> Any:
        """Register a hook of the wrapped optimizer."""
        return self.inner.register_step_post_hook(hook)

    def add_param_group(self, param_group: dict[str, Any]) -> NoReturn:
        """Refuse: groups are fixed after wrapping."""
        raise RuntimeError("add parameter groups before decentral.wrap, not after it")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to pickle: the optimizer holds connections."""
        raise TypeError(
            "a DecentralizedOptimizer is connected to other ranks and cannot be copied or saved: use its "
            "state_dict(), or its .inner, the optimizer that was wrapped"
        )

    def __repr__(self) -> str:
        return f"DecentralizedOptimizer({self._how.name}, {self.inner!r})"
