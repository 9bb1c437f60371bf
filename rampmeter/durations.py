"""Durations as people write them: 90, 90s, 10m, 2h, 1d."""

import re

import typer

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SHAPE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")


def parse(text: str, option: str) -> float:
    """Seconds; a usage error names the option."""
    found = _SHAPE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{option} wants a duration like 90, 90s, 10m or 2h, not {text!r}")
    return float(found[1]) * _UNITS_S[found[2]]


def shown(seconds: float) -> str:
    """A duration in one unit: 12s, 5m, 3h, 2d."""
    for unit in ("d", "h", "m"):
        if seconds >= 2 * _UNITS_S[unit]:
            return f"{seconds / _UNITS_S[unit]:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
