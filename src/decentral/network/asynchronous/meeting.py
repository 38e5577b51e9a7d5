"""Where all workers of all processes meet: the mean of their rows, and numbers that they draw in turn."""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch import Tensor

from decentral.network.asynchronous.mailbox import Mailbox
from decentral.network.asynchronous.messages import Message
from decentral.network.transports.shared_memory import SharedMemory
from decentral.network.windows.locks import Meeting


class _Round(NamedTuple):
    rows: dict[int, Tensor]  # by worker
    mean: list[Tensor]  # empty, or the one there is


class AllWorkers:
    """The mean over all workers, each of which asks for it in a thread of its own; to be made by all processes at once.

    The last one of a process to come adds up its rows and goes through an all-reduce for all of them (shared memory
    where the messages have that, else gloo); meanwhile mailboxes carry on, so that nobody's mail waits for it.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._condition = mailbox.condition()
        self._rounds: dict[int, _Round] = {}
        self._memory = SharedMemory(mailbox.layout, mailbox.timeout_s) if mailbox.shared else None
        self._meeting = Meeting(mailbox.timeout_s) if len(mailbox.layout) > 1 and not mailbox.shared else None

    def mean(self, worker: int, row: Tensor, number: int) -> Tensor:
        """1/n sum_j x_j over all workers j, once all have asked with the same number: [P] -> [P].

        On the CPU. All workers of a process get the same tensor, not to be changed. Raises what `Mailbox` raises.
        """
        mailbox, size = self._mailbox, len(self._mailbox.workers)
        mailbox.check()
        with self._condition:
            round = self._rounds.setdefault(number, _Round({}, []))
            round.rows[worker] = row
            complete = len(round.rows) == size
            if complete:
                del self._rounds[number]
            else:
                mailbox.wait(
                    self._condition,
                    lambda: round.mean,
                    lambda: f"the other workers to meet worker {worker} at number {number}",
                )
        if complete:
            mean = self._reduce([round.rows[own] for own in mailbox.workers])
            with self._condition:
                round.mean.append(mean)
                self._condition.notify_all()
        return round.mean[0]

    def close(self) -> None:
        """Let go of the memory."""
        if self._memory is not None:
            self._memory.close()

    def _reduce(self, rows: list[Tensor]) -> Tensor:
        """Add up the rows of this process in the order of workers, and those of all processes."""
        total = rows[0].to("cpu", copy=True)
        for row in rows[1:]:
            total.add_(row.cpu())
        try:
            if self._memory is not None:
                return self._memory.total(total, 1 / self._mailbox.num_workers)
            if self._meeting is not None:
                self._meeting.total(total)
        except BaseException as failure:
            if isinstance(failure, RuntimeError):  # gloo's, where it is the first to notice
                self._mailbox.hear_who_is_gone()
                self._mailbox.check()
            self._mailbox.fail(failure)
            raise
        return total.mul_(1 / self._mailbox.num_workers)


class Tickets:
    """0, 1, ... in the order in which workers ask; to be made by all processes at once."""

    def __init__(self, mailbox: Mailbox, kind: int) -> None:
        """Messages use this kind of the mailbox and the next one."""
        self._mailbox, self._ask, self._answer = mailbox, kind, kind + 1
        self._asked = dict.fromkeys(mailbox.workers, 0)
        self._guard = threading.Lock()  # messages from here are handled in the threads of their workers
        self._next = 0
        mailbox.handle(self._ask, self._give)

    def begin_at(self, number: int) -> None:
        """The next ticket is this one; on all processes, before anybody asks."""
        self._next = number

    def next(self, worker: int) -> int:
        """The next one, for a local worker, in its thread. Raises what `Mailbox` raises."""
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
            ticket, self._next = self._next, self._next + 1
        self._mailbox.send(0, message.source, self._answer, message.number, torch.tensor([ticket]))
