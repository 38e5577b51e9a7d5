"""A prepared run: everything that follows from a configuration before the run starts, computed once."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.config.checks import goes_by_itself, has_clock, is_virtual
from decentral.config.identity import id_of, identity, init_directory, run_directory
from decentral.config.parsing import dump, load, plain
from decentral.config.schema import GROUPS, OWN, Config
from decentral.registry import component

if TYPE_CHECKING:
    import numpy as np

    from decentral.topology.communication import LocalSteps
    from decentral.topology.rounds import Rounds


class Kind(NamedTuple):
    """Kinds of runs: their workers advance in rounds, in rounds of simulated time, or asynchronously.

    asynchronous    each worker carries out its own program; otherwise all take the same steps
    has_clock       the run has simulated time
    in_one_process  `processes=auto` means one: between several, workers of a described cluster really sleep
    """

    asynchronous: bool
    has_clock: bool
    in_one_process: bool


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start: its resolved configuration and what follows from it, each computed once."""

    config: Config
    """The configuration, with rerun=false: `rerun` has the user's choice."""
    identity: dict[str, Any]
    """Everything that the computation depends on: see `config.identity`."""
    id: str
    directory: Path
    kind: Kind
    rerun: bool
    """True to repeat the run if it is finished."""
    init: Path | None
    """The directory of the run from whose averaged model it starts."""
    own: dict[str, np.ndarray]
    """Each worker's `lr`, `batch_size` and `steps` [n], of those that are set per worker."""
    local_steps: LocalSteps | None
    """Each worker's number of steps between two communications; None if all take every step."""
    rounds: Rounds
    """Who communicates with whom in each round, and with which weights."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "rounds"}  # they hold functions

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, rounds=state["config"].rounds())

    @property
    def values(self) -> dict[str, Any]:
        """The configuration as plain values, for loggers, which may change them."""
        return plain(self.config)  # type: ignore[no-any-return]

    @cached_property
    def text(self) -> str:
        """The configuration as YAML, as it is stored."""
        return dump(self.config)

    @cached_property
    def useful_processes(self) -> float:
        """The maximum number of processes that pay for themselves."""
        return self.config.task.useful_processes(self.config)  # type: ignore[no-any-return]

    def packed(self) -> tuple[str, bytes, dict[str, Any]]:
        """Return what another process on this machine needs for `unpacked`; it can be pickled."""
        made = {
            group: one
            for group, package in GROUPS.items()
            if type(one := getattr(self.config, group)) is not component(package, one.name)
        }
        others = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("config", "rounds")}
        return self.text, pickle.dumps(made), others

    @classmethod
    def unpacked(cls, config: str, made: bytes, others: dict[str, Any]) -> Prepared:
        """Return the run that `packed` described; its components without names were objects."""
        loaded = load(config, pickle.loads(made))
        return cls(loaded, rounds=loaded.rounds(), **others)


def prepare(config: Config, directory: Path | None = None) -> Prepared:
    """Prepare a run of a resolved configuration, in its own directory unless another one is given."""
    known, asynchronous = identity(config), goes_by_itself(config)
    run = id_of(config, known)
    return Prepared(
        config=replace(config, rerun=False),
        identity=known,
        id=run,
        directory=directory or run_directory(config, run),
        kind=Kind(asynchronous, has_clock(config), asynchronous or is_virtual(config)),
        rerun=config.rerun,
        init=None if config.init is None else init_directory(config),
        own={key: values for key in OWN if (values := config.own(key)) is not None},
        local_steps=config.local_steps(),
        rounds=config.rounds(),
    )
