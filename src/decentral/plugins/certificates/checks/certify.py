"""Facts for all functions at the end of `decentral-check`, and with certify=true the certificates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from decentral.config.identity import component_identity, hashed_id
from decentral.config.parsing import build, convert
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.store.files import at_home, write_json
from decentral.terminal.console import say

_PARTS = "algo", "topology", "optim", "communication"


def certify(configs: Sequence[Config], settings: Mapping[str, str]) -> list[str]:
    """Return texts: the facts of each configured method and, with certify=true or any certify.KEY=VALUE, its table, and
    one figure of all, with files in results_dir/certificates.

    Raises ConfigError for wrong settings, and for a method that has no certificate but was asked for one.
    """
    from decentral.plugins.certificates import certify as certificates
    from decentral.plugins.certificates.trace import NotLinear

    values = {key: text.strip("[]").split(",") if key == "lr" else text for key, text in settings.items() if key}
    given = settings.get("", "true" if values else "false")
    asked = convert(bool, {"true": True, "false": False}.get(given, given), "certify")
    terms, n = build(certificates.Terms, values, "certify"), configs[0].num_workers
    texts, tables = list[str](), {}
    names = [f"{_own_name(config.algo)}, {_own_name(config.topology)}" for config in configs]
    if len({*names}) < len(names):
        names = [f"{config.algo.name}, {config.topology.name}" for config in configs]
    for name, config in zip(names, configs, strict=True):
        try:
            certifier = certificates.Certifier(certificates.method_of(config), terms.first)
        except Exception as error:
            is_refused = isinstance(error, NotLinear)
            if isinstance(error, ConfigError) and (asked or not is_refused):
                raise
            reason = error if is_refused else f"algo={config.algo.name} raises an exception."  # which the checks show
            texts.append(f"No certificate: {reason}")
            continue
        head = f"{name}, for all functions" if configs[1:] else "For all functions"
        texts.append(f"{head}:\n{certificates.facts_text(certifier.facts)}")
        if asked:
            tables[name] = certificates.table_of(certifier, terms, lambda text: say(f"[certificate] {text}"))
            texts.append(certificates.text(terms, tables[name]))
    if tables:
        described = [{group: component_identity(getattr(config, group)) for group in _PARTS} for config in configs]
        stored = {"methods": described, "num_workers": n, "terms": vars(terms)}
        words = dict.fromkeys(_own_name(getattr(config, group)) for group in _PARTS[:2] for config in configs)
        folder = f"{'-'.join(words)}-{n}-{hashed_id(stored)[:6]}"
        directory = at_home(configs[0].results_dir) / "certificates" / folder
        figure = certificates.draw_certificates(tables, directory)
        found = {key: {name: table.attrs[key] for name, table in tables.items()} for key in ("facts", "largest_stable")}
        write_json(directory / "certificates.json", stored | found)
        texts.append(f"Figure:   {figure}, with the table and its settings beside it")
    return texts


def _own_name(component: Any) -> str:
    """Return a component's name: of `module:Class`, the name that the class defines, or else that of the class."""
    target = getattr(component, "plain_target", None)
    named = vars(target).get("name") if isinstance(target, type) else None
    return str(named or component.name.rpartition(":")[2])
