"""The contract that every algorithm fulfils."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from decentral.optim.optimizer import LocalRule
from decentral.topology.requirements import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.network.network import Network
    from decentral.topology.schedule import Schedule

    # The kinds of state, by what their first dimension counts. The checkpoint reads them from the annotations of
    # `State`.
    Rows = Tensor  # [k, ...]  one row for each local worker
    EdgeRows = Tensor  # [E, ...]  one row for each directed edge into a local worker
    Shared = Tensor  # the same on every process
    Buffers = tuple[Tensor, ...]  # [k, P] each: the local optimizer's


class Oracle(Protocol):
    """The papers' stochastic gradient: `oracle(x)` is grad F_i(x_i; xi_i) for every local worker, [k, P] -> [k, P]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Gradients g [k, P] at x [k, P]; the caller may overwrite them."""
        ...


class Algorithm(ABC):
    """A dataclass whose fields are its configuration, with `init` and `step`.

    `State` is a NamedTuple of tensors, annotated `Rows`, `EdgeRows`, `Shared` or `Buffers` (algorithms/__init__.py has
    the shapes): a checkpoint is the state and nothing else.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    """What the topology must satisfy; checked before the run starts."""

    survives_loss: ClassVar[bool] = True
    """Whether there is a rule for lost messages (`network.drop_probability`). A collective all-reduce has none."""

    needs_samples: ClassVar[bool] = False
    """Whether this is no optimizer, but averages samples x - gradient(x)."""

    uses_topology: ClassVar[bool] = True
    """Whether the topology makes a difference; if not, it is no part of the run's identity."""

    asynchronous: ClassVar[bool] = False
    """Whether processes go on without each other, so that the result of several depends on their pace."""

    local: LocalRule
    """The local optimizer with its learning rate, bound by `using`. Not configuration, and no state."""

    def using(self, local: LocalRule) -> Self:
        """This algorithm with a local update rule."""
        bound = copy.copy(self)
        bound.local = local
        return bound

    @abstractmethod
    def init(self, x: Tensor, net: Network) -> Any:
        """The state before step 0, for the initial models x [k, P]."""

    @abstractmethod
    def step(self, s: Any, oracle: Oracle, net: Network, t: int) -> Any:
        """The state after step t = 0, 1, ... It calls the oracle once: steps and epochs mean the same for everyone."""

    def settle(self, s: Any, net: Network) -> Any:
        """The state with all that was on its way brought home, so that it is complete.

        Called on all processes after the same step, before the workers are looked at together: evaluations,
        checkpoints, a trace. In one process iterates stay as they are.
        """
        return s

    def dilution(self, schedule: Schedule) -> float:
        """By how much less a single local update counts in the long run than with all-reduce, at the same rate."""
        return 1.0

    def models(self, s: Any) -> Tensor:
        """The models x_i [k, P] of the local workers: what is evaluated, and what a user would deploy."""
        return s.x
