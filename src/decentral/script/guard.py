"""What was laid out at `decentral.wrap` is what is trained: every rank hears where a model or its optimizer changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from operator import is_

from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.optim import Optimizer

from decentral.errors import ConfigError
from decentral.script.ending import quiet
from decentral.script.handle import hinted

_AGAIN = (
    "what travels was laid out at decentral.wrap: wrap again, on every rank, with optimizer = decentral.wrap(model, "
    "optimizer.close(), peers=optimizer.peers, broadcast_from=None)."
)
_wrapped = count()


class Guard:
    """Refuses to average parameters that are not those of `decentral.wrap`, on every rank.

    A refusal on one rank closes its network. The others, who wait for it, read in the store of the group why.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        parameters: Sequence[nn.Parameter],
        rank: int,
        close: Callable[[], None],
    ) -> None:
        """`parameters` are those that travel; `close` closes the network. All ranks make their guards in one order."""
        self._model, self._optimizer, self.rank, self._close = model, optimizer, rank, close
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._trained = self._in_groups()
        self._still = [parameter for parameter in self._trained if parameter not in set(parameters)]
        self._lay_out()
        self._key = f"decentral refused {next(_wrapped)}"

    def require(self, problem: str) -> None:
        """Raise ConfigError if there is a problem, and let the others do so."""
        if problem:
            with suppress(Exception):  # without a store the others hear only that this rank is gone
                store = _get_default_store()
                store.set(self._key, f"rank {self.rank}: {problem}")
                store.check([self._key])  # set() does not wait until the others can read it
            self._close()
            raise ConfigError(problem)

    @contextmanager
    def hears(self) -> Iterator[None]:
        """An error of the transport inside is what another rank has refused, if one has; that of a step with a number
        too large for the parameters, which torch does not take, is refused."""
        try:
            with hinted():
                yield
        except (RuntimeError, OSError) as error:
            if "without overflow" in str(error):
                self.require(self._largest())
            told = ""
            with suppress(Exception), quiet():
                store = _get_default_store()
                told = store.get(self._key).decode() if store.check([self._key]) else ""
            if not told:
                raise
            self._close()  # ranks that wait for this one hear of it, too
            raise ConfigError(told) from error

    def change(self, in_place: bool) -> str:
        """What is not as it was; "" if all is. `in_place`: whether the parameters lie where they were put."""
        if not in_place:
            return (
                "the parameters are not where decentral.wrap has put them: call model.to(...), .half() and the like "
                "before wrap, not after it, and write new values with p.data.copy_(...)."
            )
        trained = self._in_groups()
        if len(trained) != len(self._trained) or not all(map(is_, trained, self._trained)):
            return f"the optimizer's param_groups have changed; {_AGAIN}"
        for parameter in self._still:
            if parameter.requires_grad or parameter.grad is not None:
                return f"{self._names[parameter]} is trained now, but was frozen; {_AGAIN}"
        if self._places() != self._places_were:
            new = [name for name, parameter in self._model.named_parameters() if parameter not in self._names]
            if new:
                return f"the model has new parameters ({', '.join(new)}); {_AGAIN}"
            self._lay_out()
        return ""

    def _largest(self) -> str:
        numbers = (one for group in self._optimizer.param_groups for one in group.items() if type(one[1]) is float)
        key, value = max(numbers, key=lambda one: abs(one[1]))
        return f"{key}={value:g} takes parameters beyond what their dtype holds, so that training diverges: lower it."

    def _in_groups(self) -> list[nn.Parameter]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _lay_out(self) -> None:
        """Keep which parameters and submodules each module has: cheaper to compare than the model is to walk."""
        modules = list(self._model.modules())
        self._parts = [part for module in modules for part in (vars(module)["_parameters"], vars(module)["_modules"])]
        self._alive = [*modules, *self._names]  # so that no other object takes the place of one in memory
        self._places_were = self._places()

    def _places(self) -> list[int]:
        return list(map(id, chain.from_iterable(map(dict.values, self._parts))))
