"""Checks before anything runs: settings of all processes, topics of the broker."""

import os
from collections.abc import Iterator
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from autoscaler.settings import AutoscalerSettings
from gpu_consumers.settings import GpuSettings
from rampmeter.console.settings import ConsoleSettings
from rampmeter.door.settings import DoorSettings
from rampmeter.output import Output
from rampmeter.settings import StackSettings
from streams.settings import StreamsSettings
from topics import admin, catalog, clients, drift, process
from topics.drift import Drift
from topics.errors import ConfigError
from topics.records import Role
from topics.settings import ENV_PREFIX, Pool, Settings, load, redacted

KINDS: tuple[type[Settings], ...] = (
    StreamsSettings,
    GpuSettings,
    AutoscalerSettings,
    StackSettings,
    DoorSettings,
    ConsoleSettings,
)
_NOT_FIELDS = ("CONFIG",)


def plan_topics(settings: Settings, output: Output) -> int:
    """Say what there is to do and who does it: `apply`, `apply --configs`, or nobody but people."""
    clients.require_kafka(settings)
    existing = admin.partition_counts(settings)
    create = [topic for topic in catalog.topics(settings) if topic.name not in existing]
    drifts = _drifts(settings, output)
    by_hand = admin.miscounted(settings, existing)
    if output.as_json:
        output.result({"create": create, "configs": drifts, "by_hand": by_hand})
    for topic in create:
        config = ", ".join(f"{name}={value}" for name, value in sorted(topic.config.items()))
        output.text(f"create {topic.name}: {topic.partitions} partitions; {config}")
    for one in drifts:
        output.text(f"with --configs: {one}")
    for difference in by_hand:
        output.text(f"by hand: {difference}")
    if not create and not drifts and not by_hand:
        output.say("nothing to do: all topics are as the settings want them")
        return 0
    return process.EXIT_FINDING


def apply_topics(settings: Settings, output: Output, *, configs: bool = False) -> None:
    """Create what is missing, with `configs` set right what has drifted, then judge what is there."""
    clients.require_kafka(settings)
    created = admin.apply(settings)
    drifts = drift.find(settings) if configs else []
    drift.correct(settings, drifts)
    admin.require(settings)
    if output.as_json:
        output.result({"created": created, "configs": drifts})
    for name in created:
        output.text(f"created {name}")
    for one in drifts:
        output.text(f"set {one.name}={one.wanted} on {one.topic}, was {one.value}")
    output.say(f"{len(created)} topics created, {len(drifts)} properties set")


def check_topics(settings: Settings, output: Output) -> int:
    """Print every difference."""
    clients.require_kafka(settings)
    drifts = [f"{one}; run `rampmeter topics apply --configs`" for one in _drifts(settings, output)]
    found = [*admin.differences(settings), *drifts]
    if output.as_json:
        output.result({"differences": found})
    for difference in found:
        output.text(difference)
    if not found:
        output.say("all topics are as the settings want them")
    return process.EXIT_CONFIG if found else 0


def _drifts(settings: Settings, output: Output) -> list[Drift]:
    """What has drifted; a user who may not ask learns that, and the rest of the answer."""
    try:
        return drift.find(settings)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        output.say("the topics' properties are not looked at: this needs DESCRIBE_CONFIGS on them")
        return []


def config_problems() -> list[str]:
    """Every problem of every process's settings, once."""
    problems: list[str] = list(_unknown_names())
    for kind in KINDS:
        try:
            load(kind)
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    return problems or [
        *_too_hasty(load(GpuSettings), load(AutoscalerSettings)),
        *_blind(load(GpuSettings), load(AutoscalerSettings)),
    ]


def check_config(output: Output) -> int:
    """Print every problem."""
    problems = config_problems()
    if output.as_json:
        output.result({"problems": problems})
    for problem in problems:
        output.text(problem)
    if not problems:
        output.say("the settings of all processes are valid")
    return process.EXIT_CONFIG if problems else 0


def _too_hasty(gpu: GpuSettings, autoscaler: AutoscalerSettings) -> Iterator[str]:
    """Whoever kills a consumer before it can have ended cuts its work off."""
    killed_after_s, ended_after_s = autoscaler.autoscaler.grace_s, gpu.gpu.termination_s
    if killed_after_s < ended_after_s:
        yield (
            f"RAMPMETER_AUTOSCALER__GRACE_S={killed_after_s:g}: a consumer may take {ended_after_s:g} s to end"
            f" (RAMPMETER_GPU__GRACE_S={gpu.gpu.grace_s:g} and the time to leave) and would be killed before"
        )


def _blind(gpu: GpuSettings, autoscaler: AutoscalerSettings) -> Iterator[str]:
    """A share group commits no offsets, so all that was ever put in looks like a backlog."""
    if gpu.gpu.group_protocol == "share" and autoscaler.autoscaler.target != "dry-run":
        yield (
            "RAMPMETER_GPU__GROUP_PROTOCOL=share: such a group has no lag, and the autoscaler goes by it;"
            " set RAMPMETER_AUTOSCALER__TARGET=dry-run"
        )


def print_config(output: Output) -> None:
    """Print all settings, secrets hidden, and what follows from them."""
    merged: dict[str, Any] = {}
    for kind in KINDS:
        merged |= redacted(load(kind))
    gpu = load(GpuSettings)
    merged["gpu"]["termination_s"] = gpu.gpu.termination_s
    for name, pool in gpu.pools.items():
        merged["pools"][name] |= _deployment(gpu, name, pool)
    if output.as_json:
        output.result(merged)
        return
    for name, value in sorted(_flat(merged, "")):
        output.text(f"{name} = {value}")


def _deployment(settings: Settings, name: str, pool: Pool) -> dict[str, object]:
    """What a deployment of the pool follows from: its models, and where consumers of each role belong."""
    return {
        "models": sorted(model for model, spec in settings.models.items() if spec.pool == name),
        "role_gpu_types": {role.value: list(pool.gpu_types_of(role)) for role in Role},
    }


def _flat(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _flat(part, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def _unknown_names() -> Iterator[str]:
    """Variables with our prefix that no process reads: most likely a typing mistake."""
    known = {name.upper() for kind in KINDS for name in kind.model_fields} | set(_NOT_FIELDS)
    for name in sorted(os.environ):
        upper = name.upper()
        if upper.startswith(ENV_PREFIX) and upper.removeprefix(ENV_PREFIX).split("__")[0] not in known:
            yield f"{name}: no process knows this setting; see `rampmeter config print` for the names"
