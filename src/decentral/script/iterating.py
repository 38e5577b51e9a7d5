"""The iterates of an algorithm with a user-defined oracle: `decentral.iterates`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decentral.algorithms.features import Feature, require
from decentral.algorithms.given_samples import GivenSamples
from decentral.compression.rows import RowLayout
from decentral.errors import ConfigError
from decentral.host.torch_state import in_turn
from decentral.network.local import LocalNetwork
from decentral.registry.typed import typed
from decentral.script.components import (
    algorithm_from,
    check_setup,
    chosen,
    compression_from,
    in_a_script,
)
from decentral.topology.communication import Communication
from decentral.topology.delivery import Losses
from decentral.training.stepper import Stepper


@typed()
@in_turn()
def iterates(
    algo: object,
    topology: object,
    oracle: Callable[..., Any],
    x0: Any,
    steps: int,
    *,
    lr: float | Callable[[int], float] = 0.1,
    num_workers: int | None = None,
    optim: object = "sgd",
    compress: object = None,
    every: int = 1,
    drop_probability: float = 0.0,
    seed: int = 0,
    num_samples: int = 1,
    shapes: Sequence[Sequence[int]] | None = None,
    algo_settings: dict[str, Any] | None = None,
    topology_settings: dict[str, Any] | None = None,
    optim_settings: dict[str, Any] | None = None,
    compress_settings: dict[str, Any] | None = None,
) -> np.ndarray:
    """Return the models of all workers before the first and after each step, float64 [steps + 1, n, P].

    All workers are in this process; no run is stored. The steps are the same as in `decentral-run`.

    >>> import numpy as np, decentral
    >>> b = np.arange(4.0)[:, None]  # worker i's optimum
    >>> x = decentral.iterates("dpsgd", "ring", lambda x, t: x - b, np.zeros((4, 1)), 100, lr=0.1)
    >>> bool(abs(x[-1].mean() - b.mean()) < 1e-3)
    True

    Args:
        algo: Name of an algorithm with synchronous steps, or a class or object of your own.
        topology: As in `decentral.join`: a name, a graph, a matrix [n, n], a list of them, which repeat, or a function.
            Algorithms that do not use it accept any.
        oracle: oracle(x [n, P], t) -> the gradients [n, P] of the workers at their models in step t. It receives a
            float64 array, a copy, and returns an array or a tensor.
        x0: The start [P] of all workers, or [n, P] of each.
        steps: Number of steps.
        lr: The learning rate, or a function from step t to the rate, or to a tensor [n, 1] with a rate for each worker.
        num_workers: n, if neither x0 [n, P] nor the topology determines it.
        optim: Name of a local optimizer, or a class, such as `torch.optim.RAdam`, or an `Optimizer`.
        compress: Name of a compressor, a class or object of your own, or None: the algorithm's default, which is none
            except for demo.
        every: Local steps: communicate in every `every`-th step only.
        drop_probability: Probability of losing each message.
        seed: Determines which messages are lost.
        num_samples: m, for methods that name the samples of their gradients (gt_saga, gt_sarah, lt_admm_vr): if m > 1,
            they call oracle(x, t, samples [n, B]) for the gradients [n, B, P] of samples 0 to m - 1 of each worker.
        shapes: Shapes of the parameters in a row, such as [(4, 3), (4,)], for methods and compressors that treat
            matrices apart (demuon, powergossip, muon, powersgd); None: one vector.
        algo_settings, topology_settings, optim_settings, compress_settings: Settings of the named components, and of
            classes and functions.

    Raises:
        ConfigError: for a setup that `decentral-run` refuses, an invalid start for the algorithm, or an oracle result
            of the wrong shape.
    """
    algorithm, graph = algorithm_from(algo, algo_settings), chosen("topology", topology, topology_settings or {})
    optimizer = chosen("optim", optim, optim_settings or {})
    start = _numbers(x0, "x0")
    if start.dim() not in (1, 2) or not start.isfinite().all():
        raise ConfigError(f"x0 of shape {list(start.shape)} is invalid: give finite numbers [P] or [n, P].")
    n = len(start) if start.dim() == 2 else num_workers or graph.implied_num_workers()
    if n is None or num_workers not in (None, n):
        raise ConfigError(f"num_workers={num_workers} does not set the number of workers: give x0 [n, P], or n.")
    x = start.expand(n, -1).clone()
    if Feature.own_starts not in algorithm.supports and not (x == x[:1]).all():
        raise ConfigError(f"algo='{algorithm.name}' starts from one shared model: give x0 [P].")
    compress = compress or algorithm.usual.get("compress")
    compressor, of_messages, per_epoch = compression_from(compress, compress_settings)
    try:
        communication = Communication(every=every)
        rounds = communication.schedule(graph, n)
        check_setup(algorithm, compressor, rounds, communication, graph, optimizer)
        if drop_probability:
            require(algorithm, Feature.message_loss, f"drop_probability={drop_probability:g}")
    except ConfigError as error:
        raise ConfigError(in_a_script(str(error), algo=True)) from None

    def checked(result: Any, call: str, shape: Sequence[int]) -> Tensor:
        g = _numbers(result, f"the result of {call}").clone()
        if g.shape != torch.Size(shape):
            raise ConfigError(f"{call} returned shape {list(g.shape)}: return gradients of shape {list(shape)}.")
        return g

    def gradients(x: Tensor, workers: Any = None) -> Tensor:
        if workers is not None:
            raise ConfigError(f"algo='{algorithm.name}' needs gradients of single workers: use decentral-run.")
        return checked(oracle(x.numpy().copy(), stepper.t), "oracle(x, t)", x.shape)

    def of_samples(x: Tensor, samples: Tensor) -> Tensor:
        result = oracle(x.numpy().copy(), stepper.t, samples.numpy().copy())
        return checked(result, "oracle(x, t, samples)", (*samples.shape, x.shape[1]))

    if num_samples > 1:
        if not isinstance(algorithm, GivenSamples):
            raise ConfigError(f"algo='{algorithm.name}' does not name samples: leave num_samples={num_samples} out.")
        algorithm.num_samples, gradients.at = num_samples, of_samples  # type: ignore[attr-defined]
    rate = lr if callable(lr) else lambda t: lr
    per_message = per_epoch / algorithm.attends_steps
    layout = RowLayout.flat(x.shape[1])
    if shapes is not None:
        layout = RowLayout(tuple(map(str, range(len(shapes)))), tuple(tuple(map(int, shape)) for shape in shapes))
    if layout.num_coordinates != x.shape[1]:
        raise ConfigError(f"shapes={shapes} have {layout.num_coordinates} numbers, but x0 has {x.shape[1]} for each.")
    algorithm = algorithm.bind(optimizer.rule(rate, layout), compressor.bound(layout, of_messages, per_message))
    found = [x.numpy().copy()]
    with torch.no_grad():
        net = LocalNetwork(rounds, Losses(drop_probability, seed))
        stepper = Stepper(algorithm, net, gradients, x)
        for _ in range(steps):
            stepper.step()
            stepper.flush()
            found.append(stepper.models.numpy().copy())
    return np.stack(found)


def _numbers(value: Any, what: str) -> Tensor:
    """Return an array or a tensor in float64."""
    try:
        array = value if isinstance(value, Tensor) else np.asarray(value, dtype=np.float64)
        return torch.as_tensor(array, dtype=torch.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{what} is of type {type(value).__name__}: give an array or a tensor of numbers.") from None
