"""Requests to send: traces read from files, and a generator with the statistics of the public ones.

Two services, as in the Azure 2023 traces: `conv`, nearly Poisson, and `code`, in bursts.
"""

import csv
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TextIO

from topics.errors import ConfigError
from topics.records import Priority

COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
MORE_COLUMNS = ("service", "tenant", "priority")
"""May be left out: all are of one service, no tenant is said, medium."""
BYTES_PER_TOKEN = 4
MAX_PROBLEMS = 10
ONE_SERVICE = "all"
_SEED_TEXT = "the gpu is busy and the next request waits for its turn at the meter while one more token is made now "


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace; times in seconds from its start."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    service: str
    tenant: str = ""
    """Empty is not said."""
    priority: Priority = Priority.MEDIUM


@dataclass(frozen=True, slots=True)
class Service:
    """A service's statistics: gaps between arrivals and lognormal token counts."""

    name: str
    rate_per_s: float
    gap_cv: float
    """Coefficient of variation of the gaps; well above 1 they are activity, volleys and long pauses."""
    input_tokens: float
    input_cv: float
    max_input_tokens: int
    output_tokens: float
    output_cv: float
    max_output_tokens: int


CONV = Service("conv", 5.53, 1.1, 1155, 0.96, 14_050, 211, 0.77, 1000)
CODE = Service("code", 2.57, 13.0, 2048, 0.96, 7_437, 28, 2.1, 1899)
ACTIVE_GAP = 0.26
VOLLEY_GAP = 0.035
"""Mean gaps of a bursty service while it is active and in a volley, relative to its mean gap."""
VOLLEY_SHARE = 0.012
VOLLEY_SIZE = 22
"""How often a request opens a volley, and how many follow: about 26 times the mean rate in the busiest second."""


def generate(seconds: float, services: Sequence[Service] = (CONV, CODE), seed: int = 1) -> list[Row]:
    """Rows of all services for `seconds`, by arrival; the same for the same seed."""
    rows = [row for service in services for row in _service(service, seconds, random.Random(f"{seed}/{service.name}"))]
    return sorted(rows, key=lambda row: row.arrival_s)


def generate_count(count: int, seed: int = 1) -> list[Row]:
    """The first `count` rows of a generated load."""
    seconds = 2.0 * count / sum(service.rate_per_s for service in (CONV, CODE))
    while len(rows := generate(seconds, seed=seed)) < count:
        seconds *= 2
    return rows[:count]


def _service(service: Service, seconds: float, rng: random.Random) -> Iterator[Row]:
    now_s = 0.0
    for gap_s in _gaps(service, rng):
        now_s += gap_s
        if now_s >= seconds:
            return
        yield Row(
            now_s,
            _lognormal(rng, service.input_tokens, service.input_cv, service.max_input_tokens),
            _lognormal(rng, service.output_tokens, service.output_cv, service.max_output_tokens),
            service.name,
        )


def _gaps(service: Service, rng: random.Random) -> Iterator[float]:
    """Endless gaps with the service's mean and variation: gamma when mild, else activity, volleys and long pauses."""
    mean_s, cv2 = 1 / service.rate_per_s, service.gap_cv**2
    if cv2 <= 2:
        while True:
            yield rng.gammavariate(1 / cv2, mean_s * cv2)
    active_s, volley_s = ACTIVE_GAP * mean_s, VOLLEY_GAP * mean_s
    # Mean and length of the pauses follow from the mean and the variation that all gaps together must have.
    volleyed = VOLLEY_SHARE * VOLLEY_SIZE
    per_draw = 1 - VOLLEY_SHARE + volleyed
    paused_s = per_draw * mean_s - volleyed * volley_s - (1 - VOLLEY_SHARE) * active_s
    squares = per_draw * (cv2 + 1) * mean_s**2 / 2 - volleyed * volley_s**2 - (1 - VOLLEY_SHARE) * active_s**2
    pause_s = squares / paused_s
    pause_share = paused_s / pause_s
    while True:
        draw = rng.random()
        if draw < pause_share:
            yield rng.expovariate(1 / pause_s)
        elif draw < pause_share + VOLLEY_SHARE:
            for _ in range(1 + int(rng.expovariate(1 / (VOLLEY_SIZE - 1)))):
                yield rng.expovariate(1 / volley_s)
        else:
            yield rng.expovariate(1 / active_s)


