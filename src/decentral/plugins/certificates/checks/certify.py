"""Facts for all functions at the end of `decentral-check`, and with certify=true the certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from decentral.config.identity import component_identity, hashed_id
from decentral.config.parsing import build, convert
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.store.files import at_home, write_json
from decentral.terminal.console import say

_PARTS = "algo", "topology", "optim", "communication"


def certify(configs: Sequence[Config], settings: Mapping[str, str]) -> Iterator[str]:
    """Return texts: the facts of each configured method and, with certify=true or any certify.KEY=VALUE, its table, and
    one figure of all, with files in results_dir/certificates, which are computed when they are asked for.

    Raises ConfigError for wrong settings, and for a method that has no certificate but was asked for one.
    """
    from decentral.plugins.certificates import certify as certificates
    from decentral.plugins.certificates.trace import NotLinear
    from decentral.plugins.certificates.worst_case import traced

    values = {key: text.strip("[]").split(",") if key == "lr" else text for key, text in settings.items() if key}
    given = settings.get("", "true" if values else "false")
    asked = convert(bool, {"true": True, "false": False}.get(given, given), "certify")
    terms = build(certificates.Terms, values, "certify")
    found: list[certificates.Certifier | str] = []
    for config in configs:
        try:
            certifier = certificates.Certifier(certificates.method_of(config), terms.first)
            if asked and terms.steps is not None:
                traced(certifier.method, terms.first, terms.steps)
            found.append(certifier)
        except NotLinear as reason:
            if asked:
                raise
            found.append(f"No certificate: {reason}")
        except ConfigError:
            raise
        except Exception:  # which the checks show
            found.append(f"No certificate: algo={config.algo.name} raises an exception.")

    def texts() -> Iterator[str]:
        tables, facts, described = {}, {}, []
        for config, certifier in zip(configs, found, strict=True):
            if isinstance(certifier, str):
                yield certifier
                continue
            name = f"{config.algo.name}, {config.topology.name}"
            head = f"{name}, for all functions" if configs[1:] else "For all functions"
            yield f"{head}:\n{certificates.facts_text(certifier.facts)}"
            if asked:
                table = certificates.table_of(certifier, terms, lambda text: say(f"[certificate] {text}"))
                yield certificates.text(terms, table)
                tables[name], facts[name] = table, certifier.facts
                described.append({group: component_identity(getattr(config, group)) for group in _PARTS})
        if asked:
            stored = {"methods": described, "num_workers": configs[0].num_workers, "terms": vars(terms)}
            names = [*dict.fromkeys([*(one.algo.name for one in configs), *(one.topology.name for one in configs)])]
            folder = f"{'-'.join(names)}-{configs[0].num_workers}-{hashed_id(stored)[:6]}"
            directory = at_home(configs[0].results_dir) / "certificates" / folder
            figure = certificates.draw_certificates(tables, directory)
            write_json(directory / "certificates.json", stored | {"facts": facts})
            yield f"Figure:   {figure}, with the table and its settings beside it"

    return texts()
