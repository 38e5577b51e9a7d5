"""Synchronization of workers across processes: the mean of all rows, atomic averaging in pairs at any time (AD-PSGD's
communication, Lian et al., ICML 2018), and a global counter."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.network.asynchronous.mailbox import Mailbox
from decentral.network.asynchronous.messages import Message, unnoted
from decentral.network.kernels import headroom
from decentral.network.locks import Meeting
from decentral.network.transports.shared_memory import SharedMemory


class AllWorkers:
    """The mean over all workers, each of which calls it in its own thread; all processes create it at once.

    The last worker of a process sums its rows and runs the all-reduce for all of them (in shared memory if the messages
    use it, else over gloo); mailboxes keep working meanwhile, so no message is delayed.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._condition = mailbox.condition()
        self._rounds: dict[int, tuple[dict[int, Tensor], list[Tensor]]] = {}
        """Number -> rows by worker, and the mean once it is known."""
        self._memory = SharedMemory(mailbox.layout, mailbox.timeout_s) if mailbox.shared else None
        self._meeting = Meeting(mailbox.timeout_s) if len(mailbox.layout) > 1 and not mailbox.shared else None

    def mean(self, worker: int, row: Tensor, number: int) -> Tensor:
        """Return 1/n sum_j x_j over all workers j, once all have called with the same number: [P] -> [P].

        On the CPU. All workers of a process get the same read-only tensor. Raises what `Mailbox` raises.
        """
        mailbox, size = self._mailbox, len(self._mailbox.workers)
        mailbox.check()
        with self._condition:
            rows, found = self._rounds.setdefault(number, ({}, []))
            rows[worker] = row
            complete = len(rows) == size
            if complete:
                del self._rounds[number]
            else:
                whom = lambda: f"the other workers to meet worker {worker} at number {number}"  # noqa: E731
                mailbox.wait(self._condition, lambda: found, whom)
        if complete:
            mean = self._reduce([rows[own] for own in mailbox.workers])
            with self._condition:
                found.append(mean)
                self._condition.notify_all()
        return found[0]

    def close(self) -> None:
        """Release the memory."""
        if self._memory is not None:
            self._memory.close()

    def _reduce(self, rows: list[Tensor]) -> Tensor:
        """Sum the rows of this process in worker order, then over processes."""
        down = headroom(self._mailbox.num_workers)
        total = rows[0].to("cpu", copy=True).mul_(down)
        for row in rows[1:]:
            total.add_(row.cpu(), alpha=down)
        factor = 1 / (self._mailbox.num_workers * down)
        try:
            if self._memory is not None:
                return self._memory.total(total, factor)
            if self._meeting is not None:
                self._meeting.total(total)
        except BaseException as failure:
            self._mailbox.fail(failure)
            self._mailbox.check()  # it may already know which process is gone
            raise
        return total.mul_(factor)


class Tickets:
    """A global counter 0, 1, ... in the order of requests; all processes create it at once."""

    def __init__(self, mailbox: Mailbox, kind: int) -> None:
        """Create the counter; it uses this and the next message kind of the mailbox."""
        self._mailbox, self._ask, self._answer = mailbox, kind, kind + 1
        self._asked = dict.fromkeys(mailbox.workers, 0)
        self._guard = threading.Lock()  # local requests are handled in the threads of their workers
        self.following = 0
        """The next ticket; set it on all processes before the first request."""
        mailbox.handle(self._ask, self._give)

    def next(self, worker: int) -> int:
        """Return the next ticket to a local worker, in its thread. Raises what `Mailbox` raises."""
        number = self._asked[worker]
        self._asked[worker] = number + 1
        self._mailbox.send(worker, 0, self._ask, number)
        message = self._mailbox.receive(worker, self._answer, number, 0)
        assert message.rows is not None
        ticket = int(message.rows[0])
        message.release()
        return ticket

    def _give(self, message: Message) -> None:
        with self._guard:
            ticket, self.following = self.following, self.following + 1
        self._mailbox.send(0, message.source, self._answer, message.number, torch.tensor([ticket]))


class _Strand:
    """The communication thread of a local worker, and the lock of its row."""

    def __init__(self, row: Tensor, condition: threading.Condition) -> None:
        self.row, self.condition = row, condition
        self.lock = threading.Lock()
        self.tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.busy = False


