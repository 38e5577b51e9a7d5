"""The interface of private training (`privacy=`): gradients are clipped and get noise before anything is sent."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.settings import Settings
from decentral.store.metrics import Metric

if TYPE_CHECKING:
    from decentral.tasks.task import Problem


class Privacy(Settings, ABC, where="privacy"):
    """Protection of a worker's gradients, and an account of the privacy that it gives."""

    name: str
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """The metrics of `account`."""

    def protect(self, problem: Problem, config: Any, workers: range) -> Problem:
        """Return the problem with protected gradients."""
        return problem

    def account(self, config: Any, rates: Iterable[float], directory: Path) -> list[dict[str, Any]]:
        """Return rows (split, metric, worker, value) on a finished run with these learning rates of its steps."""
        return []


@dataclass
class NoPrivacy(Privacy):
    """Gradients are used as they are."""

    name: str = "none"
