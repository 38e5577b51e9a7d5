"""Sums over groups that no worker has to come to: the wait-avoiding group all-reduce of Li et al., TPDS 2021."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from decentral.network.asynchronous.mailbox import Mailbox
from decentral.network.asynchronous.messages import Message, unnoted
from decentral.network.asynchronous.protocol import GroupRules, Member
from decentral.topology.groups import activation_children, dimension, partners


class Joined(NamedTuple):
    """The sum over a group [P], not to be changed, with which version this worker is in it, and the sum's own version.

    `used` is a later version than the one joined if that is not kept any more, see `Member`.
    """

    total: Tensor
    contributed: int
    used: int


class _Local(Member[Joined]):
    """A local worker, shared with the thread that exchanges for it; all of it guarded by `condition`."""

    __slots__ = ("ages", "awaits", "buffer", "condition")

    def __init__(self, condition: threading.Condition, start: Tensor, depth: int, first: int) -> None:
        super().__init__(depth, first)
        self.condition = condition
        self.buffer = start.view(-1)
        self.ages: Counter[int] = Counter()
        self.awaits = ""  # whose row its thread waits for, in words


class WaitAvoidingGroups:
    """Versions 0, 1, ... of a sum over groups of S of n workers; to be made by all processes at once.

    A worker leaves its row in a buffer (`publish`) and asks for the sum of a version (`join`). The first to ask calls
    all workers along a binomial tree. Every worker has a thread that carries out all versions, in order, up to the
    highest that it has been called for, with whatever lies in the buffer, whether its worker is there or not: a
    butterfly over the k = log2 S partners of `topology.groups`. Members of a group get the same sum bit for bit.

    What takes part is a snapshot of the buffer with the version it was published as; a worker that comes after the
    snapshot waits for the end, and finds that an older row of its own is in the sum. Before a synchronisation
    (`AllWorkers.mean`) a worker publishes its row with that version, too: otherwise it would be asked for an older one
    while it is inside.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        rules: GroupRules,
        start: Tensor,
        *,
        first: int = 0,
        kind: int = 0,
        note: Callable[..., None] = unnoted,
    ) -> None:
        """`start` [k, P] is in the buffers of the local workers before they publish anything, as version `first` - 1:
        these rows are the buffers, if they are on the CPU.

        first   the first version that is asked for
        kind    messages use this and the next kind of the mailbox
        note    hears of each exchange with partners, and of which version the worker's own row was in it, see `unnoted`
        """
        self._mailbox, self._rules, self._first, self._note = mailbox, rules, first, note
        self._call, self._row = kind, kind + 1
        rows = zip(mailbox.workers, start.cpu(), strict=True)
        self._members = {worker: _Local(mailbox.condition(), row, rules.depth, first) for worker, row in rows}
        self._closing = False
        mailbox.handle(self._call, self._called)
        self._threads = [mailbox.start(f"groups: {worker}", self._work, worker) for worker in mailbox.workers]

    @property
    def ages(self) -> Counter[int]:
        """How often what a local worker contributed was so many versions old."""
        found: Counter[int] = Counter()
        for member in self._members.values():
            with member.condition:
                found.update(member.ages)
        return found

    def buffers(self) -> Tensor:
        """What lies in the buffers of the local workers [k, P], while nothing is under way."""
        return torch.stack([member.buffer for member in self._members.values()])

    # -- called by workers ---------------------------------------------------------------------------------------------

    def publish(self, worker: int, version: int, write: Callable[[Tensor], object]) -> None:
        """`write` changes the buffer [P]: what a worker contributes from now on, as this version."""
        member = self._members[worker]
        with member.condition:
            write(member.buffer)
            member.published = version

    def join(self, worker: int, version: int) -> Joined:
        """The sum of a version, once it has been carried out; calls the others if nobody has. To be published before.

        Raises what `Mailbox` raises.
        """
        member = self._members[worker]
        sets_off = self._rules.may_set_off(worker, version)
        with member.condition:
            first = (sets_off or self._rules.waits) and member.call(version)
            if first:
                member.condition.notify_all()
        if first and sets_off:
            self._tell(worker, version, came_over=-1)
        with member.condition:
            while (before := member.done) < version:  # every version has as long as the mailbox is patient
                self._mailbox.wait(
                    member.condition,
                    lambda before=before: member.done > before,  # type: ignore[misc]
                    lambda: (
                        f"{member.awaits or 'somebody to begin'} version {version} of the groups of worker {worker}"
                    ),
                )
            return member.take(version)

    def close(self) -> None:
        """End the threads, once all workers of all processes have joined what they want to join.

        What has been activated is carried out before. Raises TimeoutError if they do not end, unless the mailbox has
        failed.
        """
        self._closing = True
        for member in self._members.values():
            with member.condition:
                member.condition.notify_all()
        self._mailbox.end(self._threads, "groups to end")

    # -- how -----------------------------------------------------------------------------------------------------------

    def _tell(self, worker: int, version: int, came_over: int) -> None:
        for child in activation_children(worker, came_over, self._mailbox.num_workers):
            self._mailbox.send(worker, child, self._call, version)

    def _called(self, message: Message) -> None:
        """A call has come along the tree; a version that has been activated implies all before it."""
        member = self._members[message.destination]
        with member.condition:
            if not member.call(message.number):
                return
            member.condition.notify_all()
        self._tell(message.destination, message.number, dimension(message.source, message.destination))

    def _work(self, worker: int) -> None:
        """The thread of a worker: every version in order."""
        member, version = self._members[worker], self._first
        while True:
            with member.condition:
                while member.called < version:
                    if self._closing or self._mailbox.failure:
                        return
                    member.condition.wait()
            if self._rules.synchronizes(version):
                member.done = version
            else:
                self._carry_out(worker, member, version)
            version += 1

    def _carry_out(self, worker: int, member: _Local, version: int) -> None:
        began_ns = time.monotonic_ns()
        total, contributed = self._exchange(worker, member, version)
        with member.condition:
            member.awaits = ""
            member.finish(version, Joined(total, contributed, version))
            member.ages[version - contributed] += 1
            self._note(worker, "exchange", version, began_ns, contributed=contributed)
            member.condition.notify_all()

    def _exchange(self, worker: int, member: _Local, version: int) -> tuple[Tensor, int]:
        """The butterfly: in each phase what has been added up so far goes to a partner, from where it lies.

        Passes over a row: 2 for the snapshot, 3 for each phase.
        """
        mailbox, schedule = self._mailbox, self._rules.schedule
        them = partners(worker, version, mailbox.num_workers, schedule.group_size, schedule.dynamic)
        drafts = [mailbox.draft(partner, member.buffer) for partner in them]
        places = [*(draft.rows for draft in drafts), torch.empty_like(member.buffer)]
        with member.condition:
            contributed = member.published
            places[0].copy_(member.buffer)
            if self._rules.empties:
                member.buffer.zero_()
        for partner, draft, place in zip(them, drafts, places[1:], strict=True):
            member.awaits = f"worker {partner} to exchange rows in"
            mailbox.send(worker, partner, self._row, version, draft)
            message = mailbox.receive(worker, self._row, version, partner)
            assert message.rows is not None
            torch.add(draft.rows, message.rows, out=place)
            message.release()
            draft.release()
        return places[-1], contributed
