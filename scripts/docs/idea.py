"""Two drawings for docs/index.md: what a step of gossip and one of RelaySGD sends and averages on a chain.

`python scripts/docs/idea.py` writes docs/idea_gossip.svg and docs/idea_relaysgd.svg. Their grays and colors are
readable on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from decentral.registry import components

FOLDER = Path(__file__).resolve().parents[2] / "docs"
WORKERS = 4
_COLORS = ("#009485", "#d9742f", "#5b7fd6", "#b8549a")
_GRAY = "#7d8597"
_WIDTH, _ROW, _TOP, _BAR = 340, 62, 102, 132


def drawings() -> dict[str, str]:
    """Name of a file -> SVG."""
    W = components("topology")["chain"]().schedule(WORKERS).matrices(0)[0]
    mixed = [[Fraction(float(weight)).limit_denominator(100) for weight in row] for row in W]
    own = [[[worker] for worker in range(WORKERS)]] * 2
    relayed = [
        [list(range(worker, -1, -1)) for worker in range(WORKERS)],
        [list(range(worker, WORKERS)) for worker in range(WORKERS)],
    ]
    return {
        "idea_gossip.svg": _drawing(
            "Gossip averages neighbors",
            "A message is a model.",
            "Each worker averages 2 or 3 of the 4 models.",
            own,
            mixed,
        ),
        "idea_relaysgd.svg": _drawing(
            "RelaySGD relays sums along a tree",
            "A message is a sum of models: own and received.",
            "Each worker averages all 4 models; distant ones are older.",
            relayed,
            [[Fraction(1, WORKERS)] * WORKERS] * WORKERS,
        ),
    }


def _drawing(
    title: str, sent: str, end: str, messages: Sequence[Sequence[Sequence[int]]], shares: Sequence[Sequence[Fraction]]
) -> str:
    """`messages`: whose models each worker sends down, and whose it sends up; `shares`: in each worker's average."""
    height = _TOP + _ROW * (WORKERS - 1) + 56
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_GRAY}" role="img">',
        f"<title>{title}. {sent} {end}</title>",
        f'<text x="8" y="20" font-size="16" font-weight="bold">{title}</text>',
        f'<text x="8" y="42">{sent}</text>',
        f'<text x="48" y="{_TOP - 26}" font-size="11">messages of a step</text>',
        f'<text x="{_WIDTH - _BAR - 8}" y="{_TOP - 26}" font-size="11">average</text>',
        f'<text x="8" y="{height - 10}">{end}</text>',
        f'<path d="M22 {_TOP}V{_TOP + _ROW * (WORKERS - 1)}" stroke="{_GRAY}" stroke-width="2"/>',
    ]
    for worker in range(WORKERS):
        y = _TOP + _ROW * worker
        parts += [_circle(22, y, 13, worker), _text(22, y + 4, str(worker + 1))]
        at = float(_WIDTH - _BAR - 8)
        for whose, share in enumerate(shares[worker]):
            width = float(_BAR * share)
            if share:
                parts.append(
                    f'<rect x="{at:.1f}" y="{y - 12}" width="{width - 1.5:.1f}" height="24" rx="3" '
                    f'fill="{_COLORS[whose]}"/>'
                )
                parts.append(_text(at + width / 2, y + 4, str(share)))
            at += width
        if worker + 1 < WORKERS:
            between = y + _ROW // 2
            parts += _message(48, between, messages[0][worker], down=True)
            parts += _message(116, between, messages[1][worker + 1], down=False)
    return "\n".join([*parts, "</svg>\n"])


def _message(x: float, y: float, whose: Sequence[int], down: bool) -> list[str]:
    """An arrow and what it carries."""
    start, tip, back = (y - 12, y + 12, y + 6) if down else (y + 12, y - 12, y - 6)
    arrow = f'<path d="M{x} {start}V{tip}M{x - 4} {back}L{x} {tip}L{x + 4} {back}" fill="none" stroke="{_GRAY}"/>'
    return [arrow, *(_circle(x + 14 + 13 * place, y, 5, worker) for place, worker in enumerate(whose))]


def _circle(x: float, y: float, radius: float, worker: int) -> str:
    return f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{_COLORS[worker]}"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="middle" fill="#fff" font-weight="bold">{text}</text>'


if __name__ == "__main__":
    for name, svg in drawings().items():
        (FOLDER / name).write_text(svg)
