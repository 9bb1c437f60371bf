"""Windowed tables: what each tenant, model and class spent.  Written only by the settle agent, from `usage`."""

from dataclasses import dataclass
from typing import Any

import faust
from faust.tables.wrappers import WindowWrapper

from streams import metrics
from streams.settings import Streams
from topics.records import Usage

Row = dict[str, float]


@dataclass(slots=True)
class Spend:
    """Sums of one key in one batch."""

    requests: int = 0
    units: float = 0.0
    output_tokens: int = 0

    def add(self, usage: Usage, units: float) -> None:
        """Count one usage record."""
        self.requests += 1
        self.units += units
        self.output_tokens += usage.tokens.output

    def onto(self, row: Row) -> Row:
        """The row with these sums added."""
        return {
            "requests": row.get("requests", 0) + self.requests,
            "units": row.get("units", 0.0) + self.units,
            "output_tokens": row.get("output_tokens", 0) + self.output_tokens,
        }


def spend_key(usage: Usage) -> str:
    """A row's key: tenant, model and class."""
    return f"{usage.tenant}|{usage.model}|{usage.priority}|{usage.length}"


def spend_table(app: faust.App, settings: Streams, partitions: int) -> WindowWrapper:
    """Spend per key in tumbling windows, co-partitioned with `usage`."""
    table: Any = app.Table(
        "spend", default=dict, partitions=partitions, help="Cost units spent per tenant, model and class."
    )
    windowed: WindowWrapper = table.tumbling(settings.spend_window_s, expires=settings.spend_kept_s, key_index=False)

    async def forget_expired() -> None:
        """Faust never expires windows that came back from the changelog: tell it about them again."""
        for key in list(table.data):
            table._maybe_set_key_ttl(key, 0)  # noqa: SLF001 - the missing half of its recovery; any partition will do

    table.on_recover(forget_expired)
    metrics.SPEND_ROWS.set_function(lambda: len(table.data))
    return windowed
