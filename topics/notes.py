"""What streams workers note for each other: budget levels, and what they have learned.  Frozen, like all records."""

from typing import Annotated

from msgspec import Meta

from topics.bounds import MAX_COUNT, Count, Factor, Seconds, UnixSeconds
from topics.records import Record


class Balances(Record, frozen=True, kw_only=True):
    """Budget levels after one change in Redis: what the buckets are rebuilt from when Redis lost them."""

    at_s: UnixSeconds
    """Time of the Redis server, at which `levels` held."""
    by: str
    levels: dict[str, float]
    """Units by bucket, `<level>:<name>`; below zero is debt."""


class Estimate(Record, frozen=True, kw_only=True):
    """What is known of one kind of request; compacted by `<tenant>|<model>|<template>`."""

    tenant: str
    model: str
    template: str
    at_s: UnixSeconds
    samples: Count
    output_tokens: Annotated[float, Meta(ge=0, le=MAX_COUNT)] | None = None
    """The quantile of the settings, with its upper error; None until enough were seen."""
    service_s: Seconds | None = None
    prompt_ratio: Factor | None = None
    """Real over estimated prompt tokens."""
    coefficient: Factor | None = None
    """Calibrated coefficient of `model`; only in the estimate with empty tenant and template."""
