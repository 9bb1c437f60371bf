"""Settings of a GPU consumer process: section `gpu`, so `RAMPMETER_GPU__LEASE_S` and the like."""

import os
import secrets
import socket
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from gpu_consumers.engine_settings import Engines
from gpu_consumers.policy import demand, expiry, roles, static_batch
from gpu_consumers.policy.selection import Shares
from topics.offset_map import MAX_BYTES
from topics.records import Role, Tier
from topics.section import Section
from topics.settings import Pool, Settings

STOP_S, LEAVE_S, FLUSH_S, REST_S = 2.0, 10.0, 5.0, 2.0
"""Longest waits of an end after the grace: until what still runs is aborted and its claims are given back, to leave the
group, for the broker to take what is sent, and for our threads beside the engine's own end."""
_VLLM_CLOSE_S, _CLOSE_S = 8.0, 1.0
"""Longest wait for the engine's own end.  vLLM gives its processes 5 s before it kills them."""


def default_consumer_id() -> str:
    """Host, pid and a random word: never the same for two lives of a process."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class ModelRoom(Section):
    """What one model may hold of an engine that serves several; unset is no limit of its own."""

    window_requests: PositiveInt | None = None
    window_kv_tokens: PositiveInt | None = None
    window_cost_units: PositiveFloat | None = None
    """Each too small: the model's part of the engine lies idle.  Too large: its order is decided inside the engine."""


