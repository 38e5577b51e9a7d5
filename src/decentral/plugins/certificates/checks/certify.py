"""Facts for all functions at the end of `decentral-check`, and with certify=true the certificate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from decentral.config.identity import component_identity, hashed_id
from decentral.config.parsing import build, convert
from decentral.config.schema import Config
from decentral.store.files import at_home
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

    values = {key: text.strip("[]").split(",") if key == "lr" else text for key, text in settings.items() if key}
    given = settings.get("", "true" if values else "false")
    asked = convert(bool, {"true": True, "false": False}.get(given, given), "certify")
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
        yield f"For all functions:\n{certificates.facts_text(certifier.facts)}"
        if asked:
            table = certificates.table_of(certifier, terms, lambda text: say(f"[certificate] {text}"))
            yield certificates.text(terms, table)
            parts = {group: component_identity(getattr(config, group)) for group in _PARTS}
            stored = {**parts, "num_workers": config.num_workers, "terms": vars(terms)}
            name = f"{config.algo.name}-{config.topology.name}-{config.num_workers}-{hashed_id(stored)[:6]}"
            folder = at_home(config.results_dir) / "certificates" / name
            certificates.store(table, stored | {"facts": certifier.facts}, folder)
            yield f"Table, figure and JSON: {folder}"

    return texts()
