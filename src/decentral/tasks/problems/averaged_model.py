"""The averaged model of a run: the mean of the workers' parameters, and buffers that fit it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from decentral.errors import ConfigError
from decentral.gradients.passes.worker_models import WorkerModels, make_room, seed_draws, tensors_of, with_versions
from decentral.gradients.precision import float32
from decentral.models.layers.statistics import (
    has_batch_statistics,
    is_averaged,
    recompute_batch_statistics,
    statistics_of,
)

if TYPE_CHECKING:
    from decentral.network.network import Network

_NAMED = 3


class AveragedModel:
    """A module for the parameters of any model [P], with the states that were averaged last."""

    def __init__(self, template: nn.Module, device: torch.device) -> None:
        self.device, self.models = device, WorkerModels(template, 1, device)
        (self._state,) = self.models.state()

    def average(self, states: Sequence[dict[str, Any]], net: Network) -> None:
        """Adopt the average of all workers' states, given those of the k local workers; all processes call this.

        Floating-point buffers and frozen parameters are means, see `is_averaged`. Everything else is worker 0's,
        including values with different shapes or types on different workers.
        """
        (module,) = self.models.modules
        tensors = [state.get("tensors", {}) for state in states]
        kinds = {name: _kind(t) for name, t in tensors[0].items() if t is not None and is_averaged(module, name, t)}
        rest = states[0] | {"tensors": {name: tensor for name, tensor in tensors[0].items() if name not in kinds}}
        kinds, state = _from_first([kinds, rest], net)
        fits = [[_kind(each.get(name)) == kind for name, kind in kinds.items()] for each in tensors]
        agreed = net.gather(torch.tensor(fits, dtype=torch.float64)).bool().all(0).tolist() if kinds else []
        for name in itertools.compress(kinds, agreed):
            rows = torch.stack([each[name] for each in tensors])
            numbers = torch.view_as_real(rows) if rows.is_complex() else rows
            mean = net.average(numbers.double().reshape(len(tensors), -1)).view(numbers.shape[1:])
            state["tensors"][name] = (torch.view_as_complex(mean) if rows.is_complex() else mean).to(rows.dtype)
        if not all(agreed):
            others = [name for name, agree in zip(kinds, agreed, strict=True) if not agree]
            state["tensors"] |= _from_first({name: tensors[0].get(name) for name in others}, net)
        self._state = state

    def average_of(self, members: Sequence[int], states: Sequence[dict[str, Any]], net: Network) -> None:
        """Adopt the averaged states of some workers, with the frozen parameters of the last average: see `means`."""
        (mean,) = self.means([members], states, net)
        self._state = mean | {"tensors": self._state.get("tensors", {}) | mean["tensors"]}

    def means(
        self, of: Sequence[Sequence[int]], states: Sequence[dict[str, Any]], net: Network
    ) -> list[dict[str, Any]]:
        """Return the averages of the workers' module states over each of these lists of workers, without frozen
        parameters, given the states of the k local workers; all processes call this.

        Floating-point buffers of equal shape are averaged, everything else is the first worker's.
        """
        (module,), averages = self.models.modules, []
        buffers = dict(module.named_buffers(remove_duplicate=False)).keys()
        own = [
            state | {"tensors": {name: t for name, t in state.get("tensors", {}).items() if name in buffers}}
            for state in states
        ]
        known = _fetched(own, sorted({j for each in of for j in each}), net)
        for first, *others in of:
            mean = copy.deepcopy(known[first])
            for name, tensor in mean["tensors"].items():
                each = [known[j]["tensors"].get(name) for j in (first, *others)]
                if len({_kind(one) for one in each}) == 1 and tensor is not None and is_averaged(module, name, tensor):
                    mean["tensors"][name] = torch.stack(each).mean(0)
            averages.append(mean)
        return averages

    @contextmanager
    def at(self, x: Tensor, batches: Callable[[], Iterable[Tensor]]) -> Iterator[WorkerModels]:
        """Yield the module with these parameters [P], and batch statistics recomputed on the batches."""
        self.models.bind(x[None])
        self.models.load_state([self._state])
        module = self.models.for_tests(0)
        seed_draws(self.device, 0, purpose="batch statistics")
        with float32(self.device):
            recompute_batch_statistics(module, batches())
        tensors = self._state.get("tensors", {}) | statistics_of(module)
        self.models.load_state([self._state | {"tensors": tensors}])
        yield self.models
        self.models.release()

    def state_dict(self, x: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `state_dict` of the module with parameters [P] and a state, on the CPU: views of x, if x is on the
        CPU."""
        (module,), x = self.models.modules, x.to(self.device)
        self.models.bind(x[None])
        self.models.load_state([dict(state)])
        storage, state_dict = x.untyped_storage().data_ptr(), module.state_dict()
        for name, value in state_dict.items():
            if self.models.is_initial(name, value):
                state_dict[name] = self._frozen[name]
            elif isinstance(value, Tensor):
                is_view = value.device.type == "cpu" and value.untyped_storage().data_ptr() == storage
                state_dict[name] = value.detach() if is_view else value.detach().to("cpu", copy=True)
        self.models.release()
        return dict(state_dict)

    @cached_property
    def _frozen(self) -> dict[str, Tensor]:
        """Return the initial frozen parameters on the CPU: all stored models share them."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.models.frozen.items()}

    def begun_with(self, tensors: Mapping[str, Any], num_parameters: int) -> tuple[Tensor, dict[str, Any]]:
        """Return the parameters [P] and the state of a `state_dict`. Raises ConfigError if it belongs to another
        module."""
        (module,), x = self.models.modules, self.models.leaves[0][0].new_zeros(num_parameters)
        self.models.bind(x[None])
        make_room(module, tensors)
        here, there = ({name: _shape(v) for name, v in each.items()} for each in (module.state_dict(), tensors))
        for name in sorted(here.keys() | there.keys()):
            if here.get(name) != there.get(name):
                raise ConfigError(
                    f"its {name} is {there.get(name, 'missing')}, and this model's is {here.get(name, 'missing')}."
                )
        module.load_state_dict(with_versions(module, tensors))
        (state,) = self.models.state()
        self.models.release()
        return x, state


def note(module: nn.Module, examples: str) -> tuple[str, ...]:
    """Return notes on the averaged model's buffers for readers of its metrics."""
    said, recomputed = [], statistics_of(module).keys()
    if has_batch_statistics(module):
        said.append(f"batch-norm statistics recomputed on {examples}")
    frozen = dict(module.named_parameters(remove_duplicate=False))
    others = {name: t for name, t in tensors_of(module).items() if name not in recomputed and name not in frozen}
    averaged = [name for name, tensor in others.items() if is_averaged(module, name, tensor)]
    for names, whence in ((averaged, "averaged over the workers"), (others.keys() - averaged, "taken from worker 0")):
        some = sorted(names)
        more = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
        said += [f"{', '.join(some[:_NAMED])}{more} {whence}"] if some else []
    return (f"averaged model: {'; '.join(said)}",) if said else ()


