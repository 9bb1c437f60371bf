"""What the parts of a consumer process are built from: clients, lane map, gauges, engine options."""

import secrets
from collections.abc import Callable

import structlog
from confluent_kafka import Consumer, Producer, ShareConsumer

from gpu_consumers.assignment import Fetched, Release
from gpu_consumers.cancels import Noted
from gpu_consumers.claims import Claims
from gpu_consumers.commits import Commits
from gpu_consumers.engines import factory
from gpu_consumers.engines.llama import LlamaOptions
from gpu_consumers.engines.null import NullOptions
from gpu_consumers.engines.openai_options import OpenAiOptions
from gpu_consumers.engines.simulated import SimulatedOptions
from gpu_consumers.engines.vllm_options import VllmOptions
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.metrics import Metrics
from gpu_consumers.parcels import Together
from gpu_consumers.policy import roles
from gpu_consumers.policy.breaker import Rules
from gpu_consumers.policy.selection import LANES, Lane
from gpu_consumers.poller import Links, Poller
from gpu_consumers.settings import Gpu, GpuSettings
from gpu_consumers.sharing import SharePoller
from gpu_consumers.telemetry import AnyPoller, Reporter, Sources
from gpu_consumers.transactions import TransactionalCommitter
from topics import catalog, clients
from topics.clock import Clock

log = structlog.get_logger()

Inbox = Mailbox[list[Fetched] | Release]
Orders = Mailbox[Noted]

_PREFETCH_RECORDS = 256
_PREFETCH_KIB = 16_384
_MS = 1000
_MISSING_TOPIC_MS = 3000


def incarnation(consumer_id: str) -> str:
    """The owner of claims: another one for each life of a consumer, since a restarted one must look for answers too."""
    return f"{consumer_id}/{secrets.token_hex(4)}"


def lanes(settings: GpuSettings) -> dict[str, Lane]:
    """The pool's lane topics."""
    return {catalog.lane(settings, settings.gpu.pool, lane.tier, lane.length): lane for lane in LANES}


def kafka_consumer(settings: GpuSettings, on_commit: Callable[..., None]) -> Consumer:
    """A member with a small prefetch: what waits here cannot go to a less busy consumer."""
    gpu = settings.gpu
    member: dict[str, str] = {"group_protocol": gpu.group_protocol}
    if gpu.group_protocol == "consumer":
        # By lane, not in total: the broker's default may give all partitions of the one busy lane to one member.
        member["group_remote_assignor"] = "range"
    else:
        member["partition_assignment_strategy"] = "cooperative-sticky"
    if gpu.instance_id is not None:
        member["group_instance_id"] = gpu.instance_id
    return clients.consumer(
        settings,
        catalog.gpu_group(settings, gpu.pool),
        **member,
        client_id=gpu.consumer_id,
        on_commit=on_commit,
        fetch_wait_max_ms=int(gpu.fetch_wait_s * _MS),
        queued_min_messages=min(_PREFETCH_RECORDS, gpu.buffer_records),
        queued_max_messages_kbytes=_PREFETCH_KIB,
        # The default of a second would stop a partition for as long whenever the small prefetch is full.
        fetch_queue_backoff_ms=5,
    )


def poller(settings: GpuSettings, inbox: Inbox, commits: Commits | None, clock: Clock, metrics: Metrics) -> AnyPoller:
    """The thread that fetches, by the protocol of the settings."""
    gpu = settings.gpu
    if gpu.group_protocol == "share":
        return SharePoller(gpu, share_consumer(settings), lanes(settings), inbox, clock)
    served = roles.serves(gpu.role, borrows=False)
    links = Links(lambda on_commit: kafka_consumer(settings, on_commit), lanes(settings), served, inbox, commits)
    return Poller(gpu, links, clock, metrics)


def share_consumer(settings: GpuSettings) -> ShareConsumer:
    """A member of the pool's share group, which begins at the start of the lanes and locks as the settings say."""
    gpu = settings.gpu
    group = f"{catalog.gpu_group(settings, gpu.pool)}-share"
    log.warning("sharing", group=group, experimental="no lag: promotion and autoscaler see all that was ever put in")
    clients.configure_group(
        settings,
        group,
        {
            "share.auto.offset.reset": "earliest",
            "share.record.lock.duration.ms": str(int(gpu.share_lock_s * _MS)),
        },
    )
    return clients.share_consumer(settings, group, client_id=gpu.consumer_id, max_poll_records=gpu.window_requests)


def kafka_producer(settings: GpuSettings, **more: int) -> Producer:
    """A producer that sends nothing after its claim may have ended, and gives a missing reply topic up soon.

    What such a topic cannot take goes to the default one.
    """
    return clients.producer(
        settings,
        delivered_within_s=settings.gpu.delivery_s,
        topic_metadata_propagation_max_ms=_MISSING_TOPIC_MS,
        **more,
    )


