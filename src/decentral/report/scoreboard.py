"""results/README.md: every item of every paper on one page, with its verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from decentral.report.claims.claim import MET, NOT_MET, NOT_RUN, WITHIN_NOISE
from decentral.report.items import Item
from decentral.report.published import paper as paper_of
from decentral.report.tables import harmless, markdown_table, word
from decentral.report.verdicts import count
from decentral.terminal.text import duration

_HEAD = ["item", "study", "run at scale", "published numbers", "reference numbers", "claims", "time"]


def page(items: list[Item], skipped: Sequence[str] = ()) -> str:
    """The scoreboard of all papers; `skipped` are remarks on what is left out."""
    blocks = [
        "# Scoreboard",
        "One row for each table and figure. *Published numbers* are compared where model and data are the paper's; "
        "*reference numbers* too, which are not in the paper but were computed by others from the authors' code; "
        "*claims* (which method is better, what does not matter) at the largest scale that was run. Both are counted "
        "as met / not met / not run. A met claim whose margin is smaller than its standard error (1.8 times it for two "
        "seeds, 1.3 times for three, by Student's t), or whose spread over seeds is known in part only, is *within the "
        "noise*: it may be chance. (Seeds are paired: one gives all methods the same data and models.) Tolerances and "
        "reasons are with each item. Made by `decentral-report`.",
        totals(items),
        "\n".join(f"- {remark}" for remark in skipped),
    ]
    for paper in dict.fromkeys(item.paper for item in items):
        own = [item for item in items if item.paper == paper]
        blocks += [f"## [{paper_of(paper).title}]({paper}/README.md)", table(own, above=f"{paper}/")]
    return harmless("\n\n".join(block for block in blocks if block) + "\n")


def totals(items: list[Item]) -> str:
    """A few sentences: how many of the published numbers and of the claims are met."""
    numbers = sum((count(item.numbers, "number") for item in items), Counter())
    references = sum((count(item.numbers, "reference") for item in items), Counter())
    claims = sum((count(item.claims, "claim") for item in items), Counter())
    run = sum(bool(item.counted) for item in items)
    return (
        f"{run} of {len(items)} items were run. Published numbers: {_share(numbers)}. Reference numbers: "
        f"{_share(references)}. Claims: {_share(claims)}."
    )


def table(items: list[Item], above: str) -> str:
    """A row for each item; links go through the folder `above`."""
    lines = [_HEAD]
    for item in items:
        wall = sum(float(run.results.facts.get("wall_s") or 0.0) for run in item.counted.values())
        page_ = f"{above}README.md" if above else ""
        lines.append(
            [
                f"[{word(item.item)}]({page_}#{item.study})",
                word(item.title),
                ", ".join(item.counted) or _not_run(item),
                _counts(count(item.numbers, "number")),
                _counts(count(item.numbers, "reference")),
                _counts(count(item.claims, "claim")),
                duration(wall) if item.counted else "",
            ]
        )
    return markdown_table(lines, left=3)


def _not_run(item: Item) -> str:
    reasons = ["only scale=smoke"] if item.runs else []
    reasons += [f"needs {item.needs}"] if item.needs else []
    return "not run" + (f" ({'; '.join(reasons)})" if reasons else "")


def _share(counted: Counter[str]) -> str:
    compared = counted[MET] + counted[NOT_MET]
    share = f"{counted[MET]} of {compared} met ({100 * counted[MET] / compared:.0f} %)" if compared else "none checked"
    chance = f", {counted[WITHIN_NOISE]} of them {WITHIN_NOISE}" if counted[WITHIN_NOISE] else ""
    return f"{share}{chance}, {counted[NOT_RUN]} not run"


def _counts(counted: Counter[str]) -> str:
    if not counted:
        return ""
    chance = f" ({counted[WITHIN_NOISE]} {WITHIN_NOISE})" if counted[WITHIN_NOISE] else ""
    return " / ".join(str(counted[verdict]) for verdict in (MET, NOT_MET, NOT_RUN)) + chance
