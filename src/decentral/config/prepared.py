"""A prepared run: everything that follows from a configuration before the run starts, computed once."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from decentral.config.checks import goes_by_itself, has_clock, is_virtual
from decentral.config.identity import id_of, identity, run_directory
from decentral.config.parsing import dump, load
from decentral.config.schema import GROUPS, Config
from decentral.registry import component


class Kind(NamedTuple):
    """Kinds of runs: their workers advance in rounds, in rounds of simulated time, or asynchronously.

    asynchronous    each worker carries out its own program; otherwise all take the same steps
    has_clock       the run has simulated time
    in_one_process  `processes=auto` means one: between several, workers of a described cluster really sleep
    """

    asynchronous: bool
    has_clock: bool
    in_one_process: bool

    @classmethod
    def of(cls, config: Config) -> Self:
        """Derive the kind from the configuration."""
        asynchronous = goes_by_itself(config)
        return cls(asynchronous, has_clock(config), asynchronous or is_virtual(config))


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start: its resolved configuration and what follows from it."""

    config: Config
    identity: dict[str, Any]
    """Everything that the computation depends on: see `config.identity`."""
    id: str
    directory: Path
    kind: Kind

    def packed(self) -> tuple[str, bytes, dict[str, Any]]:
        """Return what another process on this machine needs for `unpacked`; it can be pickled."""
        parts = {group: getattr(self.config, group) for group in GROUPS}
        made = {group: one for group, one in parts.items() if type(one) is not component(GROUPS[group], one.name)}
        others = {name: value for name, value in vars(self).items() if name != "config"}
        return dump(self.config), pickle.dumps(made), others

    @classmethod
    def unpacked(cls, config: str, made: bytes, others: dict[str, Any]) -> Prepared:
        """Return the run that `packed` described; its components without names were objects."""
        return cls(load(config, pickle.loads(made)), **others)


def prepare(config: Config, directory: Path | None = None) -> Prepared:
    """Prepare a run of a resolved configuration, in its own directory unless another one is given."""
    known = identity(config)
    run = id_of(config, known)
    return Prepared(config, known, run, directory or run_directory(config, run), Kind.of(config))
