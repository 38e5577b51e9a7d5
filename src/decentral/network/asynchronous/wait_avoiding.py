"""The wait-avoiding group all-reduce of Li et al., TPDS 2021: group sums that do not wait for late workers."""

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
    """The read-only sum over a group [P], the version of this worker's contribution, and the version of the sum.

    `used` is later than the joined version if that is no longer kept, see `Member`.
    """

    total: Tensor
    contributed: int
    used: int


class _Local(Member[Joined]):
    """A local worker's state, shared with its exchange thread and guarded by `condition`."""

    __slots__ = ("ages", "awaits", "buffer", "condition")

    def __init__(self, condition: threading.Condition, start: Tensor, depth: int, first: int) -> None:
        super().__init__(depth, first)
        self.condition = condition
        self.buffer = start.view(-1)
        self.ages: Counter[int] = Counter()
        self.awaits = ""  # description of the row its thread waits for


class WaitAvoidingGroups:
    """Versions 0, 1, ... of a sum over groups of S of n workers; all processes create it at once.

    A worker writes its row to a buffer (`publish`) and requests the sum of a version (`join`). The first request
    activates all workers along a binomial tree. Each worker has a thread that runs all versions in order, up to the
    highest activated one, with the current buffer, whether or not the worker has arrived: a butterfly over the
    k = log2 S partners of `topology.groups`. Members of a group get bitwise equal sums.

    The contribution is a snapshot of the buffer with its published version. A worker that arrives after the snapshot
    waits for the end, and the sum contains its older row. Before a synchronization (`AllWorkers.mean`) a worker also
    publishes its row with that version: otherwise an older row would be contributed meanwhile.
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
        """Create the groups; `start` [k, P] is the initial content of the local buffers, as version `first` - 1, and
        becomes their memory if it is on the CPU.

        first   the first requested version
        kind    messages use this and the next kind of the mailbox
        note    receives each exchange with partners, with the version of the worker's own row, see `unnoted`
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
        """Return the histogram of staleness, in versions, of the local workers' contributions."""
        found: Counter[int] = Counter()
        for member in self._members.values():
            with member.condition:
                found.update(member.ages)
        return found

    def buffers(self) -> Tensor:
        """Return the local workers' buffers [k, P], while nothing is in flight."""
        return torch.stack([member.buffer for member in self._members.values()])

    # -- called by workers ---------------------------------------------------------------------------------------------

    def publish(self, worker: int, version: int, write: Callable[[Tensor], object]) -> None:
        """Let `write` change the buffer [P]: the worker's contribution from now on, as this version."""
        member = self._members[worker]
        with member.condition:
            write(member.buffer)
            member.published = version

    def join(self, worker: int, version: int) -> Joined:
        """Return the sum of a version once it is complete; activate it if necessary. Call `publish` first.

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
            while (before := member.done) < version:  # each version has the mailbox's full timeout
                self._mailbox.wait(
                    member.condition,
                    lambda before=before: member.done > before,  # type: ignore[misc]
                    lambda: (
                        f"{member.awaits or 'somebody to begin'} version {version} of the groups of worker {worker}"
                    ),
                )
            return member.take(version)

    def close(self) -> None:
        """End the threads, after the last `join` of all workers of all processes.

        Activated versions are completed first. Raises TimeoutError if they do not end, unless the mailbox has failed.
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
        """Handle an activation from the tree; an activated version implies all earlier ones."""
        member = self._members[message.destination]
        with member.condition:
            if not member.call(message.number):
                return
            member.condition.notify_all()
        self._tell(message.destination, message.number, dimension(message.source, message.destination))

    def _work(self, worker: int) -> None:
        """Run all versions in order: the thread of a worker."""
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
        """Run the butterfly: in each phase the partial sum goes to a partner, in place.

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
