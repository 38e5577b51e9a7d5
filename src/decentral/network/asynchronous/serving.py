"""A server between real processes: process 0 keeps its rows, and a thread applies one arrival after the other."""

from __future__ import annotations

import queue
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from decentral.network.asynchronous.messages import unnoted

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from decentral.network.asynchronous.mailbox import Mailbox
    from decentral.network.asynchronous.messages import Message
    from decentral.network.asynchronous.protocol import Server


class Serving:
    """The server of all workers; all processes create it at once.

    A worker sends its change and waits. Between the arrival that opens a window and its end after `grace_s` seconds, or
    the arrival of the last worker, nobody is answered.
    """

    def __init__(
        self, mailbox: Mailbox, place: Server, state: Any, kind: int, note: Callable[..., None] = unnoted
    ) -> None:
        """Create the server, on the rows of `state` in process 0; messages use this and the next kind. `note` receives
        each arrival with its version, see `unnoted`."""
        self._mailbox, self._place, self._state, self._note = mailbox, place, state, note
        self._up, self._down = kind, kind + 1
        self.ages = Counter[int]()
        """The histogram of staleness, in versions, of all arrivals; empty on other processes than 0."""
        self._arrived: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        if 0 in mailbox.workers:
            mailbox.handle(self._up, self._arrived.put)
            self._threads = [mailbox.start("server", self._work)]

    def exchange(self, worker: int, row: int) -> None:
        """Deliver the change of a local worker, whose rows have this index, and take the model, in its thread.

        Raises what `Mailbox` raises.
        """
        place, seen = self._place, self._place.seen(self._state, row)
        self._mailbox.send(worker, 0, self._up, seen, place.change(self._state, row))
        message = self._mailbox.receive(worker, self._down, seen, 0)
        place.take(self._state, row, message.rows, int(message.value))
        message.release()

    def close(self) -> None:
        """End the thread, after the last exchange of all workers. Raises TimeoutError if it does not end."""
        self._arrived.put(None)
        self._mailbox.end(self._threads, "the server to end")

    @torch.no_grad()
    def _work(self) -> None:
        waiting: list[Message] = []
        place, closes = self._place, 0.0
        while True:
            try:
                left = max(0.0, closes - time.monotonic()) if waiting else None
                message = self._arrived.get(timeout=left)
                if message is None:
                    return
                if not waiting:
                    closes = time.monotonic() + place.grace_s
                waiting.append(message)
                model, version = place.now(self._state)
                assert message.rows is not None
                self.ages[version - message.number] += 1
                self._note(message.source, "arrive", version)
                place.arrive(self._state, message.rows.to(model.device), message.number)
                message.release()
                if place.grace_s and len(waiting) < self._mailbox.num_workers:
                    continue
            except queue.Empty:
                pass
            model, version = place.now(self._state)
            for each in waiting:
                self._mailbox.send(0, each.source, self._down, each.number, model, value=version)
            waiting = []
