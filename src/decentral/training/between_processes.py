"""Asynchronous methods between real processes: a thread per local worker runs its program."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from decentral.cluster.groups import Groups
from decentral.cluster.operations import Gradient, check_ended
from decentral.cluster.server import Outer
from decentral.cluster.timeline import Lateness
from decentral.network.asynchronous.mailbox import Mailbox
from decentral.network.asynchronous.meeting import AllWorkers, Tickets
from decentral.network.asynchronous.meeting import Pairs as RealPairs
from decentral.network.asynchronous.messages import unnoted
from decentral.network.asynchronous.protocol import Server, is_fresh
from decentral.network.asynchronous.serving import Serving
from decentral.network.asynchronous.wait_avoiding import WaitAvoidingGroups
from decentral.topology.rounds import sides
from decentral.training.stepper import Stepper

if TYPE_CHECKING:
    from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Team
    from decentral.cluster.operations import OnRow, Operation, Pairs
    from decentral.network.network import Network
    from decentral.training.oracle import GradientOracle, Sleep

_GROUPS, _PAIRS, _TICKETS, _SERVER = 0, 2, 4, 6  # kinds of messages, two for each
_FINISHED = 1 << 62


class _Over(Exception):
    """A worker must stop."""


class ThreadedStepper(Stepper):
    """The local workers of an asynchronous run between processes. A step is n gradients, by any workers.

    Workers run up to the next pause (`may_go_on_to`), independently of calls of `step`. At a pause after t steps no
    worker has begun a gradient beyond n t in total (free-running methods), or beyond its own t (all others), and
    nothing is in flight: the state is that of a checkpoint. Time, for methods that use it, is stopped.

    The threads share the problem, which one of them uses at a time, and a tensor for the model in use; other rows are
    private to a worker or locked. Programs are started sequentially before the threads, so their topology look-ups need
    not be thread-safe.
    """

    algorithm: AsynchronousAlgorithm
    oracle: GradientOracle

    def __init__(
        self,
        algorithm: AsynchronousAlgorithm,
        net: Network,
        oracle: GradientOracle,
        x: Tensor,
        team: Team,
        mailbox: Mailbox,
        sleep: Sleep | None = None,
    ) -> None:
        """Create the stepper, on all processes at once; `algorithm` is bound, and x [k, P] is donated."""
        super().__init__(algorithm, net, oracle, x)
        self.team, self.mailbox, self.sleep, self.recorded = team, mailbox, sleep, oracle.recorded
        self._note = unnoted if oracle.recorded is None else oracle.recorded.note
        k = len(net.workers)
        self.g = list(torch.empty_like(algorithm.models(self.state)))
        self.at = torch.empty_like(algorithm.models(self.state)[:1])
        self.drawn = [0] * k
        self._computing = threading.Lock()
        self._gate = mailbox.condition()
        self._position = [0] * k
        self._bound, self._over, self._quiet = 0, False, True
        self._groups: dict[Groups, WaitAvoidingGroups] = {}
        self._pairs: dict[Pairs, RealPairs] = {}
        self._servers: dict[Server, Serving] = {}
        self._everyone = AllWorkers(mailbox)
        self._tickets = Tickets(mailbox, kind=_TICKETS)
        self._messages, self._bytes, self._waited_s = np.zeros(k), np.zeros(k), np.zeros(k)
        self._ages_before: Counter[int] = Counter()
        self._ages = self._ages_before
        self._latest = 0
        """The last ticket of a local worker: the number of gradients that all workers have begun."""
        self._threads: list[threading.Thread] = []

    # -- for the run loop ----------------------------------------------------------------------------------------------

    def may_go_on_to(self, step: int) -> None:
        """Let the workers run up to this step, at which all processes pause."""
        if self._servers:
            self.flush()
        self._quiet = False
        with self._gate:
            self._bound = step
            self._gate.notify_all()
        self._start()

    def _advance(self) -> None:
        """Wait until the local workers have done their share of another n gradients."""
        all_are_there = lambda: min(self._position) > self.t  # noqa: E731
        with self._unwrapped(), self._gate:
            self.mailbox.wait(self._gate, all_are_there, lambda: "the workers of this process", None, math.inf)

    def flush(self) -> None:
        """Deliver everything in flight, at a pause: all processes call this after the same step."""
        if self._quiet:
            return
        with self._unwrapped():
            for pairs in self._pairs.values():
                for worker in self.net.workers:
                    pairs.finish(worker)
            self.mailbox.barrier()
        for groups in self._groups.values():
            if self.state.send.device.type != "cpu":
                self.state.send.copy_(groups.buffers())
        self._count()
        self._quiet = True

    def lateness(self) -> Lateness:
        """Return the staleness of contributions to group sums, or of arrivals at a server, up to the last pause; waits
        are not recorded."""
        return Lateness(dict(sorted(self._ages.items())), [])

    @property
    def waited_s(self) -> float:
        """Return the mean time that local workers have waited or slept so far, in seconds."""
        return float(self._waited_s.mean())

    def on_the_way(self) -> dict[str, Any]:
        """Return the ages so far; at a pause nothing is in flight."""
        return super().on_the_way() | {"ages": [[age, count] for age, count in self._ages.items()]}

    def go_on_from(self, step: int, part: dict[str, Any]) -> None:
        """Resume after `step` steps: the state's rows are already restored."""
        super().go_on_from(step, part)
        self._bound = step
        self.drawn = self.oracle.draws.tolist()
        self._latest = step * self.net.n
        self._tickets.following = self._latest
        self._ages = self._ages_before = Counter(dict(part["ages"]))

    def close(self) -> None:
        """End all threads. Within a step, that is, after an error, they are left to end on their own, without further
        computation."""
        if not self._quiet:
            self.mailbox.fail(ConnectionError("this process has given up"))
        with self._computing, self._gate:  # no thread uses the problem, which may be closed from now on
            self._over = True
            self._gate.notify_all()
        self.mailbox.end(self._threads, "workers to end")
        if not self.mailbox.failure:
            for meeting in self._meetings:
                meeting.close()
            for pairs in self._pairs.values():
                pairs.close()
            self._everyone.close()
        self.mailbox.close()

    # -- for operations, each worker in its thread ---------------------------------------------------------------------

    def gradient(self, i: int, copied: bool) -> None:
        """See `cluster.operations.Host`."""
        place = self._place(i)
        self._pass_gate(i)
        t = self.drawn[place]
        self.drawn[place] = t + 1
        with self._noted(i, "gradient", t):
            if self.sleep is not None and (seconds := self.sleep.seconds(range(i, i + 1), t)) > 0:
                with self._waiting(i):
                    time.sleep(seconds)
            with self._computing:
                if self._over:
                    raise _Over
                self._compute(i, copied)

    def _compute(self, i: int, copied: bool) -> None:
        place = self._place(i)
        if copied:
            with self._held(i):
                at = self.at.copy_(self.models[place])
        else:
            at = self.models[place : place + 1].data  # detached: autograd would track changes of neighboring rows
        g = self.oracle(at, [place])[0]
        if len(self.g) > 1:
            self.g[place].copy_(g)
        else:
            self.g[place] = g  # no other thread computes one meanwhile

    def local(self, i: int, what: OnRow, timed: bool) -> None:
        """See `cluster.operations.Host`."""
        place = self._place(i)
        with self._held(i):
            arguments = (self.drawn[place] - 1, *([self._now()] if timed else []))
            what(self.state, place, self.g[place], *arguments)

    def publish(self, i: int, groups: Groups, version: int) -> None:
        """See `cluster.operations.Host`."""
        place, send = self._place(i), self.state.send

        def write(buffer: Tensor) -> None:
            elsewhere = send.device.type != "cpu"  # else the row of the state is the buffer
            if elsewhere and groups.empties:
                send[place].zero_()
            groups.publish(self.state, place, self.g[place], version)
            if elsewhere and groups.empties:
                buffer.add_(send[place].cpu())
            elif elsewhere:
                buffer.copy_(send[place])

        self._groups[groups].publish(i, version, write)

    def join(self, i: int, groups: Groups, version: int) -> None:
        """See `cluster.operations.Host`."""
        self.publish(i, groups, version)
        with self._noted(i, "join", version) as facts, self._waiting(i):
            joined = self._groups[groups].join(i, version)
            facts.update(contributed=joined.contributed, used=joined.used)
        fresh = is_fresh(version, joined.used, joined.contributed)
        place, size, n = self._place(i), groups.schedule.group_size, self.net.n
        groups.receive(self.state, place, version, fresh, size, joined.total.to(self.models.device))
        self._sent(place, size.bit_length() - 1, joined.total.nbytes)
        if not groups.waits:
            self._sent(place, (n - 1) / n, 8)  # word of a version reaches n - 1 workers

    def mean(self, i: int) -> None:
        """See `cluster.operations.Host`."""
        place, n = self._place(i), self.net.n
        row, number = self.models[place], self.drawn[place]
        with self._noted(i, "mean", number), self._waiting(i):
            mean = self._everyone.mean(i, row, number)
        row.copy_(mean)
        self._sent(place, 2 * (n - 1), row.nbytes / n)

    def average(self, i: int, pairs: Pairs, partner: int) -> None:
        """See `cluster.operations.Host`."""
        place = self._place(i)
        with self._noted(i, "asked", self.drawn[place], partner=partner), self._waiting(i):
            self._pairs[pairs].begin(i, partner, self.drawn[place])
        self._sent(place, 2, self.models[place].nbytes)  # there and back

    def outer(self, i: int, server: Server) -> None:
        """See `cluster.operations.Host`."""
        place = self._place(i)
        with self._noted(i, "outer", self.drawn[place]), self._waiting(i):
            answered = self._servers[server].exchange(i, place)
        if not answered:
            self._pause(i, self._bound)
            self.outer(i, server)
        elif i > 0:  # the server is beside worker 0
            self._sent(place, 2, self.models[place].nbytes)

    # -- how -----------------------------------------------------------------------------------------------------------

    @property
    def _meetings(self) -> list[WaitAvoidingGroups | Serving]:
        """Return the places that know the staleness of contributions."""
        return [*self._groups.values(), *self._servers.values()]

    def _start(self) -> None:
        if self._threads:
            return
        self._meet(self.algorithm.place(self.team))
        programs = [self._rest(i) for i in self.net.workers]
        if self.recorded is not None:
            self.mailbox.barrier()
            self.recorded.begin()
            self.mailbox.barrier()  # no process acts before all have begun
        for i, program in zip(self.net.workers, programs, strict=True):
            self._threads.append(self.mailbox.start(f"worker {i}", self._work, i, program))

    def _rest(self, i: int) -> Iterator[Operation]:
        """Return the program of worker i from its current position, before a gradient or an unanswered delivery."""
        program, place = iter(self.algorithm.program(i, self.team)), self._place(i)
        before = self.drawn[place]
        for operation in program:
            before -= isinstance(operation, Gradient)
            unanswered = isinstance(operation, Outer) and not before and operation.server.work(self.state, place)
            if before < 0 or not self.drawn[place] or unanswered:
                return itertools.chain([operation], program)
        return iter(())

    def _meet(self, place: Any) -> None:
        """Open the place that answers others' messages, even if no local worker uses it."""
        if isinstance(place, Groups):
            self._groups[place] = WaitAvoidingGroups(
                self.mailbox, place, self.state.send, first=self.t, kind=_GROUPS, note=self._note
            )
        elif isinstance(place, Server):
            self._servers[place] = Serving(self.mailbox, place, self.state, _SERVER, self._note)
        else:

            def exchanged(i: int, sent: Tensor, received: Tensor) -> None:
                place.exchange(self.state, self._place(i), sent, received, self._now())

            def prepared(i: int) -> None:
                place.prepare(self.state, self._place(i), self._now())

            asking = {i for i, side in enumerate(sides(self.team.rounds)) if side == 0}
            self._pairs[place] = RealPairs(
                self.mailbox,
                self.models,
                asking,
                exchanged,
                prepare=None if place.prepare is None else prepared,
                kind=_PAIRS,
                note=self._note,
            )

    def _work(self, i: int, program: Iterator[Operation]) -> None:
        with torch.no_grad(), suppress(_Over):
            for operation in program:
                operation.carry_out(self, i)
            check_ended(i, self.drawn[self._place(i)], self.team.num_steps)
        self._arrive(i, _FINISHED)

    def _place(self, i: int) -> int:
        return i - self.net.workers.start

    def _pass_gate(self, i: int) -> None:
        drawn = self.drawn[self._place(i)]
        ticket = self._tickets.next(i) if self.algorithm.free_running else drawn * self.net.n
        position = ticket // self.net.n
        if position < self._bound and not self._over:
            self._arrive(i, position)
        else:
            for server in self._servers.values():
                server.pause(i)
            self._pause(i, position)
        with self._gate:
            self._latest = max(self._latest, ticket)

    def _pause(self, i: int, position: int) -> None:
        """Let worker i pause before a gradient or a delivery at this position."""
        self._arrive(i, position)
        with self._noted(i, "pause", self.drawn[self._place(i)]), self._gate:
            may = lambda: position < self._bound or self._over  # noqa: E731
            self.mailbox.wait(self._gate, may, lambda: "the run to go on", None, math.inf)
            if self._over:
                raise _Over

    def _arrive(self, i: int, position: int) -> None:
        with self._gate:
            self._position[self._place(i)] = position
            self._gate.notify_all()

    def _sent(self, place: int, messages: float, bytes_each: float) -> None:
        """Count messages of a local worker, in its thread."""
        self._messages[place] += messages
        self._bytes[place] += messages * bytes_each

    def _count(self) -> None:
        """Add up, at a pause, the messages and ages of all workers since the previous one."""
        own: Counter[int] = Counter()
        for meeting in self._meetings:
            own.update(meeting.ages)
        counted = torch.zeros(len(self.net.workers), 3, dtype=torch.float64)
        counted[:, 0], counted[:, 1] = torch.from_numpy(self._messages), torch.from_numpy(self._bytes)
        counted[:, 2] = max(own, default=0)
        self._messages[:] = self._bytes[:] = 0
        found = self.net.gather(counted)
        self.net.traffic.messages_begun += round(float(found[:, 0].sum()))
        self.net.traffic.bytes_begun += round(float(found[:, 1].sum()))
        ages = torch.zeros(len(self.net.workers), int(found[:, 2].max()) + 1, dtype=torch.int64)
        for age, count in own.items():
            ages[0, age] = count
        of_all = self.net.gather(ages).sum(0).tolist()
        self._ages = self._ages_before + Counter({age: count for age, count in enumerate(of_all) if count})

    def _now(self) -> float:
        """Return the time in the unit of `Team.gradient_s`: one per gradient of each worker, regardless of the real
        time, derived from the number of begun gradients."""
        return self.team.gradient_s * self._latest / self.net.n

    @contextmanager
    def _held(self, i: int) -> Iterator[None]:
        """Lock the row of worker i against averaging."""
        if not self._pairs:
            yield
            return
        (pairs,) = self._pairs.values()
        with pairs.hold(i, self.drawn[self._place(i)] - 1):
            yield

    @contextmanager
    def _waiting(self, i: int) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._waited_s[self._place(i)] += time.perf_counter() - began

    @contextmanager
    def _noted(self, i: int, what: str, number: int, **facts: Any) -> Iterator[dict[str, Any]]:
        """Record the operation of a worker in the block, which may add facts."""
        began_ns = time.monotonic_ns()
        yield facts
        self._note(i, what, number, began_ns, **facts)

    @contextmanager
    def _unwrapped(self) -> Iterator[None]:
        """Re-raise another thread's failure here, unless it is a lost connection."""
        try:
            yield
        except RuntimeError as error:
            raise error.__cause__ or error from None
