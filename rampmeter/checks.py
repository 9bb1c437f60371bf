"""Checks before anything runs: settings of all processes, topics of the broker."""

import os
from collections.abc import Iterator
from typing import Any

from autoscaler.settings import AutoscalerSettings
from gpu_consumers.settings import GpuSettings
from rampmeter.output import Output
from rampmeter.settings import StackSettings
from streams.settings import StreamsSettings
from topics import admin, clients, process
from topics.errors import ConfigError
from topics.records import Role
from topics.settings import ENV_PREFIX, Pool, Settings, load, redacted

KINDS: tuple[type[Settings], ...] = (StreamsSettings, GpuSettings, AutoscalerSettings, StackSettings)
_NOT_FIELDS = ("CONFIG",)


def apply_topics(settings: Settings, output: Output) -> None:
    """Create what is missing, then judge what is there."""
    clients.require_kafka(settings)
    created = admin.apply(settings)
    admin.require(settings)
    if output.as_json:
        output.result({"created": created})
    for name in created:
        output.text(f"created {name}")
    output.say(f"{len(created)} topics created; all are as the settings want them")


def check_topics(settings: Settings, output: Output) -> int:
    """Print every difference."""
    clients.require_kafka(settings)
    found = admin.differences(settings)
    if output.as_json:
        output.result({"differences": found})
    for difference in found:
        output.text(difference)
    if not found:
        output.say("all topics are as the settings want them")
    return process.EXIT_CONFIG if found else 0


def check_config(output: Output) -> int:
    """Print every problem of every process's settings, once."""
    problems: list[str] = list(_unknown_names())
    for kind in KINDS:
        try:
            load(kind)
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    problems = problems or [
        *_too_hasty(load(GpuSettings), load(AutoscalerSettings)),
        *_blind(load(GpuSettings), load(AutoscalerSettings)),
    ]
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
