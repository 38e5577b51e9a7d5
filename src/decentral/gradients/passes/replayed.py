"""The passes of a GPU, recorded once and then replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decentral.gradients.passes.layers import is_known
from decentral.gradients.passes.passes import Lanes, OneByOne, Passes, SideBySide, agree
from decentral.gradients.passes.worker_models import is_foreign_loss

_CALLS_FIRST = 3  # until libraries are initialized and have chosen their kernels
_LANES = 8  # streams, each for one worker at a time
_PLACES = 4  # of x, batch shape and workers: each has a recording with its own memory


def replayed(passes: OneByOne | SideBySide) -> Passes:
    """Return `passes`, recorded if they are on a GPU."""
    return Replayed(passes, _LANES) if passes.models.device.type == "cuda" else passes


@dataclass
class Recording:
    """A CUDA graph, with its inputs' memory, and the memory of its losses [r] and gradients [r, P].

    `generators` are the random generators of its forward passes, one for each worker; none if they draw nothing.
    """

    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    targets: Tensor
    generators: list[torch.Generator]
    losses: Tensor
    g: Tensor

    def __call__(self, inputs: Tensor, targets: Tensor, seed: Callable[[int], None]) -> tuple[Tensor, Tensor]:
        """Copy the batch, address the draws, and launch the whole graph."""
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        if self.generators:
            with drawing_from(self.generators, inputs.device) as choose:
                for j in range(len(self.generators)):
                    choose(j)
                    seed(j)
        self.graph.replay()
        return self.losses, self.g


class Replayed(Passes):
    """The kernels of `passes`, launched as one CUDA graph, with workers in parallel `lanes`.

    Hundreds of kernels of a few microseconds per worker take far longer to launch than to compute. A graph holds
    addresses: it is recorded for each position of x, batch shape and set of workers, after the first calls, which run
    normally. Random numbers are those of the normal passes: each worker draws from its own generator, seeded before the
    launch.
    """

    def __init__(self, passes: OneByOne | SideBySide, lanes: int) -> None:
        self.passes, self.lanes = passes, lanes
        self.execution, self.takes_lists = passes.execution, passes.takes_lists
        module = passes.models.modules[0]
        reads = any(getattr(part, "momentum", 0) is None for part in module.modules())  # batch norm's counter
        self.replays = is_known(module) and not is_foreign_loss(passes.loss) and not reads
        self._calls: dict[tuple[object, ...], int] = {}
        self._recordings: dict[tuple[object, ...], Recording] = {}

    def __call__(
        self, x: Tensor, inputs: Any, targets: Any, workers: Sequence[int], seed: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        """See `Passes`. Batches of tokens, whose length varies, are not recorded, nor are calls that need the seconds
        of each worker, which a graph does not provide."""
        self.passes.seconds = self.seconds
        recordable = self.replays and isinstance(inputs, Tensor) and inputs.is_floating_point()
        if self.seconds is not None or not recordable:
            return self.passes(x, inputs, targets, workers, seed)
        key = (x.data_ptr(), x.stride(), inputs.shape, inputs.dtype, targets.shape, targets.dtype, tuple(workers))
        if key not in self._recordings:
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] <= _CALLS_FIRST or len(self._recordings) == _PLACES:
                return self.passes(x, inputs, targets, workers, seed)
            self._recordings[key] = self._record(x, inputs, targets, workers)
            self.replays = self._is_right(self._recordings[key], x, inputs, targets, workers, seed)
            if not self.replays:
                return self.passes(x, inputs, targets, workers, seed)
        return self._recordings[key](inputs, targets, seed)

    def doubt(self, x: Tensor, inputs: Tensor, targets: Tensor) -> str | None:
        """Return the doubt of `passes`."""
        return self.passes.doubt(x, inputs, targets)

    def _record(self, x: Tensor, inputs: Tensor, targets: Tensor, workers: Sequence[int]) -> Recording:
        graph, inputs, targets = torch.cuda.CUDAGraph(), inputs.clone(), targets.clone()
        generators = [torch.Generator(x.device) for _ in workers] if self.passes.draws else []
        for generator in generators:
            graph.register_generator_state(generator)
        self.passes.models.bind(x, workers)
        torch.cuda.synchronize(x.device)
        with drawing_from(generators, x.device) as choose, torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.passes.lanes = StreamLanes(x.device, self.lanes)
            losses, g = self.passes(x, inputs, targets, workers, choose)
            self.passes.lanes = Lanes()
        return Recording(graph, inputs, targets, generators, losses, g)

    def _is_right(
        self,
        recording: Recording,
        x: Tensor,
        inputs: Tensor,
        targets: Tensor,
        workers: Sequence[int],
        seed: Callable[[int], None],
    ) -> bool:
        """Return whether the recording agrees with `passes` up to rounding; buffers are unchanged."""

        def found(way: Callable[[], tuple[Tensor, Tensor]]) -> list[Tensor]:
            with self.passes.models.keeping_buffers():
                return [tensor.clone() for tensor in way()]

        expected = found(lambda: self.passes(x, inputs.clone(), targets, workers, seed))
        replayed = found(lambda: recording(inputs, targets, seed))
        return all(agree(*each, self.passes.precision) for each in zip(replayed, expected, strict=True))


@contextmanager
def drawing_from(generators: Sequence[torch.Generator], device: torch.device) -> Iterator[Callable[[int], None]]:
    """Yield a function that makes the j-th of these the device's default generator within the context."""
    index = torch.cuda.current_device() if device.index is None else device.index
    default = torch.cuda.default_generators[index]
    before = default.graphsafe_get_state()

    def choose(j: int) -> None:
        default.graphsafe_set_state(generators[j])

    try:
        yield choose
    finally:
        default.graphsafe_set_state(before)


class StreamLanes(Lanes):
    """Streams used in turn; each begins after the work already queued on the current stream."""

    def __init__(self, device: torch.device, count: int) -> None:
        self._device, self._streams = device, [torch.cuda.Stream(device) for _ in range(count)]
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream(device))

    def __call__(self, turn: int) -> AbstractContextManager[object]:
        """See `Lanes`."""
        return torch.cuda.stream(self._streams[turn % len(self._streams)])

    def join(self) -> None:
        """See `Lanes`."""
        for stream in self._streams:
            torch.cuda.current_stream(self._device).wait_stream(stream)
