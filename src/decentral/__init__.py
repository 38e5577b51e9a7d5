"""decentral: reproduce the studies of decentralized deep learning from one command line, or with your own loop.

For your own training loop under torchrun: `decentral.join(...)` gives `Peers`, whose methods average with neighbours;
`decentral.wrap` does so around the steps of an optimizer, `decentral.Window` is one-sided. See `decentral.peers`.

Importing this package is cheap on purpose: torch is imported only once a configuration has been accepted, or one of
these names is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decentral.errors import ConfigError as ConfigError
    from decentral.peers.joining import join as join
    from decentral.peers.optimizer import DecentralizedOptimizer as DecentralizedOptimizer
    from decentral.peers.peers import Peers as Peers
    from decentral.peers.window import Window as Window
    from decentral.peers.wrap import wrap as wrap

__version__ = "0.1.0"

_HOMES = {
    "ConfigError": "decentral.errors",
    "DecentralizedOptimizer": "decentral.peers.optimizer",
    "Peers": "decentral.peers.peers",
    "Window": "decentral.peers.window",
    "join": "decentral.peers.joining",
    "wrap": "decentral.peers.wrap",
}
"""Public name -> the module that has it, which is imported when the name is used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'decentral' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
