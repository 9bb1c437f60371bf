"""From rows of a trace to requests on the wire."""

import uuid
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from rampmeter.load import Shot
from rampmeter.workload import Prompts, Row, mean_outputs
from topics import catalog
from topics.records import Length, Priority
from topics.settings import Settings

MODEL = "llama-3-8b"


def of_rows(settings: Settings, rows: Sequence[Row], tenant: str | None = None) -> Iterator[Shot]:
    """One request a row, `max_tokens` declared as the mean output of its service and never the row's own.

    The row's own output length reaches only the simulated engine.  The tenant is the service unless given.
    """
    declared = mean_outputs(rows)
    prompts = Prompts(max(row.input_tokens for row in rows))
    topic = catalog.landing(settings, Priority.MEDIUM, Length.SHORT)
    run = uuid.uuid4().hex[:8]
    for number, row in enumerate(rows):
        yield Shot(
            at_s=row.arrival_s,
            id=f"{run}-{number}",
            topic=topic,
            tenant=tenant or row.service,
            value=partial(_body, prompts, row, declared[row.service]),
            headers={"rampmeter_source": row.service},
        )


def _body(prompts: Prompts, row: Row, max_tokens: int) -> bytes:
    return msgspec.json.encode(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompts.of(row.input_tokens)}],
            "max_tokens": max_tokens,
            "simulated_output_tokens": row.output_tokens,
        }
    )