def _kind(tensor: Tensor | None) -> str:
    return "" if tensor is None else f"{tensor.dtype} {list(tensor.shape)} {tensor.layout}"


def _shape(value: Any) -> object:
    return list(value.shape) if isinstance(value, Tensor) else "extra state"


def _from_first(value: Any, net: Network) -> Any:
    """Broadcast worker 0's value to all processes: tensors, numbers, strings, lists and dicts."""
    return _fetched([value] * len(net.workers), [0], net)[0]


def _fetched(values: Sequence[Any], wanted: Sequence[int], net: Network) -> dict[int, Any]:
    """Gather the values of these workers on all processes, from those of the k local ones: tensors, numbers, strings,
    lists and dicts."""
    if len(values) == net.n:
        return {i: values[i] for i in wanted}
    contents = [b""] * len(values)
    for i in set(wanted) & set(net.workers):
        file = BytesIO()
        torch.save(values[i - net.workers.start], file)
        contents[i - net.workers.start] = file.getvalue()
    sizes = net.gather(torch.tensor([[len(each)] for each in contents], dtype=torch.float64)).long().flatten().tolist()
    rows = torch.zeros(len(values), max(sizes), dtype=torch.uint8)
    for row, content in zip(rows, contents, strict=True):
        row[: len(content)] = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)[: len(content)]
    gathered = net.gather(rows)
    return {
        i: torch.load(BytesIO(gathered[i, : sizes[i]].numpy().tobytes()), map_location="cpu", weights_only=True)
        for i in wanted
    }
