"""Optional packages."""

from __future__ import annotations

from importlib.util import find_spec

from decentral.errors import ConfigError


def require(package: str, setting: str, cure: str) -> None:
    """Raise ConfigError unless `package`, which `setting` needs, is installed; without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # a mere folder of that name in the current directory has no origin
        raise ConfigError(f"{setting} needs the package '{package}': {cure}.")
