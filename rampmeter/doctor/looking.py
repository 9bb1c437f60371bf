"""Reads what a diagnosis goes by: lag, telemetry, and what came and ran in the last minutes."""

from collections.abc import Iterator

from rampmeter import draining, lag, reading
from rampmeter.doctor.diagnosis import Pool
from streams.settings import StreamsSettings
from topics import codec
from topics.clock import Clock
from topics.errors import LagUnavailable
from topics.records import Decision, Length


def pools(settings: StreamsSettings, clock: Clock, window_s: float) -> list[Pool]:
    """Every pool as it is now."""
    found = {name: Pool(name, window_s) for name in settings.pools}
    try:
        for row in lag.read(settings):
            pool = found[row.pool]
            pool.lag_records = (pool.lag_records or 0) + row.lag_records
            pool.oldest_s = max(pool.oldest_s, row.oldest_age_s)
    except LagUnavailable:
        pass  # it stays unknown
    for told in draining.reports(settings).values():
        if told.pool in found:
            found[told.pool].reports[told.consumer] = told
    since_s = clock.wall_s() - window_s
    for name, decision in _looks(settings, since_s):
        if name in found:
            _note_look(found[name], decision)
    _note_runs(settings, found, since_s)
    return list(found.values())


def _looks(settings: StreamsSettings, since_s: float) -> Iterator[tuple[str, Decision]]:
    for _, decision in reading.records(settings, "decisions", codec.decode_decision, since_s):
        if decision.shadow is None and decision.stage == "admission":
            yield str(decision.inputs.get("pool")), decision


def _note_look(pool: Pool, decision: Decision) -> None:
    inputs = decision.inputs
    if "long_units" in inputs:  # the first look at this request
        tenant, units = str(inputs.get("tenant")), inputs.get("cost_units")
        pool.looked_at += 1
        pool.asked_units[tenant] = pool.asked_units.get(tenant, 0.0) + (units if isinstance(units, int | float) else 0)
    if decision.verdict == "reject":
        pool.refused += 1


def _note_runs(settings: StreamsSettings, found: dict[str, Pool], since_s: float) -> None:
    for _, usage in reading.records(settings, "usage", codec.decode_usage, since_s):
        pool = found.get(usage.pool)
        if pool is not None and usage.length is Length.SHORT and usage.service_s is not None:
            pool.short_runs += 1
            pool.short_long_runs += usage.service_s > settings.streams.history.long_service_s
    for _, reply in reading.replies(settings, since_s):
        pool = found.get(reply.pool or "")
        waited_s = None if reply.waits is None else reply.waits.lane_s
        if pool is not None and reply.length is Length.SHORT and waited_s is not None and not reply.repeat:
            pool.short_waits_s.append(waited_s)
