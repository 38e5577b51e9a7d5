"""A virtual cluster with real gradients: a timeline's operations on the rows of all workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from decentral.cluster.timeline import Timeline
from decentral.errors import ConfigError
from decentral.network import kernels
from decentral.training.stepper import Stepper

if TYPE_CHECKING:
    from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Team
    from decentral.availability.availability import Schedule
    from decentral.cluster.compute import GradientTimes
    from decentral.cluster.links import LinkCosts
    from decentral.cluster.operations import OnRow
    from decentral.cluster.timeline import Lateness
    from decentral.network.network import Network
    from decentral.training.ahead import AheadOracle


class RowViews:
    """A tensor of rows [n, ...] with cached views of single rows.

    `rows[i]` is row i, `rows[i : i + 1]` the same as a block of one; other indices go to the tensor. A torch view costs
    as much as an operation on a small model.
    """

    __slots__ = ("_alone", "_blocks", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._alone = tensor.unbind(0)
        self._blocks = tensor.split(1)

    def __getitem__(self, place: Any) -> Tensor:
        if type(place) is int:
            return self._alone[place]
        if type(place) is slice and place.step is None and place.start is not None and place.stop == place.start + 1:
            return self._blocks[place.start]
        return self.tensor[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        if not (type(place) is int and value is self._alone[place]):  # as after `rows[i] *= 2`
            self.tensor[place] = value

    def __len__(self) -> int:
        return len(self.tensor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, arguments: Sequence[Any] = (), options: Any = None
    ) -> Any:
        plain = [one.tensor if isinstance(one, cls) else one for one in arguments]
        return function(*plain, **(options or {}))


def with_row_views(value: Any) -> Any:
    """Return the same state, on the same memory, with cached views of single rows; other fields are unchanged."""
    if hasattr(value, "_asdict"):
        return value._replace(**{name: with_row_views(each) for name, each in value._asdict().items()})
    if isinstance(value, tuple):  # the buffers of an optimizer
        return tuple(map(with_row_views, value))
    return RowViews(value) if isinstance(value, Tensor) and value.dim() else value


class VirtualRows:
    """See `RowExecutor`. When the first gradient is needed, all begun ones are computed.

    A gradient uses the model at its beginning, so the time of its computation does not matter.
    """

    def __init__(self, algorithm: AsynchronousAlgorithm, state: Any, oracle: Any, *, together: bool) -> None:
        """`oracle` has `prefetch` and `complete`, as `AheadOracle`; `together`: several at once are cheaper."""
        self.algorithm, self.state, self.oracle, self.together = algorithm, state, oracle, together
        self.by_worker = with_row_views(state)
        """The state with cached views of single rows."""
        self.begun: dict[int, bool] = {}
        """Workers with a begun, uncomputed gradient, and whether it is at a copy."""
        self.g = self.copies = RowViews(torch.empty(0, 0))
        self.there: set[int] = set()
        """Workers whose gradient is in g."""
        self.underway: dict[Hashable, tuple[Tensor, ...]] = {}

    def begin_gradient(self, i: int, copied: bool) -> None:
        """See `RowExecutor`."""
        self.there.discard(i)
        self.begun[i] = copied
        if copied:
            models = self.algorithm.models(self.by_worker)
            if not len(self.copies):
                self.copies = RowViews(torch.empty_like(self.algorithm.models(self.state)))
            self.copies[i].copy_(models[i])

    def end_gradient(self, i: int) -> None:
        """See `RowExecutor`."""
        self.gradient(i)
        self.oracle.complete(i)

    def gradient(self, i: int) -> Tensor:
        """Return the latest gradient [P] of worker i."""
        if i in self.begun:
            self._compute(sorted(self.begun) if self.together else [i])
        return self.g[i]

    def local(self, i: int, what: OnRow, *arguments: Any) -> None:
        """See `RowExecutor`."""
        what(self.by_worker, i, self.gradient(i) if i in self.begun or i in self.there else None, *arguments)

    def call(self, what: Callable[..., object], *arguments: Any) -> None:
        """See `RowExecutor`."""
        what(self.by_worker, *arguments)

    def mean(self) -> None:
        """See `RowExecutor`."""
        self.state.x.copy_(kernels.mean_of(self.state.x))

    def keep(self, key: Hashable, i: int, emptied: bool) -> None:
        """See `RowExecutor`."""
        row = self.by_worker.send[i]
        self.underway[key] = (row.clone(),)
        if emptied:
            row.zero_()

    def total(self, key: Hashable, members: Sequence[int], kept: dict[int, Hashable], emptied: bool) -> None:
        """See `RowExecutor`."""
        send, underway = self.by_worker.send, self.underway
        rows = [underway.pop(kept[j])[0] if j in kept else send[j] for j in members]
        first, *others = rows
        total = torch.add(first, others.pop(0)) if others else first.clone()
        for row in others:
            total.add_(row)
        underway[key] = (total,)
        if emptied:
            for j in members:
                if j not in kept:
                    send[j].zero_()

    def put(self, key: Hashable, what: Callable[..., Any], *arguments: Any) -> None:
        """See `RowExecutor`."""
        self.underway[key] = tuple(what(self.by_worker, *arguments))

    def take(self, key: Hashable, what: Callable[..., object], *arguments: Any, drop: bool = True) -> None:
        """See `RowExecutor`."""
        what(self.by_worker, *arguments, *(self.underway.pop(key) if drop else self.underway[key]))

    def drop(self, key: Hashable) -> None:
        """See `RowExecutor`."""
        del self.underway[key]

    def _compute(self, workers: list[int]) -> None:
        models = self.algorithm.models(self.state)
        if not len(self.g):
            self.g = RowViews(torch.empty_like(models))
        g, copies = self.g.tensor, self.copies.tensor
        if len(workers) == 1:
            i = workers[0]
            at = (copies if self.begun[i] else models)[i : i + 1]
            self.g[i].copy_(self.oracle.prefetch(at, workers)[0])
        elif len(workers) == len(models) and len(set(self.begun.values())) == 1:
            g.copy_(self.oracle.prefetch(copies if self.begun[0] else models, workers))
        else:
            at = models[workers]
            if any(self.begun[i] for i in workers):
                copied = torch.tensor([self.begun[i] for i in workers])
                at[copied] = copies[[i for i in workers if self.begun[i]]]
            g[workers] = self.oracle.prefetch(at, workers)
        for i in workers:
            del self.begun[i]
        self.there.update(workers)


class AsynchronousStepper(Stepper):
    """n asynchronous workers in a virtual cluster. A step is n gradients, by any workers."""

    oracle: AheadOracle
    algorithm: AsynchronousAlgorithm

    def __init__(
        self,
        algorithm: AsynchronousAlgorithm,
        net: Network,
        oracle: AheadOracle,
        x: Tensor,
        team: Team,
        machines: tuple[GradientTimes, LinkCosts],
        bytes_per_row: int,
        schedule: Schedule | None = None,
    ) -> None:
        """Create the stepper; `algorithm` is bound, x [n, P] is donated, and a row is sent as `bytes_per_row`."""
        super().__init__(algorithm, net, oracle, x)
        self.team, self.machines, self.bytes_per_row = team, machines, bytes_per_row
        together = oracle.problem.facts.get("execution") == "batched" and not any(oracle.problem.model_states())
        self.rows = VirtualRows(algorithm, self.state, oracle, together=together)
        self.schedule = schedule
        if schedule is not None:
            from decentral.training.attendance import Absence

            self.attendance = Absence(schedule, self)
            self.extend(self.attendance)
        self.tells_time = True
        """True if seconds are meaningful: only with a configured cluster."""
        self.timeline = self._begin(self.rows)

    def _advance(self) -> None:
        """Run until n more gradients have been taken."""
        self._run_to(self.t + 1)
        self.net.traffic.bytes_begun, self.net.traffic.messages_begun = self.timeline.sent_by_now()

    def flush(self) -> None:
        """Do nothing: messages stay in flight."""

    @property
    def simulated_s(self) -> float | None:
        """The current simulated time of the cluster."""
        return self.timeline.now if self.tells_time else None

    def accounts(self) -> dict[str, np.ndarray]:
        """Return each worker's simulated time per activity, in seconds: float64 [n] each."""
        return self.timeline.accounts()

    def lateness(self) -> Lateness | None:
        """Return the staleness of received values, and the workers waited for."""
        return self.timeline.lateness()

    def on_the_way(self) -> dict[str, Any]:
        """Return, for a checkpoint, gradients and messages that neither the state nor the timeline determines."""
        rows, oracle = self.rows, self.oracle
        there, copied = sorted(rows.there), sorted(i for i, copied in rows.begun.items() if copied)
        return super().on_the_way() | {
            "underway": {
                "there": there,
                "g": rows.g.tensor[there] if there else None,
                "begun": sorted(rows.begun.items()),
                "copies": rows.copies.tensor[copied] if copied else None,
                "messages": [[key, list(tensors)] for key, tensors in rows.underway.items()],
                "early": [torch.from_numpy(oracle.is_early.copy()), oracle.early.clone()],
            }
        }

    def go_on_from(self, step: int, part: dict[str, Any]) -> None:
        """Resume from a checkpoint after `step` steps: the state's rows are already restored."""
        kept, rows, models = part["underway"], self.rows, self.models
        super().go_on_from(step, part)
        self.timeline = self._begin(_Nothing())
        self._run_to(step)
        rows.there, rows.begun = set(kept["there"]), dict(kept["begun"])
        if rows.there:
            rows.g = RowViews(torch.empty_like(models))
            rows.g.tensor[kept["there"]] = kept["g"].to(models.device)
        if copied := sorted(i for i, copied in rows.begun.items() if copied):
            rows.copies = RowViews(torch.empty_like(models))
            rows.copies.tensor[copied] = kept["copies"].to(models.device)
        is_early, losses = kept["early"]
        self.oracle.is_early[:] = is_early.numpy()
        self.oracle.early.copy_(losses)
        rows.underway = {
            tuple(key): tuple(each.to(models.device) for each in tensors) for key, tensors in kept["messages"]
        }
        self.timeline.rows = rows

    def _run_to(self, t: int) -> None:
        self.timeline.run(gradients=math.inf if t == self.team.num_steps else t * self.net.n)
        if self.timeline.completed < t * self.net.n:
            raise ConfigError(
                f"No worker can continue after {self.timeline.now:g} s of simulated time: each is absent for good or "
                "waits for one that is. Let workers return, or let the server wait for fewer (algo.quorum)."
            )

    def _begin(self, rows: Any) -> Timeline:
        times, costs = self.machines
        programs = [self.algorithm.program(i, self.team) for i in range(self.net.n)]
        most = self.net.n * self.team.num_steps
        return Timeline(programs, times, costs, self.bytes_per_row, most, rows, None, self.schedule)


class _Nothing:
    """An executor without rows, which ignores all operations while a timeline is replayed."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **settings: None
