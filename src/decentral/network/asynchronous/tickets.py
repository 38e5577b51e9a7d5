"""Numbers that all workers draw in turn, each once: from the process of worker 0, which counts."""

from __future__ import annotations

import threading

import torch

from decentral.network.asynchronous.mail import Letter, PostOffice


class Tickets:
    """0, 1, ... in the order in which workers ask; to be made by all processes at once."""

    def __init__(self, office: PostOffice, kind: int) -> None:
        """Letters use this kind of the office and the next one."""
        self._office, self._ask, self._answer = office, kind, kind + 1
        self._asked = dict.fromkeys(office.workers, 0)
        self._guard = threading.Lock()  # letters from here are handled in the threads of their workers
        self._next = 0
        office.handle(self._ask, self._give)

    def begin_at(self, number: int) -> None:
        """The next ticket is this one; on all processes, before anybody asks."""
        self._next = number

    def next(self, worker: int) -> int:
        """The next one, for a local worker, in its thread. Raises what `PostOffice` raises."""
        number = self._asked[worker]
        self._asked[worker] = number + 1
        self._office.send(worker, 0, self._ask, number)
        letter = self._office.receive(worker, self._answer, number, 0)
        assert letter.rows is not None
        ticket = int(letter.rows[0])
        letter.release()
        return ticket

    def _give(self, letter: Letter) -> None:
        with self._guard:
            ticket, self._next = self._next, self._next + 1
        self._office.send(0, letter.source, self._answer, letter.number, torch.tensor([ticket]))
