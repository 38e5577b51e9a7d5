"""The provenance of a result: code, command, versions and machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import decentral

_PACKAGES = ("torch", "torchvision", "numpy", "hydra-core", "omegaconf")
_TIMEOUT_S = 10.0
_GPUS = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]


def collect(devices: list[str], processes: int) -> dict[str, Any]:
    """Return facts about this start of a run, as JSON values. Unknown facts are None; never raises.

    Imports nothing heavy: versions come from the packages' metadata, GPU names from nvidia-smi.
    """
    gpu = any(device.startswith("cuda") for device in devices)
    facts: dict[str, Callable[[], Any]] = {
        "started": lambda: datetime.now(UTC).isoformat(timespec="seconds"),
        "command_line": lambda: list(sys.argv),
        "directory": os.getcwd,
        "git_commit": lambda: _git("rev-parse", "HEAD"),
        "git_dirty": lambda: bool(_git("status", "--porcelain", "--", "src", "conf", "pyproject.toml")),
        "version": lambda: decentral.__version__,
        "python": platform.python_version,
        "packages": lambda: {name: _known_or_none(partial(importlib.metadata.version, name)) for name in _PACKAGES},
        "platform": platform.platform,
        "host": socket.gethostname,
        "cpu": processor,
        "cores": lambda: len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processes": lambda: processes,
        "devices": lambda: list(devices),
        "gpus": lambda: _output(_GPUS).splitlines() if gpu else [],  # all GPUs of the host
        "cuda_visible_devices": lambda: os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    return {name: _known_or_none(fact) for name, fact in facts.items()}


def _known_or_none(fact: Callable[[], Any]) -> Any:
    try:
        return fact()
    except Exception:
        return None


def _git(*command: str) -> str:
    """Run git on the checkout of this package; raises if the package is not in a checkout."""
    package = Path(decentral.__file__).resolve().parent
    checkout = package.parents[1]
    if package.parent.name != "src" or not (checkout / ".git").exists():
        raise FileNotFoundError("not run from a checkout")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return _output(["git", "--no-optional-locks", "-C", str(checkout), *command], environment)


def is_seen_by_git(folder: Path) -> bool:
    """Return whether git would commit the files of a folder: it is in a repository, and not ignored."""
    with suppress(OSError):
        return (
            subprocess.run(["git", "-C", folder, "check-ignore", "-q", "."], stderr=subprocess.DEVNULL).returncode == 1
        )
    return False


def processor() -> str:
    """The model name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _output(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip()
