"""The process group of a run."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from itertools import count

import torch
import torch.distributed as dist

from decentral.config.prepared import Prepared
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.runtime.devices import device_kind
from decentral.terminal.console import warn

_GLANCE_S = 0.01
_LAST_S = 1.0  # extra seconds that rank 0, which serves the store, waits
_SILENT_S = 4.0  # seconds of waiting without a word
_STORE_S = 2.0  # seconds that a server has to answer


def stay_on_this_machine() -> None:
    """Let gloo talk over the loopback, whatever the host is called and whichever networks it has."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")


def serve_store(size: int, timeout_s: float, address: str = "127.0.0.1", port: int = 0) -> dist.TCPStore:
    """Serve a key-value store to the processes of this machine only, on a free port.

    With an `address`, which may be a name, for those that reach this machine there, on this port. By itself a TCPStore
    would listen at all addresses of the machine. Raises OSError if the address is not ours, or the port is taken.
    """
    family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen()
        return dist.TCPStore(
            address,
            listening.getsockname()[1],
            size,
            is_master=True,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )


def store_of_group(rank: int, size: int, timeout_s: float) -> dist.Store:
    """Return the store of the next group of torchrun's processes, once all are here; rank 0 serves it unless torchrun
    does.

    Says on stderr whom it waits for. Raises ConfigError if the store cannot be served at MASTER_ADDR and MASTER_PORT,
    and TimeoutError.
    """
    # each group, and each attempt of torchrun, has its own addresses: old ones are dead
    prefix = f"decentral {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} {next(_groups)}"
    key = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], rank
    if key not in _stores:
        _stores[key] = store_of_torchrun(rank, size, timeout_s)
    store = dist.PrefixStore(prefix, _stores[key])
    store.set_timeout(timedelta(seconds=timeout_s))
    store.set(f"here {rank}", "")
    keys = [f"here {other}" for other in range(size)]
    missing = lambda: [other for other, key in enumerate(keys) if not store.check([key])]  # noqa: E731
    _until(lambda: store.check(keys), missing, rank, size, timeout_s)
    return store


_groups = count()
_stores: dict[tuple[str, str, int], dist.TCPStore] = {}
"""The stores of all groups of this process, which rank 0 serves."""


def store_of_torchrun(rank: int, size: int, timeout_s: float) -> dist.TCPStore:
    """Return the store at MASTER_ADDR and MASTER_PORT, which rank 0 serves unless torchrun does.

    Raises ConfigError if it cannot be served there.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank > 0:
        _until(lambda: answers(address, port), lambda: [0], rank, size, timeout_s)
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        try:
            return serve_store(size, timeout_s, address, port)
        except OSError as error:
            raise ConfigError(
                f"MASTER_ADDR={address} MASTER_PORT={port} cannot be bound ({error.strerror}): give an address of the "
                "machine of rank 0, and a free port on it."
            ) from None
    timeout = timedelta(seconds=timeout_s)
    return dist.TCPStore(address, port, size, is_master=False, timeout=timeout, wait_for_workers=False)


def answers(address: str, port: int) -> bool:
    """Return whether a server listens at the address."""
    try:
        socket.create_connection((address, port), _STORE_S).close()
    except OSError:
        return False
    return True


def _until(done: Callable[[], bool], missing: Callable[[], list[int]], rank: int, size: int, timeout_s: float) -> None:
    """Wait for the missing ranks; after some seconds, the first of those that wait says so."""
    began, is_silent = time.monotonic(), True
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    while not done():
        waited_s = time.monotonic() - began
        if waited_s > timeout_s + (0.0 if rank else _LAST_S):
            raise TimeoutError(
                f"timed out after {timeout_s:g} s of waiting for ranks {missing()} of {size} to join at {address}: "
                f"start all processes at once, as torchrun does; if RANK={rank} and WORLD_SIZE={size} are left over "
                "from another job, unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"
            )
        if is_silent and waited_s > _SILENT_S:
            is_silent, others = False, missing()
            if set(range(rank)) <= {*others}:
                warn(
                    f"rank {rank} waits for ranks {others} of {size} to join at {address} (RANK={rank} and "
                    f"WORLD_SIZE={size} are set, by torchrun or left over from another job)"
                )
        time.sleep(_GLANCE_S)


@contextmanager
def joined(
    run: Prepared,
    rank: int,
    size: int,
    local_rank: int,
    attempt: int,
    store: dist.Store | None = None,
) -> Iterator[World]:
    """Join a group of `size` processes as number `rank`: gloo on CPUs, nccl on GPUs.

    `attempt` counts from 0 and separates the attempts in the key-value store: without that, a group that is started
    again finds the addresses of the dead one. Processes whose runs have different IDs refuse to work together.
    Without `store`, the one at MASTER_ADDR and MASTER_PORT is used, as torchrun provides it.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    timeout_s, kind = run.config.network.timeout_s, device_kind(run.config)
    store = dist.PrefixStore(f"attempt{attempt}", store or store_of_group(rank, size, timeout_s))
    device = (
        torch.device("cuda", local_rank % max(1, torch.cuda.device_count())) if kind == "cuda" else torch.device("cpu")
    )
    if kind == "cuda":
        torch.cuda.set_device(device)
    import_module("torch.distributed.nn.functional")  # later, its default arguments would keep the group for ever
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        world = World(rank, size, device, distributed=True)
        if world.any(world.agree(int(run.id, 16)) != int(run.id, 16))[0]:
            raise ConfigError(
                "the processes of this run differ in configuration or data: start all with the same command, and "
                "seed the random draws of data=module:function."
            )
        world.barrier()
        yield world
        if world.leader:  # it may write longer than anybody waits for a message
            store.set("leader is done", "yes")
        else:
            store.wait(["leader is done"], timedelta(days=7))
        world.barrier()  # nobody leaves while another still talks
    finally:
        dist.destroy_process_group()
