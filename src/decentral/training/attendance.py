"""Workers that leave and return: attendance per step, frozen rows, and the state that returning workers copy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from decentral.algorithms.features import Feature
from decentral.availability.availability import OnLeave, OnReturn
from decentral.cluster.clock import Underway
from decentral.cluster.settings import LONGEST_S
from decentral.errors import ConfigError
from decentral.optim.optimizer import LocalRule
from decentral.store.files import write_text
from decentral.topology.graph import Graph
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.present import Absent, PresentRule, components
from decentral.topology.requirements import check
from decentral.topology.rounds import Need
from decentral.training.checkpoint import state_fields, tensors_of
from decentral.training.stepper import Extension

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from decentral.algorithms.algorithm import Algorithm
    from decentral.availability.availability import Schedule
    from decentral.cluster.clock import Clock
    from decentral.config.schema import Config
    from decentral.network.network import Network
    from decentral.optim.optimizer import Taken
    from decentral.training.stepper import Stepper
    from decentral.training.virtual import AsynchronousStepper

_LATELY = 50
"""Number of steps in which a worker counts as recently returned."""
_FEW_WORKERS = 128
"""Number of workers up to which the topology of every number of present workers is checked."""
_ROUNDS = 256
"""Number of rounds checked if they vary."""
_ARRAYS, _COUNTS = (
    ("present", "attended", "steps", "updates", "returned"),
    ("in_pieces", "returns", "join_bytes", "begun_s"),
)


class Present(Extension):
    """The present workers of a run in which workers leave and return."""

    schedule: Schedule

    def groups(self) -> dict[str, np.ndarray]:
        """Return the groups to evaluate separately, bool [n]: at least the present workers."""
        raise NotImplementedError

    def store(self, directory: Path, stepper: Stepper) -> None:
        """Write when each worker was present."""
        until = (self.schedule.in_seconds and stepper.simulated_s) or stepper.t
        write_text(directory / "availability.csv", self.schedule.record(until) + "\n")


class Absence(Present):
    """The presence of asynchronous workers, whose absence the timeline simulates."""

    def __init__(self, schedule: Schedule, stepper: AsynchronousStepper) -> None:
        self.schedule, self.stepper = schedule, stepper

    def groups(self) -> dict[str, np.ndarray]:
        """Return the present workers, bool [n]."""
        return {"present": self.schedule.at(self.stepper.timeline.now)}

    def rows(self) -> dict[str, Any]:
        """Return the share of time in which each worker was available."""
        away = self.stepper.accounts()["away"] / max(self.stepper.timeline.now, 1e-9)
        return {"availability": {"attendance": [round(1 - each, 6) for each in away.tolist()]}}


class Attendance(Present):
    """The steps of an algorithm for the present workers S_t; the rows of all others are frozen.

    At the beginning of step t, if S_t differs from S_{t-1}:

    1. Workers that missed steps copy the fields that are equal on all present workers (`Parts.replicas`) from the
       lowest-numbered worker that missed none.
    2. Returning workers (in S_t, not in S_{t-1}) copy a model, by `on_return`: the mean of D_i, the neighbors of this
       round that are present now and were in the previous step; if there are none, that of the lowest-numbered such
       worker. All simultaneously.
    3. Corrections are handed over or reset, by `on_leave`, and the algorithm recomputes mixtures (`regroup`).

    Mixing matrices are doubly stochastic among present workers and the identity for absent ones: sums over all workers
    are preserved. In an algorithm with groups of `attends_steps` steps, S_t has the workers present in all of them.

    In simulated time a step begins when the last worker of S_{t-1} is ready, or, if S_{t-1} is empty, with the next
    arrival. A schedule in seconds is then queried, once per group of steps, for the workers that are present and do not
    crash before their gradients are done.
    """

    def __init__(
        self, config: Config, schedule: Schedule, algorithm: Algorithm, net: Network, oracle: Any, total_steps: int
    ) -> None:
        """`total_steps`: those for which `check` looks at the topology among the present workers."""
        self.config, self.availability, self.schedule = config, config.availability, schedule
        self.total_steps = total_steps
        absent = Absent.induced if Need.tree in algorithm.needs else self.availability.absent
        among = partial(config.communication.schedule, config.topology)
        self.rule = PresentRule(absent, self.availability.weights, among)
        local = (
            algorithm.local._replace(taken=self.taken) if isinstance(algorithm.local, LocalRule) else algorithm.local
        )
        self.algorithm = algorithm.bind(local, algorithm.compressor)
        self.net, self.oracle = net, oracle
        net.delivery.rule, net.reliable = self.rule, False
        oracle.present = np.ones(len(net.workers), dtype=bool)
        self.present = np.ones(net.n, dtype=bool)
        """[n]: the present workers of the current or last step."""
        self.attended = np.full(net.n, -1)
        """[n]: the last step that each worker attended."""
        self.steps = np.zeros(net.n, dtype=np.int64)
        """[n]: number of steps that each worker attended."""
        self.updates = np.zeros(net.n, dtype=np.int64)
        """[n]: number of steps in its local optimizer's state, which may be copied."""
        self.returned = np.full(net.n, -1)
        """[n]: the step in which each worker last returned."""
        self.in_pieces = self.returns = self.join_bytes = 0
        """Numbers of steps with disconnected present workers, and of returns; bytes of the returns."""
        self.begun_s = 0.0
        """Simulated time at the beginning of the latest step."""
        self.timekeeper: Attendance | None = None
        """The attendance of the stepper that keeps the time of a model of another size."""
        self._pieces: dict[object, bool] = {}
        self._memory: dict[int, Tensor] = {}
        self._away = torch.empty(0, dtype=torch.int64)
        self._resting: list[Tensor] = []

    def check(self, stepper: Stepper) -> None:
        """Raise ConfigError if, in some step, the topology does not exist for the number of present workers, or does
        not satisfy the method's needs."""
        availability, algorithm, topology = self.availability, self.algorithm, self.config.topology
        if self.rule.absent is Absent.induced or Feature.topology not in algorithm.supports:
            return
        sizes: dict[int, str] = {}
        if availability.in_seconds and self.net.n <= _FEW_WORKERS:
            sizes = dict.fromkeys(range(availability.least, self.net.n), "at some time")
        for t in () if availability.in_seconds else range(0, self.total_steps, algorithm.attends_steps):
            sizes.setdefault(int(self.attends(t).sum()), f"in step {t}")
        for m, when in sizes.items():
            if m in (0, 1, self.net.n):
                continue
            try:
                check(self.rule.schedule(m), algorithm.needs, algorithm.name, topology.name, topology.weights_given())
            except ConfigError as error:
                or_else = "availability.absent=induced, which keeps the edges among them"
                if self.config.communication.workers_per_machine > 1:
                    or_else = "availability=exactly, with whole machines of present workers"
                raise ConfigError(
                    f"availability={availability.name} has {m} workers present {when}, and "
                    f"availability.absent=rerouted needs a topology of that size: {error} (Or use {or_else}.)"
                ) from None

    def before_step(self, stepper: Stepper) -> None:
        """Determine S_t, bring the returning workers up to date, and keep the rows of the others."""
        t, net, before, clock = stepper.t, self.net, self.present, self.net.traffic.clock
        if clock is not None and before.any():
            self.begun_s = float(clock.now[before].max())
        elif clock is not None and self.schedule.in_seconds:
            self.begun_s = min(self.schedule.next_arrival(self.begun_s), LONGEST_S)
        if clock is not None and getattr(self.availability, "wait", False) and t % self.algorithm.attends_steps == 0:
            self._wait_for_all(clock)
        self.present = self.attends(t)
        here = self.present[net.workers.start : net.workers.stop]
        self.oracle.present = here
        stepper.idle = not self.present.any()
        if stepper.idle:
            return
        changed = t > 0 and (self.present != before).any()
        left = before & ~self.present
        heirs = self._heirs(np.flatnonzero(left), t) if changed else {}
        waiting = self._waiting_for(left, t)
        net.attend(self.present)
        if clock is not None:
            clock.let_pass(~(before & self.present), self.begun_s)
            clock.delay(waiting, self.availability.detection_s or 0.0)
        if changed:
            stepper.state = self._change(stepper.state, before, heirs, t)
        self.in_pieces += self._is_in_pieces()
        self.attended[self.present] = t
        self.steps += self.present
        self._away = torch.from_numpy(np.flatnonzero(~here))
        self._resting = [self._kept(number, rows, self._away) for number, rows in enumerate(_rows(stepper.state))]

    def after_step(self, stepper: Stepper) -> None:
        """Restore the rows of the absent workers."""
        if stepper.idle:
            return
        for rows, resting in zip(_rows(stepper.state), self._resting, strict=True):
            rows.index_copy_(0, self._away.to(rows.device), resting)
        self.updates += self.present

    def _kept(self, number: int, rows: Tensor, away: Tensor) -> Tensor:
        """Copy these rows to memory that later steps reuse for the field of this number: new memory costs more than the
        copy."""
        shape, memory = (len(away), *rows.shape[1:]), self._memory.get(number)
        if memory is None or memory.shape[1:] != shape[1:] or memory.dtype != rows.dtype or len(memory) < len(away):
            memory = self._memory[number] = rows.new_empty(shape)
        return torch.index_select(rows, 0, away.to(rows.device), out=memory[: len(away)])

    def _wait_for_all(self, clock: Clock) -> None:
        """Wait until all workers are present and, if they may crash, stay until their gradients are done."""
        crash = self.availability.detection_s is not None
        lasts = float(clock.gradients_s(self.algorithm.attends_steps).max()) if crash else 0.0
        self.begun_s = self.schedule.complete(self.begun_s, lasts)
        clock.wait(Underway(np.full(self.net.n, self.begun_s), *np.zeros((4, self.net.n))))

    def taken(self, t: int) -> Taken:
        """Return the number of steps of this process's local optimizers before step t."""
        own = self.updates[self.net.workers.start : self.net.workers.stop]
        of_present = np.unique(own[self.oracle.present])
        return int(of_present[0]) if len(of_present) == 1 else own.tolist()

    def attends(self, t: int) -> np.ndarray:
        """Return S_t: bool [n]."""
        H = self.algorithm.attends_steps
        first = t - t % H
        if self.timekeeper is not None:
            return self.timekeeper.present
        if self.schedule.in_seconds:
            return self._is_there(H) if t == first else self.present
        return np.logical_and.reduce([self.schedule.at_step(step) for step in range(first, first + H)])

    def _is_there(self, steps: int) -> np.ndarray:
        """Return the workers present now and for this number of steps."""
        clock, present = self.net.traffic.clock, self.schedule.at(self.begun_s)
        if clock is None or self.availability.detection_s is None:
            return present
        staying = self.schedule.stays(self.begun_s, self.begun_s + clock.gradients_s(steps))
        return staying if staying.sum() >= self.availability.least else present

    def _waiting_for(self, left: np.ndarray, t: int) -> np.ndarray:
        """Return the neighbors, in step t - 1, of crashed workers, or all workers for methods with a mean: bool [n]."""
        if self.availability.detection_s is None or t == 0 or not left.any():
            return np.zeros_like(left)
        if Feature.topology not in self.algorithm.supports:
            return ~left
        neighbors = self.net.delivery.neighbors(self._round(t - 1))
        return np.isin(np.arange(len(left)), neighbors.dst[left[neighbors.src]])

    def _change(self, s: Any, before: np.ndarray, heirs: dict[int, list[int]], t: int) -> Any:
        net, sent = self.net, self.net.traffic.bytes_begun
        back = np.flatnonzero(self.present & ~before)
        self.returned[back] = t
        self.returns += len(back)
        parts = self.algorithm.parts(s)
        if parts.replicas:
            newest = int(np.where(self.present, self.attended, -2).argmax())
            late = np.flatnonzero(self.present & (self.attended < self.attended[newest]))
            taken = [rows for name, value in _row_fields(s) for rows in tensors_of(value) if name in parts.replicas]
            self._move(taken, np.full_like(late, newest), late)
            if "opt" in parts.replicas:
                self.updates[late] = self.updates[newest]
        elif self.availability.on_return is not OnReturn.stale:
            self._move(parts.models, *self._donors(back, before, t))
        self._correct(parts.corrections, heirs)
        s = self.algorithm.regroup(s, net, t)
        self.join_bytes += net.traffic.bytes_begun - sent
        return s

    def _donors(self, back: np.ndarray, before: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Edges (src, dst) from the donors of each worker i in `back`: D_i, or the first of the workers in S_{t-1} and
        S_t; of D_i the lowest-numbered one where on_return is `neighbor`. No edges where there is no donor."""
        staying = np.flatnonzero(before & self.present)[:1]
        if not len(staying):
            return staying, staying
        src, dst = staying[:0], staying[:0]
        if Feature.topology in self.algorithm.supports:
            neighbors = self.net.delivery.neighbors(self._round(t))
            returning = np.zeros_like(before)
            returning[back] = True
            kept = returning[neighbors.dst] & before[neighbors.src]
            src, dst = neighbors.src[kept], neighbors.dst[kept]
            order = np.lexsort((src, dst))
            src, dst = src[order], dst[order]
            if self.availability.on_return is OnReturn.neighbor:
                dst, first = np.unique(dst, return_index=True)
                src = src[first]
        alone = np.setdiff1d(back, dst)
        return np.append(src, np.repeat(staying, len(alone))), np.append(dst, alone)

    def _round(self, t: int) -> int:
        """Return the topology round whose neighbors step t uses: the next one if its own is silent."""
        every = self.net.rounds.every
        return t // getattr(self.algorithm, "period_steps", 1) if every == 1 else t - t % every + every - 1

    def _move(self, taken: Sequence[Tensor], src: np.ndarray, dst: np.ndarray) -> None:
        """Each worker in dst takes over the mean of the rows of its donors, the workers in src beside it."""
        if not len(dst):
            return
        n = self.net.n
        others = np.setdiff1d(np.arange(n), dst)
        weight = np.append(np.ones(len(others)), 1 / np.bincount(dst)[dst])
        self._hand_over(taken, MixingMatrix.of_entries(n, np.append(others, src), np.append(others, dst), weight))
        if self.oracle.problem is not None:
            donors: dict[int, list[int]] = {}
            for i, j in zip(dst.tolist(), src.tolist(), strict=True):
                donors.setdefault(i, []).append(j)
            self.net.traffic.bytes_begun += self.oracle.problem.take_over_states(donors, self.net)

    def _hand_over(self, taken: Sequence[Tensor], A: MixingMatrix) -> None:
        for rows in taken:
            if rows.numel():
                moved = self.net.move(rows if rows.is_contiguous() else rows.clone(), A)
                if moved.data_ptr() != rows.data_ptr():
                    rows.copy_(moved)

    def _heirs(self, left: np.ndarray, t: int) -> dict[int, list[int]]:
        """Return, for leaving workers, their neighbors of the previous step that stay, or else the first that does."""
        if self.availability.on_leave is not OnLeave.handover or not len(left):
            return {}
        neighbors, stay = self.net.delivery.neighbors(self._round(t - 1)), self.present & (self.attended == t - 1)
        found = {int(i): neighbors.dst[(neighbors.src == i) & stay[neighbors.dst]].tolist() for i in left}
        return {i: near or np.flatnonzero(stay)[:1].tolist() for i, near in found.items()}

    def _correct(self, c: Tensor | None, heirs: dict[int, list[int]]) -> None:
        """c_j += c_i / |D_i| and c_i = 0 for each leaving worker i (handover); all c = 0 (restart)."""
        if c is not None and self.availability.on_leave is OnLeave.restart:
            c.zero_()
        if c is not None and (to := {i: near for i, near in heirs.items() if near}):
            rest = np.setdiff1d(np.arange(self.net.n), list(to))
            src = np.concatenate([rest, *([i] * len(near) for i, near in to.items())])
            weight = np.concatenate([np.ones(len(rest)), *(np.full(len(near), 1 / len(near)) for near in to.values())])
            dst = np.concatenate([rest, *to.values()])
            self._hand_over([c], MixingMatrix.of_entries(self.net.n, src, dst, weight))

    def _is_in_pieces(self) -> bool:
        """Return whether the graph among present workers, over all rounds if they vary, is disconnected."""
        delivery = self.net.delivery
        if Feature.topology not in self.algorithm.supports or delivery.present is None or delivery.rule is None:
            return False
        if delivery.rule.absent is Absent.rerouted:
            return False
        key = self.present.tobytes()
        if key not in self._pieces:
            every = [delivery.neighbors(r) for r in range(min(self.net.rounds.period, _ROUNDS))]
            keys = np.unique(np.concatenate([each.dst * self.net.n + each.src for each in every]))
            of = components(Graph.of_keys(self.net.n, keys))
            self._pieces[key] = len(np.unique(of[self.present])) > 1
        return self._pieces[key]

    def groups(self) -> dict[str, np.ndarray]:
        """Return the groups to evaluate separately, bool [n]: present workers, and recently returned ones."""
        lately = (self.returned >= 0) & (self.returned > self.attended.max() - _LATELY)
        return {"present": self.present, "returned": self.present & lately}

    def state(self) -> dict[str, Any]:
        """Return the attendance so far."""
        arrays = {name: torch.from_numpy(getattr(self, name)) for name in _ARRAYS}
        return {"attendance": arrays | {name: getattr(self, name) for name in _COUNTS}}

    def load_state(self, part: dict[str, Any], step: int) -> None:
        """See `Extension`."""
        for name, value in part["attendance"].items():
            setattr(self, name, value.numpy() if name in _ARRAYS else value)
        if self.present.any():
            self.net.attend(self.present)

    def rows(self) -> dict[str, Any]:
        """Return the facts on attendance.

        attendance         share of steps that each worker attended
        returns            number of returns
        in_pieces          share of steps with disconnected present workers
        join_bytes         bytes copied by returning workers, in total: part of the bytes sent
        """
        if self.timekeeper is not None:
            return self.timekeeper.rows()
        taken = max(1, int(self.attended.max()) + 1)
        facts = {
            "attendance": [round(each, 6) for each in (self.steps / taken).tolist()],
            "returns": self.returns,
            "in_pieces": round(self.in_pieces / taken, 6),
            "join_bytes": self.join_bytes,
        }
        return {"availability": facts}


def _row_fields(s: Any) -> list[tuple[str, Any]]:
    """Return the fields of a state with a row for each local worker."""
    return [(name, value) for name, kind, value in state_fields(s) if kind in ("Rows", "Buffers")]


def _rows(s: Any) -> list[Tensor]:
    return [rows for _, value in _row_fields(s) for rows in tensors_of(value)]
