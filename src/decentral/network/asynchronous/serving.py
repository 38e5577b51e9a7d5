"""A server between real processes: process 0 keeps its rows, and a thread applies the arrivals of each window."""

from __future__ import annotations

import math
import queue
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from decentral.network.asynchronous.messages import unnoted

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from decentral.network.asynchronous.mailbox import Mailbox
    from decentral.network.asynchronous.messages import Message
    from decentral.network.asynchronous.protocol import Server


class Serving:
    """The server of all workers; all processes create it at once.

    A worker sends its row and waits for the end of the window, which arrival number `quorum` opens: after `grace_s`
    seconds, or once all other workers wait or pause. If all pause before the quorum, those that wait pause, too, and
    send their rows again.
    """

    def __init__(
        self, mailbox: Mailbox, place: Server, state: Any, kind: int, note: Callable[..., None] = unnoted
    ) -> None:
        """Create the server, on the rows of `state` in process 0; messages use this and the next kind. `note` receives
        each arrival with its version and the one that its worker takes, see `unnoted`."""
        self._mailbox, self._place, self._state, self._note = mailbox, place, state, note
        self._up, self._down = kind, kind + 1
        self.ages = Counter[int]()
        """The histogram of staleness, in versions, of all arrivals; empty on other processes than 0."""
        self._arrived: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        if 0 in mailbox.workers:
            mailbox.handle(self._up, self._arrived.put)
            self._threads = [mailbox.start("server", self._work)]

    def exchange(self, worker: int, row: int) -> bool:
        """Deliver the row of a local worker, whose rows have this index, and take the model, in its thread; return
        False if it must pause first.

        Raises what `Mailbox` raises.
        """
        place, state, seen = self._place, self._state, self._place.seen(self._state, row)
        self._mailbox.send(worker, 0, self._up, seen, place.change(state, row), value=place.work(state, row))
        message = self._mailbox.receive(worker, self._down, seen, 0)
        if message.rows is None:
            return False
        place.take(state, row, message.rows, int(message.value))
        message.release()
        return True

    def pause(self, worker: int) -> None:
        """Tell the server that a local worker pauses, until all do."""
        self._mailbox.send(worker, 0, self._up, 0)

    def close(self) -> None:
        """End the thread, after the last exchange of all workers. Raises TimeoutError if it does not end."""
        self._arrived.put(None)
        self._mailbox.end(self._threads, "the server to end")

    @torch.no_grad()
    def _work(self) -> None:
        waiting: list[Message] = []
        pausing, closes, quorum = set[int](), math.inf, self._place.quorum
        while True:
            with suppress(queue.Empty):
                left = max(0.0, closes - time.monotonic()) if waiting else math.inf
                message = self._arrived.get(timeout=left if left < math.inf else None)
                if message is None:
                    return
                if message.rows is None:
                    pausing.add(message.source)
                else:
                    waiting.append(message)
                    if len(waiting) == quorum:
                        closes = time.monotonic() + self._place.grace_s
            nobody_else = len(waiting) + len(pausing) == self._mailbox.num_workers
            if len(waiting) >= quorum and (nobody_else or time.monotonic() >= closes):
                self._answer(waiting)
                waiting, closes = [], math.inf
            elif nobody_else:
                for each in waiting:
                    each.release()
                    self._mailbox.send(0, each.source, self._down, each.number)
                waiting, pausing = [], set()

    def _answer(self, waiting: Sequence[Message]) -> None:
        """Apply the arrivals of a window, and send the model to their workers."""
        place, state = self._place, self._state
        model, version = place.now(state)
        for k, each in enumerate(waiting, version):
            assert each.rows is not None
            self.ages[k - each.number] += 1
            self._note(each.source, "arrive", k, takes=version + len(waiting))
            place.arrive(state, each.rows.to(model.device), each.number, int(each.value))
            each.release()
        model, version = place.now(state)
        for each in waiting:
            self._mailbox.send(0, each.source, self._down, each.number, model, value=version)
