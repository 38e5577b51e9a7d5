"""Facts for all functions at the end of `decentral-check`, and with certify=true the certificate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from decentral.config.parsing import convert
from decentral.config.schema import Config
from decentral.errors import ConfigError, suggest


def certify(config: Config, settings: Mapping[str, str]) -> Iterator[str]:
    """Yield the facts of the configured method and, with certify=true or any certify.KEY=VALUE, its table, figure and
    files in results_dir/certificates.

    Raises ConfigError for settings that do not exist.
    """
    from decentral.plugins.certificates import certify as made
    from decentral.plugins.certificates.trace import NotLinear

    hints = get_type_hints(made.Terms)
    known = {key: hints[key] for key in (field.name for field in fields(made.Terms))}
    values: dict[str, Any] = {}
    for key, text in settings.items():
        if key and key not in known:
            raise ConfigError(f"certify has no setting '{key}'.{suggest(key, known)}")
        if key:
            several = [float(part) for part in text.split(",")] if key == "lr" else text
            values[key] = convert(known[key], several, f"certify.{key}")
    terms = made.Terms(**values)
    try:
        certifier = made.Certifier(made.method_of(config), (terms.lr or [0.1 / terms.L])[0])
        yield f"For all functions:\n{certifier.facts}"
        if settings.get("", "true" if values else "false") != "true":
            return
        rows = []
        for number, row in enumerate(made.rows(certifier, terms), start=1):
            rows.append(row)
            yield f"[certificate {number}] lr={row.lr:.4g}: rate {row.rate:.5f}"
        name = f"{config.algo.name}-{config.topology.name}-{config.num_workers}"
        folder = made.store(certifier, terms, rows, Path(config.results_dir) / "certificates" / name)
        yield made.text(certifier, terms, rows)
        yield f"Table, figure and JSON: {folder}"
    except NotLinear as reason:
        yield f"No certificate: {reason}"