class Gpu(Engines):
    """One consumer process in front of one engine."""

    pool: str = "default"
    engine: Literal["simulated", "openai", "llama", "vllm", "null"] = "simulated"
    group_protocol: Literal["consumer", "classic", "share"] = "consumer"
    """`consumer` is KIP-848.  `classic`, cooperative, is for brokers before Kafka 4.0: it spreads partitions in total
    and not by lane, so a consumer may have none of the one busy lane.  `share` (KIP-932) is an experiment, for brokers
    from Kafka 4.2: more consumers than partitions, and no lag; see ARCHITECTURE.md for its limits."""
    share_lock_s: PositiveFloat = 30.0
    """How long the broker keeps a record for who has it; it allows 15 to 60 s unless told otherwise.  Too small: work
    is given away while it runs, and given up by the broker after five times.  Too large: so late is a dead one's."""
    instance_id: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]{1,200}$")
    """Static membership: after a restart within the session timeout the same partitions come back, without a
    rebalance, and meanwhile nobody serves them.  Of two processes with one id one ends."""
    consumer_id: str = Field(default_factory=default_consumer_id, pattern=r"^[A-Za-z0-9._:-]{1,200}$")
    """Owner of claims and key of telemetry.  Two processes with one id would run the same request twice."""

    role: Role = Role.GENERAL
    """`short` and `long` serve only lanes of that length, apart from what they borrow."""
    borrowing: Literal["dynamic", "none"] = "dynamic"
    """`dynamic`: a consumer of one length serves the other too while it has no owner, or while it waits and there is
    room.  `none` is a fixed split: an idle engine does not help, and lanes without a consumer of their length stand."""
    borrow_after_s: PositiveFloat = 5.0
    """How long a reason to borrow or to let go must last.  Too small: a rebalance looks like a missing owner.
    Too large: lanes stand for as long."""
    borrow_apart_s: PositiveFloat = 15.0
    """Least time between two changes, but for lanes without an owner.  Too small: rebalances.  Too large: engines
    that could help idle."""
    gpu_type: str | None = None
    """What this machine's GPU is, such as a node label; it must be among those of the pool, if that names any."""

    preset: str = "a100-8b"
    """Constants of the simulated engine."""
    speed: PositiveFloat = 1.0
    """Simulated seconds per second.  Too large: timers of the machine blur the simulated times."""
    window_requests: PositiveInt = 64
    """In flight in the engine.  Too small: capacity lies idle.  Too large: the order is decided inside the engine."""
    prefill_limit_tokens: PositiveInt = 4096
    """Prompt tokens in the engine without a first token.  Too small: short chunks.  Too large: urgent work waits."""
    long_prefill_tokens: PositiveInt | None = 320
    """Prompt tokens of long work in a step of the engine while short work is in it; unset: no limit.  The simulated
    engine keeps to it.  Too small: short steps, and less is done.  Too large: shorts are as slow as longs."""
    window_cost_units: PositiveFloat | None = None
    """Cost in flight; unset: no limit.  Too small: capacity lies idle.  Too large: the order is decided inside."""
    model_rooms: dict[str, ModelRoom] = Field(default_factory=dict)
    """Models that the engine serves side by side, each with room of its own within that of the engine: one whose room
    is full holds up no other."""
    long_window_ratio: float = Field(0.75, gt=0, le=1)
    """Share of the engine that longs may hold while a short waits.  Too small: longs starve.  Too large: shorts do."""
    long_window_least_ratio: float = Field(0.25, gt=0, le=1)
    """What is left to longs however many shorts come: between this and all, their share follows what shorts needed in
    the last seconds.  Too small: longs crawl while shorts come.  Too large: shorts wait for longs to end."""
    short_start_s: PositiveFloat | None = None
    long_start_s: PositiveFloat | None = None
    """Work that has not begun so long after its arrival is answered `expired`, by its length; unset: only deadlines
    of requests count.  Too small: a burst is refused that would have been served.  Too large: above saturation all is
    served too late."""
    static_batch_size: PositiveInt | None = None
    """The engine takes whole batches of at most so many requests of one model, one after the other.  Unset: it takes
    a request whenever it has room.  Too small: the engine is not used.  Too large: it refuses batches."""
    static_window_high_s: PositiveFloat = 0.01
    static_window_medium_s: PositiveFloat = 0.03
    static_window_low_s: PositiveFloat = 0.1
    """How long the first request of a static batch waits for others, by its tier; aged ones wait as high ones do.
    Too small: small batches.  Too large: the engine idles meanwhile."""
    gpu_index: int = Field(0, ge=0)
    """Which GPU of the machine NVML is asked about."""
    max_temperature_c: PositiveFloat = 92.0
    """Above it nothing new is taken in until the GPU is 5 degrees cooler.  Too small: a busy GPU idles.  Too large: it
    throttles, and all that runs is slow.  Placement looks away earlier: `streams.placement.max_temperature_c`."""
    max_memory_used_ratio: float = Field(0.99, gt=0, le=1)
    """The same of its memory.  Too small: an engine that keeps its memory never works.  Too large: it runs out."""

    buffer_records: PositiveInt = Field(4096, ge=2)
    """Fetched and undispatched per lane partition.  Too small: a deadline or a cancel of what lies behind is answered
    only when it is fetched.  Too large: a partition that changes hands is fetched once more in vain."""
    buffer_mib: PositiveInt = 64
    """Memory for all of them, about; partitions share what is spare, and up to twice as much may be taken.  Too small:
    as above.  Too large: the process is killed for its memory under a backlog."""
    poll_records: PositiveInt = 256
    """Records taken per turn of the poll thread; the buffer may be over its bound by this many."""
    window_records: PositiveInt = 50_000
    """Received beyond the first unfinished record of a partition.  Too small: one long job stops its partition."""
    unsettled_requests: PositiveInt = 2048
    """Left the buffers and not acknowledged.  Too small: the engine idles for want of acknowledgements.
    Too large: memory during an outage of the broker or Redis."""
    claim_batch: PositiveInt = 128
    """Ids claimed in one Redis call.  Too small: a call per record.  Too large: Redis stalls others meanwhile."""
    lease_s: PositiveFloat = 6.0
    """A dead consumer's work is taken over after this.  Too small: a pause of the process loses its claims."""
    renew_s: PositiveFloat = 2.0
    """Renewal of leases.  Too large against `lease_s`: one slow call loses them.  Too small: needless calls."""
    delivery_s: PositiveFloat = Field(15.0, ge=1)
    """An answer may be under way to the broker for this long; its claim is held until then, so that nobody gives a
    second one.  Too small: a slow broker has answers looked up and sent again, and both if it takes 4 s longer still.
    Too large: what a consumer was just answering when it was killed is run again as late."""
    held_retry_s: PositiveFloat = 1.0
    """Look again at ids that another consumer holds.  Too large: takeover is late.  Too small: needless calls."""
    without_redis: Literal["wait", "run"] = "wait"
    """While Redis does not answer.  `wait`: what runs goes on, its answers wait, nothing new begins.  `run`: work
    begins without a claim, and is answered when no other answer lies in the reply topic.  Where partitions move
    meanwhile an id may run twice, and two that end in the same moment both answer."""
    redis_retry_s: PositiveFloat = 0.25
    """Pause after a failed Redis call.  Too small: a busy loop during an outage.  Too large: a late return."""
    commit_interval_s: PositiveFloat = 1.0
    """Too small: load on the coordinator.  Too large: more finished work is looked at again after a crash."""
    commit_map_bytes: int = Field(MAX_BYTES, ge=64, le=1 << 20)
    """Finished records behind an unfinished one, as a commit may list them: one less than the broker's
    `offset.metadata.max.bytes`.  Too small: a slow request stops the fetch of its partition.  Too large: commits are
    refused until it was cut to what the broker takes."""
    delivery: Literal["at_least_once", "transactional"] = "at_least_once"
    """`transactional` puts an answer and the offset of what it answers into one Kafka transaction: readers with
    `isolation.level=read_committed` never see an answer whose request is run again.  It costs a wait for the
    coordinator by batch, and after a kill such readers wait up to `transaction_timeout_s` for what lies behind."""
    transaction_timeout_s: float = Field(10.0, ge=1, le=900)
    """Too small: a slow coordinator aborts what is then sent again.  Too large: what a killed process left open holds
    up readers, and the next owner of its partitions, for as long."""
    drain_deadline_s: PositiveFloat = 5.0
    """Wait for running shorts before partitions are given away.  Too large: a rebalance takes as long for all."""
    on_revoke: Literal["finish", "abort"] = "finish"
    """What still runs when its partition goes.  `finish`: it goes on under its claim, and its answer is dropped if that
    is lost; the next owner waits for it.  `abort`: at the drain deadline, for which longs are waited for too, it leaves
    the engine, and the next owner begins it anew at once: what it did is lost, and nobody pays for it."""
    grace_s: PositiveFloat = 20.0
    """Wait for running work at the end of the process.  Too small: what runs is aborted and run again elsewhere.
    Too large: a rollout takes as long.  Its supervisor must wait for `termination_s`: see `rampmeter config print`."""
    max_attempts: PositiveInt = 3
    """Too small: a passing fault of an engine fails requests.  Too large: poison keeps engines busy."""
    max_takeovers: PositiveInt = 3
    """Consumers that may be lost over one request; the next one gives it up.  Too small: machines that go for other
    reasons fail requests.  Too large: a request that ends its consumer ends as many."""
    telemetry_interval_s: PositiveFloat = 0.5
    """Too small: load.  Too large: placement and scaling act on the past."""
    expiry_interval_s: PositiveFloat = 0.02
    """How late the deadline of fetched work may be noticed.  Too small: an idle process is busy."""
    remembered_cancels: PositiveInt = 10_000
    """Too small: work that comes long after its cancel runs.  Too large: memory."""
    stall_s: PositiveFloat = 30.0
    """Work waits and nothing moves for this long: /livez complains.  Too small: a slow engine is restarted."""
    warm_up_s: NonNegativeFloat = 30.0
    """Longest time for a token of each model before the start; 0 does without.  Too small: the first request of a
    model pays for its loading.  Too large: a consumer of a server that is away joins as much later."""
    maintenance_interval_s: PositiveFloat = 60.0
    """Pause between rounds of reports and cleaning.  Too small: log and load.  Too large: what is old stays as long."""
    maintenance_ratio: float = Field(0.1, gt=0, le=1)
    """Most of the time that those rounds may take.  Too small: slow ones are rare.  Too large: they use up a core."""
    fetch_wait_s: PositiveFloat = 0.02
    """Longest wait of a fetch at the broker.  Too small: idle load.  Too large: a resumed partition waits as long."""

    @property
    def termination_s(self) -> float:
        """Longest time from SIGTERM to exit 0: what whoever kills after a while has to wait."""
        return self.grace_s + STOP_S + LEAVE_S + FLUSH_S + self.close_s

    @property
    def close_s(self) -> float:
        """After it the process ends, whatever its engine and its threads still do."""
        return REST_S + (_VLLM_CLOSE_S if self.engine == "vllm" else _CLOSE_S)

    def shares(self, pool: Pool) -> Shares:
        """How dispatched cost of this pool is divided."""
        return Shares(
            high=pool.high_weight,
            medium=pool.medium_weight,
            low=pool.low_weight,
            aged_ratio=pool.aged_ratio,
            short=pool.short_weight,
            long=pool.long_weight,
        )

    @property
    def borrows(self) -> bool:
        """Whether its lanes may change."""
        return self.role is not Role.GENERAL and self.borrowing == "dynamic"

    def borrowing_rules(self) -> roles.Rules:
        """How eagerly lanes change hands."""
        return roles.Rules(self.borrow_after_s, self.borrow_apart_s)

    def start_limits(self) -> expiry.StartLimits:
        """Until when work may begin."""
        return expiry.StartLimits(self.short_start_s, self.long_start_s)

    def longs(self) -> demand.Rules:
        """Bounds of what longs may hold of the engine."""
        return demand.Rules(self.long_window_ratio, min(self.long_window_least_ratio, self.long_window_ratio))

    def static_batches(self) -> static_batch.Rules | None:
        """How batches are made for an engine that takes only whole ones."""
        if self.static_batch_size is None:
            return None
        high_s = self.static_window_high_s
        return static_batch.Rules(
            self.static_batch_size,
            {
                Tier.HIGH: high_s,
                Tier.AGED: high_s,
                Tier.MEDIUM: self.static_window_medium_s,
                Tier.LOW: self.static_window_low_s,
            },
        )

    @model_validator(mode="after")
    def _all_of_it_works_together(self) -> Self:
        is_shared, is_transactional = self.group_protocol == "share", self.delivery == "transactional"
        conflicts = {
            "the engine vllm needs vllm_model": self.engine == "vllm" and self.vllm_model is None,
            f"static_batch_size ({self.static_batch_size}) must not exceed claim_batch ({self.claim_batch})": (
                self.static_batch_size is not None and self.static_batch_size > self.claim_batch
            ),
            "delivery transactional needs offsets, and group_protocol share has none": is_shared and is_transactional,
            "instance_id keeps partitions for a member, and with group_protocol share none has any": (
                is_shared and self.instance_id is not None
            ),
            "borrowing dynamic looks who owns which lane, and with group_protocol share nobody does": (
                is_shared and self.borrows
            ),
            "delivery transactional answers each id once, which without_redis run cannot promise": (
                is_transactional and self.without_redis == "run"
            ),
            f"renew_s ({self.renew_s:g}) must be at most half of lease_s ({self.lease_s:g})": (
                self.renew_s * 2 > self.lease_s
            ),
        }
        if problems := [problem for problem, is_there in conflicts.items() if is_there]:
            raise ValueError("; ".join(problems))
        return self


class GpuSettings(Settings):
    """The shared settings and this package's section."""

    gpu: Gpu = Field(default_factory=Gpu)

    @model_validator(mode="after")
    def _pool_exists(self) -> Self:
        if self.gpu.pool not in self.pools:
            message = f"gpu.pool names {self.gpu.pool!r}, which is not in pools ({', '.join(sorted(self.pools))})"
            raise ValueError(message)
        allowed = self.pools[self.gpu.pool].gpu_types_of(self.gpu.role)
        if self.gpu.gpu_type is not None and allowed and self.gpu.gpu_type not in allowed:
            message = f"gpu.gpu_type {self.gpu.gpu_type!r} is none of the pool's for its role ({', '.join(allowed)})"
            raise ValueError(message)
        unknown = sorted(set(self.gpu.model_rooms) - set(self.models))
        if unknown:
            message = f"gpu.model_rooms names {', '.join(unknown)}, which is not in models"
            raise ValueError(message)
        for name in ("lease_s", "delivery_s"):
            if (held_s := getattr(self.gpu, name)) > self.dedupe_window_s:
                message = f"gpu.{name} ({held_s:g}) must not exceed dedupe_window_s ({self.dedupe_window_s:g})"
                raise ValueError(message)
        return self