class Pairs:
    """Atomic averaging of the rows of an active and a passive worker; all processes create it at once.

    Only active workers request and passive ones only answer, so there is no deadlock, and no third row mixes with one
    in flight. The active worker sends x_a; the passive one, under the lock of its row, answers with x_b and adds, say,
    (x_a - x_b) / 2; the active one, under its lock, adds (x_b - x_a) / 2 for the x_a that it sent. So the sum of both
    rows is preserved, and a gradient update of x_a in between is kept, as if the averaging had come before it.

    Each worker has a thread for this, and at most one averaging that it began is in flight.

    All operations on a worker's row are recorded in order, for replay, with the number of the averaging, as counted by
    its active worker, or of the update, whose partner is the worker itself:

    update   its own worker held it, and may have changed it
    ask      it went to a passive partner, as it was
    answer   a passive worker averaged with the row that came; its own went back
    average  the answer came, and the active worker averaged
    """

    def __init__(
        self,
        mailbox: Mailbox,
        rows: Tensor,
        active: Container[int],
        average: Callable[[int, Tensor, Tensor], None],
        *,
        prepare: Callable[[int], None] | None = None,
        kind: int = 0,
        note: Callable[..., None] = unnoted,
    ) -> None:
        """Create the pairs; `rows` [k, ...] of the local workers change in place, `active` has the active workers.

        `average` is called with a worker, the sent row and the received row, under the row's lock; `prepare` with a
        worker, under its lock, before its row is sent, returned or averaged. Messages use this and the next kind of the
        mailbox. `note` receives all events, see `unnoted`.
        """
        self._mailbox, self._active, self._average, self._prepare = mailbox, active, average, prepare
        self._ask, self._answer, self._note = kind, kind + 1, note
        pairs = zip(mailbox.workers, rows, strict=True)
        self._strands = {worker: _Strand(row, mailbox.condition()) for worker, row in pairs}
        mailbox.handle(self._ask, self._asked)
        self._threads = [mailbox.start(f"pairs: {worker}", self._work, worker) for worker in mailbox.workers]

    @contextmanager
    def hold(self, worker: int, number: int) -> Iterator[Tensor]:
        """Lock the row of a local worker for its update `number`; keep it short, as it blocks averaging.

        Raises earlier failures, as `Mailbox` does.
        """
        self._mailbox.check()
        strand = self._strands[worker]
        with strand.lock:
            yield strand.row
            self._note(worker, "update", number, partner=worker)

    def begin(self, active: int, passive: int, number: int) -> None:
        """Begin an averaging in the background, after waiting for the worker's previous one.

        Raises ConfigError for two active or two passive workers, and what `Mailbox` raises.
        """
        if active not in self._active or passive in self._active:
            kinds = ["active" if worker in self._active else "passive" for worker in (active, passive)]
            raise ConfigError(
                f"worker {active} cannot begin to average with worker {passive}: active ones begin and passive ones "
                f"answer, but they are {kinds[0]} and {kinds[1]}."
            )
        self.finish(active)
        strand = self._strands[active]
        strand.busy = True
        strand.tasks.put(lambda: self._begin(active, passive, number))

    def finish(self, active: int) -> None:
        """Wait until the averaging that a local worker began is complete. Raises what `Mailbox` raises."""
        strand = self._strands[active]
        with strand.condition:
            self._mailbox.wait(
                strand.condition, lambda: not strand.busy, lambda: f"the averaging that worker {active} began"
            )

    def close(self) -> None:
        """End the threads, after the last averaging of all workers: call `barrier` after the last `finish` first.

        Raises TimeoutError if they do not end, unless the mailbox has failed.
        """
        for strand in self._strands.values():
            strand.tasks.put(None)
        self._mailbox.end(self._threads, "pairs to end")

    # -- how -----------------------------------------------------------------------------------------------------------

    def _work(self, worker: int) -> None:
        while (task := self._strands[worker].tasks.get()) is not None:
            task()

    def _begin(self, active: int, passive: int, number: int) -> None:
        strand = self._strands[active]
        with strand.lock:
            sent = self._prepared(active).clone()
            self._note(active, "ask", number, partner=passive)
        self._mailbox.send(active, passive, self._ask, number, sent)
        message = self._mailbox.receive(active, self._answer, number, passive)
        assert message.rows is not None
        with strand.lock:
            self._prepared(active)
            self._average(active, sent, message.rows.view(sent.shape).to(sent.device))
            self._note(active, "average", number, partner=passive)
        message.release()
        with strand.condition:
            strand.busy = False
            strand.condition.notify_all()

    def _asked(self, message: Message) -> None:
        """Let the passive worker's thread answer."""
        self._strands[message.destination].tasks.put(lambda: self._reply(message))

    def _reply(self, message: Message) -> None:
        active, passive = message.source, message.destination
        strand = self._strands[passive]
        assert message.rows is not None
        with strand.lock:
            sent = self._prepared(passive).clone()
            self._average(passive, sent, message.rows.view(sent.shape).to(sent.device))
            self._note(passive, "answer", message.number, partner=active)
        message.release()
        self._mailbox.send(passive, active, self._answer, message.number, sent)

    def _prepared(self, worker: int) -> Tensor:
        if self._prepare is not None:
            self._prepare(worker)
        return self._strands[worker].row
