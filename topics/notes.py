"""What streams workers note for each other: budget levels, and what they have learned.  Frozen, like all records."""

from topics.records import Record


class Balances(Record, frozen=True, kw_only=True):
    """Budget levels after one change in Redis: what the buckets are rebuilt from when Redis lost them."""

    at_s: float
    """Time of the Redis server, at which `levels` held."""
    by: str
    levels: dict[str, float]
    """Units by bucket, `<level>:<name>`; below zero is debt."""


class Estimate(Record, frozen=True, kw_only=True):
    """What is known of one kind of request; compacted by `<tenant>|<model>|<template>`."""

    tenant: str
    model: str
    template: str
    at_s: float
    samples: int
    output_tokens: float | None = None
    """The quantile of the settings, with its upper error; None until enough were seen."""
    service_s: float | None = None
    prompt_ratio: float | None = None
    """Real over estimated prompt tokens."""
    coefficient: float | None = None
    """Calibrated coefficient of `model`; only in the estimate with empty tenant and template."""
