"""decentral: reproduce the studies of decentralized deep learning from one command line, or with your own loop.

In your own training loop under torchrun, `decentral.join(...)` returns `Peers`, whose methods average with neighbors.
`decentral.wrap` averages around each optimizer step; `decentral.Window` is one-sided. `decentral.checkpoint` and
`decentral.resume` continue the training of all ranks after one has died. See `decentral.script`.

In notebooks, `decentral.train(net, train_data, test_data, algo="relaysgd")` trains a model, `decentral.runs()` returns
all runs as a DataFrame, and `decentral.load(run)` returns the models of one run.
`decentral.iterates(algo, topology, oracle, x0, steps)` runs an algorithm on your own gradients, and
`decentral.certify(algo, topology)` computes what it guarantees; `decentral.check(algo)` tests its contract.

Importing this package is cheap: it imports torch only after a configuration is accepted or one of these names is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decentral.cli.check import check as check
    from decentral.errors import ConfigError as ConfigError
    from decentral.report.runs_table import table as table
    from decentral.script.iterating import iterates as iterates
    from decentral.script.joining import join as join
    from decentral.script.loading import load as load
    from decentral.script.loading import runs as runs
    from decentral.script.optimizer import DecentralizedOptimizer as DecentralizedOptimizer
    from decentral.script.peers import Peers as Peers
    from decentral.script.resuming import checkpoint as checkpoint
    from decentral.script.resuming import resume as resume
    from decentral.script.training import train as train
    from decentral.script.window import Window as Window
    from decentral.script.wrap import wrap as wrap

__version__ = "3.1.0"

_HOMES = {
    "ConfigError": "decentral.errors",
    "DecentralizedOptimizer": "decentral.script.optimizer",
    "Peers": "decentral.script.peers",
    "Window": "decentral.script.window",
    "checkpoint": "decentral.script.resuming",
    "check": "decentral.cli.check",
    "certify": "decentral.plugins.certificates.certify",
    "draw_certificates": "decentral.plugins.certificates.certify",
    "iterates": "decentral.script.iterating",
    "join": "decentral.script.joining",
    "load": "decentral.script.loading",
    "resume": "decentral.script.resuming",
    "runs": "decentral.script.loading",
    "table": "decentral.report.runs_table",
    "train": "decentral.script.training",
    "wrap": "decentral.script.wrap",
}
"""Public name -> its module, imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'decentral' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
