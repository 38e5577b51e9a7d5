"""What links cost in every step, where the network changes under way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decentral.cluster.costs import LinkCosts
from decentral.cluster.network_changes import WHERE
from decentral.cluster.network_schedules import Link
from decentral.errors import ConfigError

if TYPE_CHECKING:
    from decentral.cluster.links import Links
    from decentral.cluster.network_changes import NetworkChanges


class ChangingCosts:
    """The links between n workers over the steps of a run; between machines where there are machines."""

    def __init__(
        self, changes: NetworkChanges, links: Links, num_workers: int, seed: int, steps_per_epoch: float | None
    ) -> None:
        """`steps_per_epoch`: None where there are no epochs.

        Raises ConfigError for what is missing, contradicts something, or makes no sense.
        """
        self.schedule, self._links, self._n, self._seed = changes.open(), links, num_workers, seed
        self._steps_per_epoch = steps_per_epoch
        between = "between_" if links.workers_per_machine else ""
        self._keys = f"{between}latency_s", f"{between}bandwidth_gbps"
        self._mode = f"{WHERE}.mode={changes.mode.name}"
        if self.schedule.changes:
            self._check()
        usual = (getattr(links, key) for key in self._keys)
        self._usual = Link(*(0.0 if value is None else value for value in usual))
        self._known: tuple[int, LinkCosts] | None = None

    @property
    def first(self) -> LinkCosts:
        """In step 0."""
        return self._of(0)

    def at(self, step: int, seconds: float) -> LinkCosts:
        """In a step that begins at this simulated time; the same object as long as nothing changes."""
        epoch = step / self._steps_per_epoch if self._steps_per_epoch is not None else 0.0
        return self._of(self.schedule.segment(epoch, seconds))

    def _of(self, segment: int) -> LinkCosts:
        if self._known is None or self._known[0] != segment:
            links = self._links
            if self.schedule.changes:
                link = self.schedule.link(segment, self._usual, self._seed)
                settings: dict[str, Any] = dict(zip(self._keys, link, strict=True))
                links = replace(links, **settings)
            self._known = segment, LinkCosts(links.open(self._n), self._n)
        return self._known[1]

    def _check(self) -> None:
        if self._links.file is not None:
            raise ConfigError(
                f"cluster.links.file={self._links.file} gives links costs of their own, and {self._mode} changes all "
                "alike: leave one of them out."
            )
        for key in self._keys:
            value = getattr(self._links, key)
            if self.schedule.says_all and value is not None:
                raise ConfigError(
                    f"cluster.links.{key}={value:g} has no meaning with {self._mode}, which says it: leave it out, or "
                    f"set cluster.links.{key}=null."
                )
        if self.schedule.by_epochs and self._steps_per_epoch is None:
            raise ConfigError(
                f"{self._mode} goes by epochs, of which there are none without training: use a trace by seconds, or "
                "leave it out."
            )