def transactions(settings: GpuSettings, parcels: Together, clock: Clock, metrics: Metrics) -> TransactionalCommitter:
    """Its producer is named after the consumer: whoever starts under an id ends what its former life left open."""
    gpu = settings.gpu
    producer = clients.producer(
        settings,
        delivered_within_s=min(gpu.delivery_s, gpu.transaction_timeout_s),
        transactional_id=f"{catalog.gpu_group(settings, gpu.pool)}-{gpu.consumer_id}",
        transaction_timeout_ms=int(gpu.transaction_timeout_s * _MS),
        topic_metadata_propagation_max_ms=_MISSING_TOPIC_MS,
    )
    return TransactionalCommitter(producer, parcels, gpu.commit_interval_s, clock, metrics)


def with_window(gpu: Gpu) -> Gpu:
    """The small model decodes few at once; more would only wait inside its server, out of order."""
    if gpu.engine != "llama":
        return gpu
    return gpu.model_copy(update={"window_requests": min(gpu.window_requests, LlamaOptions().parallel * 2)})


def engine_options(gpu: Gpu) -> factory.Options:
    """The engine that the settings name."""
    match gpu.engine:
        case "simulated":
            return SimulatedOptions(
                preset=gpu.preset,
                speed=gpu.speed,
                max_sequences=gpu.window_requests,
                long_prefill_tokens=gpu.long_prefill_tokens,
            )
        case "openai":
            key = None if gpu.openai_api_key is None else gpu.openai_api_key.get_secret_value()
            return OpenAiOptions(
                gpu.openai_base_url,
                api_key=key,
                silence_timeout_s=gpu.openai_timeout_s,
                breaker=Rules(gpu.openai_breaker_failures, gpu.refused_wait_s),
                probe_s=gpu.openai_probe_s,
            )
        case "llama":
            return LlamaOptions()
        case "vllm":
            assert gpu.vllm_model is not None  # noqa: S101 - the settings demand it
            return VllmOptions(
                model=gpu.vllm_model,
                dtype=gpu.vllm_dtype,
                context_tokens=gpu.vllm_context_tokens,
                kv_bytes=gpu.vllm_kv_bytes,
                window_requests=gpu.window_requests,
                prefill_limit_tokens=gpu.prefill_limit_tokens,
                long_window_ratio=gpu.long_window_ratio,
                more=gpu.vllm_arguments,
            )
        case "null":
            return NullOptions()


def readings(s: Sources, claims: Claims, reporter: Reporter) -> dict[str, tuple[str, Callable[[], float | None]]]:
    """Gauges, read at each scrape by its thread, so no engine is asked; None leaves the series out."""
    return {
        "inflight_requests": ("In the engine.", lambda: s.runner.running),
        "inflight_cost_units": ("Cost in the engine.", lambda: s.runner.seats.held.cost_units),
        "queued_requests": ("Fetched and waiting.", lambda: s.dispatcher.buffers.records),
        "queued_cost_units": ("Cost of what is fetched and waits.", lambda: s.dispatcher.buffers.units),
        "settling_requests": ("Ended, acknowledgements awaited.", lambda: s.settler.open),
        "held_requests": ("Run by another consumer; looked at again.", lambda: s.dispatcher.held),
        "owned_partitions": ("Lane partitions assigned.", lambda: len(s.poller.owned())),
        "served_lanes": ("Lanes subscribed to, borrowed ones among them.", lambda: len(s.poller.served)),
        "paused_partitions": ("Paused since their buffer is full.", lambda: sum(a.paused for a in s.poller.owned())),
        "redis_available": ("1 while Redis answers.", lambda: float(claims.available)),
        "free_kv_tokens": ("Free KV cache of the engine.", lambda: s.runner.load.free_kv_tokens),
        "kv_tokens": ("KV cache of the engine.", lambda: s.runner.load.total_kv_tokens),
        "gpu_memory_used_ratio": ("Used GPU memory.", lambda: reporter.gpu.memory_used_ratio),
        "gpu_busy_ratio": ("Time in which the GPU ran something.", lambda: reporter.gpu.busy_ratio),
        "intake_open": (
            "0 while the state of GPU or engine lets nothing new in.",
            lambda: float(reporter.intake.is_open),
        ),
        "engine_open": ("0 while the engine takes nothing new.", lambda: float(s.runner.load.closed is None)),
        "engine_running_requests": ("Jobs that the engine works on.", lambda: s.runner.load.running),
        "engine_waiting_requests": ("Jobs that wait inside the engine.", lambda: s.runner.load.waiting),
        "gpu_temperature_celsius": ("GPU temperature.", lambda: reporter.gpu.temperature_c),
    }