def _lognormal(rng: random.Random, mean: float, cv: float, largest: int) -> int:
    variance = math.log(1 + cv**2)
    return max(1, min(largest, round(rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance)))))


def read_trace(path: Path, limit: int | None = None) -> list[Row]:
    """The first `limit` rows of a CSV; raises ConfigError that names file and line of every fault (at most ten)."""
    try:
        file = path.open(newline="", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            [f"{path}: cannot be read: {error.strerror}. Name a CSV with {', '.join(COLUMNS)}."]
        ) from error
    with file:
        try:
            rows, problems = _table(path, file, limit)
        except (UnicodeDecodeError, csv.Error) as error:
            raise ConfigError(
                [f"{path}: is not a CSV in UTF-8: {error}. Name a CSV with {', '.join(COLUMNS)}."]
            ) from error
    if problems:
        raise ConfigError(problems)
    if not rows:
        raise ConfigError([f"{path}: has no rows below its header. Name a CSV with {', '.join(COLUMNS)}."])
    return rows


def _table(path: Path, file: TextIO, limit: int | None) -> tuple[list[Row], list[str]]:
    table = csv.DictReader(file)
    missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
    if missing:
        return [], [f"{path}:1: no column {', '.join(missing)}; a trace needs {', '.join(COLUMNS)}"]
    return _rows(path, islice(table, limit))


def _rows(path: Path, lines: Iterator[dict[str, str]]) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=2):
        try:
            row = _row(line)
        except (TypeError, ValueError, AttributeError):
            row = None
        problem = _problem(row, rows[-1] if rows else None)
        if row is None or problem:
            problems.append(f"{path}:{number}: {problem}")
            if len(problems) == MAX_PROBLEMS:
                break
        else:
            rows.append(row)
    return rows, problems


def _row(line: dict[str, str]) -> Row:
    """Raises ValueError or what a missing cell leads to."""
    more = {name: line[name].strip() for name in MORE_COLUMNS if name in line}
    return Row(
        float(line["arrival_s"]),
        int(line["input_tokens"]),
        int(line["output_tokens"]),
        more.get("service", ONE_SERVICE),
        more.get("tenant", ""),
        Priority(more.get("priority") or Priority.MEDIUM),
    )


def _problem(row: Row | None, before: Row | None) -> str | None:
    if row is None:
        return "wants a number of seconds and two whole numbers of tokens; a priority is high, medium or low"
    if not math.isfinite(row.arrival_s) or row.arrival_s < 0:
        return "arrival_s must be a finite number, at least 0"
    if row.input_tokens < 1 or row.output_tokens < 1:
        return "token counts must be at least 1"
    if not row.service:
        return "service is empty"
    if before is not None and row.arrival_s < before.arrival_s:
        return f"arrival_s {row.arrival_s:g} lies before that of the row above ({before.arrival_s:g}); sort the trace"
    return None


def paced(rows: Sequence[Row], rate_per_s: float) -> list[Row]:
    """The same rows from time 0, stretched so that they arrive at this mean rate."""
    first_s, span_s = rows[0].arrival_s, rows[-1].arrival_s - rows[0].arrival_s
    factor = len(rows) / rate_per_s / span_s if span_s > 0 else 0.0
    return [replace(row, arrival_s=(row.arrival_s - first_s) * factor) for row in rows]


def mean_outputs(rows: Sequence[Row]) -> dict[str, int]:
    """Mean output tokens by service: what a sender can declare without knowing the answer."""
    outputs: dict[str, list[int]] = {}
    for row in rows:
        outputs.setdefault(row.service, []).append(row.output_tokens)
    return {service: max(1, round(sum(tokens) / len(tokens))) for service, tokens in outputs.items()}


class Prompts:
    """Prompt texts by length, as slices of one fixed text: cheap, and four bytes to the token."""

    def __init__(self, longest_tokens: int) -> None:
        size = longest_tokens * BYTES_PER_TOKEN
        self._text = (_SEED_TEXT * (size // len(_SEED_TEXT) + 1))[:size]

    def of(self, tokens: int) -> str:
        """A text of this many tokens."""
        return self._text[: tokens * BYTES_PER_TOKEN]
