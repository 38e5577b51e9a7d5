"""How fast jobs go, and how long those that are known will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from decentral.scheduling.job import Job
from decentral.scheduling.pool import Seen

_LEAST_SHARE = 0.02  # of a job, by which it can be judged
_WATCHED_S = 5.0  # of a running job: its first steps are not like the others
_LONG_S = 60.0  # after which less than that share is enough


@dataclass
class _Evidence:
    """Seconds, and how much was done in them: 1 is a whole job."""

    seconds: float = 0.0
    work: float = 0.0

    def add(self, other: _Evidence) -> None:
        self.seconds, self.work = self.seconds + other.seconds, self.work + other.work

    @property
    def whole_s(self) -> float | None:
        """Of a whole job; None if this is too little to judge by."""
        return self.seconds / self.work if self.work >= _LEAST_SHARE else None


@dataclass
class _Watched:
    """A running job: what it goes on from, when it began, and where it was when it was first and last seen to move."""

    kind: str
    held: float
    began: float
    first: tuple[float, float] | None = None
    last: tuple[float, float] = (0.0, 0.0)

    def evidence(self) -> _Evidence | None:
        """What it has done since it was first seen to move; None if that is too little to judge by."""
        if self.first is None:
            return None
        seconds, share = self.last[0] - self.first[0], self.last[1] - self.first[1]
        enough = seconds >= _WATCHED_S and (share >= _LEAST_SHARE or (share > 0 and seconds >= _LONG_S))
        return _Evidence(seconds, share) if enough else None


class Pace:
    """Judges by what happens from now on alone: what earlier attempts have left is neither work nor time of this one.

    A job that has not begun takes what others of its kind did, or if there are none, those of all kinds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._watched: dict[str, _Watched] = {}
        self._finished: dict[str, _Evidence] = {}
        self._waiting: dict[str, tuple[str, float]] = {}  # kind, and the share that is stored

    def started(self, job: Job) -> None:
        """A job has been started, or started again."""
        self._waiting.pop(job.id, None)
        self._watched[job.id] = _Watched(job.kind, job.held(), self._now())

    def ended(self, job: Job, done: bool) -> float:
        """A job has ended; only one that is `done` says what others will take. Returns the seconds that it ran."""
        one = self._watched.pop(job.id, None)
        if one is None:
            return 0.0
        took = self._now() - one.began
        if done:
            self._finished.setdefault(one.kind, _Evidence()).add(_Evidence(took, 1 - one.held))
        return took

    def saw(self, seen: Iterable[Seen]) -> None:
        """Where the running jobs are."""
        now = self._now()
        for one in seen:
            watched = self._watched.get(one.job.id)
            if watched is None:
                continue
            if one.waits:
                watched.began = now
            elif one.fraction and watched.first is None:
                watched.first = watched.last = (now, one.fraction)
            elif one.fraction and one.fraction != watched.last[1]:
                watched.last = (now, one.fraction)

    def left_s(self, one: Seen) -> float | None:
        """Seconds that a running job still takes at its own pace; None before that is known."""
        watched = self._watched.get(one.job.id)
        evidence = watched.evidence() if watched is not None else None
        if watched is None or evidence is None:
            return None
        at, fraction = watched.last
        return max(0.0, evidence.seconds / evidence.work * (1 - fraction) - (self._now() - at))

    def to_go_s(self, seen: Sequence[Seen], waiting: Sequence[Job]) -> float | None:
        """Seconds until all are done, if as many run side by side as now; None before there is enough to judge by."""
        places = sum(not one.waits for one in seen)
        whole_s = self._whole_s()
        if not places or whole_s is None:
            return None
        running = [self._left_of(one, whole_s) for one in seen]
        kinds = [self._of_waiting(job) for job in waiting]
        total_s = sum(running) + sum(whole_s(kind) * (1 - held) for kind, held in kinds)
        return max(*running, total_s / places)

    def _left_of(self, one: Seen, whole_s: Callable[[str], float]) -> float:
        """At its own pace, or as others of its kind."""
        left_s, watched = self.left_s(one), self._watched.get(one.job.id)
        if left_s is not None or watched is None:
            return left_s or 0.0
        return max(0.0, whole_s(watched.kind) * (1 - watched.held) - (self._now() - watched.began))

    def _of_waiting(self, job: Job) -> tuple[str, float]:
        if job.id not in self._waiting:
            self._waiting[job.id] = (job.kind, job.held())
        return self._waiting[job.id]

    def _whole_s(self) -> Callable[[str], float] | None:
        """Kind -> seconds of a whole job; None if nothing is known of any."""
        known: dict[str, _Evidence] = {}
        of_all = _Evidence()
        running = [(one.kind, one.evidence()) for one in self._watched.values()]
        for kind, evidence in [*self._finished.items(), *running]:
            if evidence is not None:
                known.setdefault(kind, _Evidence()).add(evidence)
                of_all.add(evidence)
        mean_s = of_all.whole_s
        if mean_s is None:
            return None
        by_kind = {kind: mean_s if evidence.whole_s is None else evidence.whole_s for kind, evidence in known.items()}
        return lambda kind: by_kind.get(kind, mean_s)
