"""Facts for all functions at the end of `decentral-check`, and with certify=true the certificate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from decentral.config.identity import component_identity
from decentral.config.parsing import build, convert
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.terminal.console import say

_PARTS = "algo", "topology", "optim", "communication"


def certify(config: Config, settings: Mapping[str, str]) -> Iterator[str]:
    """Return texts: the facts of the configured method and, with certify=true or any certify.KEY=VALUE, its table,
    figure and files in results_dir/certificates, which are computed when they are asked for.

    Raises ConfigError for wrong settings, and for a method that has no certificate but was asked for one.
    """
    from decentral.plugins.certificates import certify as certificates
    from decentral.plugins.certificates.trace import NotLinear
    from decentral.plugins.certificates.worst_case import traced

    values = {
        key: _value(f"certify.{key}", f"[{text.strip('[]')}]" if key == "lr" else text)
        for key, text in settings.items()
    }
    asked = convert(bool, values.pop("", bool(values)), "certify")
    terms = build(certificates.Terms, values, "certify")
    try:
        certifier = certificates.Certifier(certificates.method_of(config), terms.first)
        if asked and terms.steps is not None:
            traced(certifier.method, terms.first, terms.steps)
    except NotLinear as reason:
        if asked:
            raise
        return iter([f"No certificate: {reason}"])

    def texts() -> Iterator[str]:
        yield f"For all functions:\n{certifier.facts}"
        if asked:
            certified = certificates.rows(certifier, terms, lambda text: say(f"[certificate] {text}"))
            yield certificates.text(terms, certified)
            name = f"{config.algo.name}-{config.topology.name}-{config.num_workers}"
            parts = {group: component_identity(getattr(config, group)) for group in _PARTS}
            setting = {**parts, "num_workers": config.num_workers}
            folder = Path(config.results_dir) / "certificates" / name
            yield f"Table, figure and JSON: {certificates.store(certifier, terms, certified, folder, setting)}"

    return texts()


def _value(key: str, text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{key}={text} is not a valid value.") from None
