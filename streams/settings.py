"""Settings of the streams workers: sections `streams` and `identity`, variables RAMPMETER_STREAMS__X and the like."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, SecretStr, model_validator

from topics import tokens
from topics.records import Priority
from topics.section import Section
from topics.settings import Settings


class Bucket(Section):
    """A token bucket in cost units: what flows in a second, and how much of it may be saved up for a burst."""

    refill_units_per_s: PositiveFloat
    burst_s: PositiveFloat = 60.0
    """Too small: a burst is deferred that the fleet could take.  Too large: a loud tenant fills the lanes."""
    warm_up_s: NonNegativeFloat = 1.0
    """A new bucket starts at zero, and its refill rises to the full rate within this.  Too small: many new tenants at
    once are a burst.  Too large: a new tenant is slow for as long."""
    paced: bool = False
    """Leaky bucket: nothing is saved up; a request may start once the cost of the ones before it has flowed off.
    `burst_s` then only says what is too large to be admitted at all."""

    @property
    def cap_units(self) -> float:
        """Largest level; no single request may cost more."""
        return self.refill_units_per_s * self.burst_s


class Fair(Section):
    """How much of a saturated pool's lanes one tenant may fill; the rest of its work waits before the lanes."""

    window_s: PositiveFloat = 3.0
    """Seconds of work that the lanes hold beyond what the engines hold.  Too small: engines may run dry between two
    looks at what waits.  Too large: a flood is further ahead of the others."""
    half_life_s: PositiveFloat = 60.0
    """In which half of what a tenant was served is forgotten.  Too large: an old flood is held against a tenant."""
    hold_s: PositiveFloat = 2.0
    """What waits for less than this waits in the worker's memory, what waits longer in the deferred topics.
    Too large: as much is read again after a crash."""
    hold_records: PositiveInt = 2000
    """Records of a worker that wait in memory.  Too small: they take the coarser way over the deferred topics."""
    look_every_s: PositiveFloat = 0.05
    """How often those are looked at.  Too small: load on Redis.  Too large: waits are as coarse."""


class Degrade(Section):
    """What admission does while Redis does not answer in time."""

    timeout_s: PositiveFloat = 0.25
    """Longest wait of admission for Redis.  Too small: a slow moment is an outage.  Too large: it is the latency."""
    probe_s: PositiveFloat = 0.5
    """How often Redis is asked whether it is there and whole.  Too small: load on it.  Too large: a late return."""
    high: Literal["closed", "open", "local_share"] = "local_share"
    medium: Literal["closed", "open", "local_share"] = "local_share"
    low: Literal["closed", "open", "local_share"] = "closed"
    """`closed` lets a class wait, `open` admits it unasked, `local_share` admits it under this worker's part of the
    budgets: its partitions over all partitions, so that all workers together never exceed `local_ratio`."""
    local_ratio: float = Field(0.5, gt=0, le=1)
    """Part of each budget that is given out while Redis is away.  Too small: an outage stops who lives on it.
    Too large: little is left for what Redis had promised."""
    rebuild_records: PositiveInt = 50_000
    """How many batches' balances are read when Redis lost them, and more where filling the slowest bucket took more.
    Too small: a tenant that was idle for longer starts as a new one.  Too large: admission waits for the reading."""


class History(Section):
    """What is learned of past requests, by tenant, model and template."""

    window_s: PositiveFloat = 300.0
    """Length of a row's window.  Too small: many rows in the table.  Too large: much is forgotten at once."""
    kept_s: PositiveFloat = 3600.0
    """For how long a window counts after its end.  Too small: rare kinds stay unknown.  Too large: it is late to follow
    when a kind changes."""
    quantile: float = Field(0.9, gt=0, lt=1)
    """Expected output is this quantile of past outputs, at most what the request declares; service time likewise.
    Too small: requests run on credit.  Too large: budgets are held by work that never comes."""
    min_samples: PositiveInt = 20
    """With fewer, the declaration or the model's default counts.  Too small: a few odd answers set the price."""
    long_service_s: PositiveFloat = 2.0
    """A kind of request is long when the quantile of its service times is above this.  Too small: all are long, and
    shorts wait among them.  Too large: longs get in front of shorts."""
    max_kinds: PositiveInt = 10_000
    """Kinds that are known at once; the one that was not seen for longest is forgotten.  Too large: memory."""


class Calibration(Section):
    """How the models' coefficients follow the measured engine time."""

    enabled: bool = True
    """Off, the coefficients of the settings hold."""
    min_samples: PositiveInt = 200
    """Fewer in a window change nothing.  Too small: chance moves prices.  Too large: they never follow."""
    step_ratio: float = Field(0.1, gt=0, lt=1)
    """Largest change at once.  Too large: one bad minute moves all prices."""
    range_ratio: float = Field(10.0, gt=1)
    """Farthest from the configured coefficient, up or down.  Too large: a broken engine's times become the price."""
    every_s: PositiveFloat = 60.0
    """Length of a window of samples, and so the shortest time between two steps.  Too large: prices follow late."""
    min_shared: PositiveFloat = 32.0
    """Attempts that must have shared the engine with a sample, itself included: its service time over its share of
    engine time.  Too small: the time of an idle engine, which nobody else wanted, becomes the price (a simulated
    A100 takes 17 units per unit alone, 1.2 with 32 at once and 1.0 with 64).  Too large: nothing is ever measured."""


class Placement(Section):
    """Weights of a lane owner's score, and what makes an owner too ill to get work."""

    memory_weight: NonNegativeFloat = 1.0
    queue_weight: NonNegativeFloat = 2.0
    latency_weight: NonNegativeFloat = 1.0
    """An owner that is worse in memory and latency by all of their weights gets nothing if these exceed the queue's."""
    max_memory_used_ratio: float = Field(0.97, gt=0, le=1)
    """Of the GPU.  Too small: an engine that keeps its memory counts as ill.  Too large: one about to break is not."""
    max_temperature_c: PositiveFloat = 85.0
    """Of the GPU.  Too small: a busy one counts as ill.  Too large: a throttled one gets as much as the others."""
    stalled_s: PositiveFloat = 30.0
    """Work waits behind an owner's engine and it has finished nothing for this long.  Too small: an engine full of
    long answers counts as hung.  Too large: a hung one gets work for as long."""


class Identity(Section):
    """Whose word is believed about tenant and class."""

    mode: Literal["trusted", "signed", "topic"] = "trusted"
    """`trusted` believes every producer, `signed` a token in the header, `topic` the name of a tenant's own topics."""
    keys: dict[str, SecretStr] = {}
    """Secrets of `signed` by key id, 32 bytes or more; several at once let keys be rotated."""
    key_files: dict[str, Path] = {}
    """The same, each in a file of its own; read at the start."""
    max_token_age_s: PositiveFloat = 300.0
    """At the record's arrival.  Too small: a slow sender is refused.  Too large: a stolen token works for longer."""
    max_skew_s: NonNegativeFloat = 30.0
    """By how much a signer's clock may be ahead.  Too small: honest signers are refused.  Too large: a token works
    for as much longer."""
    reply_topics: dict[str, tuple[str, ...]] = {}
    """Reply topics by tenant, for it alone; its default is the first.  The others may use `topics.reply_topics`."""

    def secrets(self) -> dict[str, str]:
        """Secrets by key id, from wherever they are."""
        plain = {key_id: secret.get_secret_value() for key_id, secret in self.keys.items()}
        return plain | {key_id: path.read_text().strip() for key_id, path in self.key_files.items()}

    @model_validator(mode="after")
    def _has_usable_keys(self) -> Self:
        problems = [f"the key {name} is in keys and in key_files" for name in sorted({*self.keys} & {*self.key_files})]
        try:
            problems += [f"the key {name} {fault}" for name, fault in tokens.faults(self.secrets()).items()]
        except OSError as error:
            problems.append(f"key_files names {error.filename}: {error.strerror}")
        except UnicodeDecodeError:
            problems.append("a file of key_files is not text in UTF-8")
        if self.mode == "signed" and not self.keys and not self.key_files:
            problems.append("mode is signed, but neither keys nor key_files holds a key")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class Classes(Section):
    """Business rules: the highest class by word of each attribute; see `streams/policy/priority.py`.

    An attribute that a request does not say, or that has no words here, sets no limit; a word that is not listed
    counts as `*` if that is listed, else as medium.  The lowest of all of them and of the producer's claim counts.
    """

    user_tier: dict[str, Priority] = {"vip": Priority.HIGH, "standard": Priority.MEDIUM, "anonymous": Priority.LOW}
    source: dict[str, Priority] = {"production": Priority.HIGH, "staging": Priority.MEDIUM, "background": Priority.LOW}
    model_kind: dict[str, Priority] = {
        "revenue": Priority.HIGH,
        "standard": Priority.HIGH,
        "experimental": Priority.LOW,
    }
    """By `models.<name>.kind`."""
    path: dict[str, Priority] = {}
    """By the beginning of the gateway's path; the longest that fits counts."""
    tenant_cap: dict[str, Priority] = {}
    """Tenants that are not listed have the cap of `*`, and none without it."""


class Streams(Section):
    """How requests are admitted, ordered and promoted."""

    policy: Literal["ours", "fifo"] = "ours"
    """`fifo` puts every request of a pool on one lane, in order of arrival: the baseline of benchmarks."""
    shadow: str | None = Field(None, pattern=r"^[a-z0-9-]{1,32}$")
    """Name under which this worker decides beside those that serve and carries nothing out; without one it serves."""
    batch_events: PositiveInt = 200
    """Too small: a Redis call and a broker wait for few.  Too large: the first of a batch waits for the last."""
    unacknowledged_events: PositiveInt = 10_000
    """Read from a topic and not acknowledged, since one before them still waits in memory.  Too small: a few that wait
    stop the intake of all.  Too large: memory, and as much is read again after a crash."""
    buffer_events: PositiveInt = 1000
    """Records fetched ahead per topic.  Too large: memory, and priority is decided on a stale prefetch."""
    global_budget: Bucket = Bucket(refill_units_per_s=50_000)
    pool_budget: Bucket = Bucket(refill_units_per_s=50_000)
    tenant_budget: Bucket = Bucket(refill_units_per_s=10_000)
    tenant_budgets: dict[str, Bucket] = {}
    """Budgets of single tenants, by name; the others get `tenant_budget`."""
    class_budgets: dict[Priority, Bucket] = dict.fromkeys(Priority, Bucket(refill_units_per_s=50_000))
    """Budgets of the classes, all tenants together."""
    fair: Fair = Fair()
    degrade: Degrade = Degrade()
    history: History = History()
    calibration: Calibration = Calibration()
    placement: Placement = Placement()
    max_wait_s: dict[Priority, PositiveFloat] = dict.fromkeys(Priority, 300.0)
    """A request that would wait longer is refused at once.  When all are equal the lowest class is shed first, as its
    lane drains slowest.  Too small: a burst is shed that would have drained.  Too large: answers that come too late."""
    max_deferral_s: PositiveFloat = 30.0
    """How long after its arrival a request may still wait for budget, and never beyond its deadline; one that needs
    longer is rejected with `retry_after_s`.  Too small: a burst is shed.  Too large: deferred topics fill up."""
    classes: Classes = Classes()
    length_mode: Literal["declared", "history", "cost", "hybrid"] = "hybrid"
    """What tells long from short: the declared output, what the kind took, the predicted cost, or all three."""
    long_max_tokens: PositiveInt = 256
    """A request that declares more output than this is long.  Too small: all are.  Too large: longs block shorts."""
    long_cost_quantile: float = Field(0.7, gt=0, lt=1)
    """A request whose predicted cost lies above this quantile of its pool's recent requests is long.  Too small: most
    are, so that the order says little.  Too large: costly prompts block shorts."""
    long_cost_units: PositiveFloat = 200.0
    """The threshold in their place until enough requests of a pool were seen."""
    aged_after_s: PositiveFloat = 30.0
    """Age at which waiting work is copied to the aged tier.  Too small: overload turns into oldest-first."""
    aged_after_by_class: dict[Priority, PositiveFloat] = {}
    """The same for single classes; the others have `aged_after_s`."""
    aged_backlog_records: PositiveInt = 256
    """No more is promoted while this many aged copies wait.  Too small: late work stays behind an ill owner.
    Too large: overload turns into oldest-first."""
    aged_window_s: PositiveFloat = 60.0
    """Over which the pool's `aged_ratio` holds.  Too small: no request ever fits.  Too large: a burst of copies."""
    promote_every_s: PositiveFloat = 0.5
    """Between two looks at what is late.  Too small: load on the broker.  Too large: promotion comes as much later."""
    telemetry_stale_s: PositiveFloat = 5.0
    """Telemetry older than this says nothing: placement then spreads evenly.  Too small: a late report says
    nothing.  Too large: work goes to consumers that are gone."""
    session_timeout_s: PositiveFloat = 10.0
    """Silence after which a worker's partitions go to others.  Too small: a busy moment costs a rebalance.  Too large:
    a killed worker's partitions wait for as long, and all wait when its successor joins before that: a rebalance ends
    when every member has joined again or was given up."""
    delivery_s: PositiveFloat = 10.0
    """After it an answer that the broker did not take is looked up, and sent again only if nobody else answers.  Too
    small: a slow broker costs lookups.  Too large: what a killed worker left unanswered waits for as long."""
    live_after_s: PositiveFloat = 60.0
    """/livez complains when an unfinished batch is older than this.  Above the longest of `topics.defer_delays_s`, for
    which a batch waits as it should.  Too large: a hang goes unnoticed."""
    recovery_limit_s: PositiveFloat = 120.0
    """A worker whose tables have not come back from the changelog within this ends.  Too small: a large changelog never
    comes back.  Too large: a worker that hangs keeps its partitions from the others."""
    tenant_series: NonNegativeInt = 10
    """Tenants with a series of their own, by cost.  Too small: loud ones hide in `(other)`.  Too large: many series."""
    spend_window_s: PositiveFloat = 60.0
    """Length of a window of the spend table and of Jain's index.  Too small: many rows.  Too large: coarse figures."""
    spend_kept_s: PositiveFloat = 3600.0
    """For how long a window is kept after its end.  Too large: a large changelog, and a long recovery."""

    @model_validator(mode="after")
    def _names_every_class(self) -> Self:
        named = {"class_budgets": set(self.class_budgets), "max_wait_s": set(self.max_wait_s)}
        problems = [
            f"{name} says nothing of the class {priority.value}"
            for name, classes in named.items()
            for priority in Priority
            if priority not in classes
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self


class StreamsSettings(Settings):
    """All that a streams worker needs."""

    streams: Streams = Streams()
    identity: Identity = Identity()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        problems = []
        longest_delay_s = max((*self.topics.defer_delays_s, *self.topics.retry_delays_s), default=0)
        if self.streams.live_after_s <= longest_delay_s:
            problems.append(
                f"streams.live_after_s is not above the longest of topics.defer_delays_s and topics.retry_delays_s"
                f" ({longest_delay_s} s): a batch that waits as long as it should would look like a hang"
            )
        if self.identity.mode == "topic" and not self.topics.tenants:
            problems.append("identity.mode is topic, but topics.tenants names no tenant with topics of its own")
        if self.identity.mode == "signed" and self.identity.max_token_age_s > self.dedupe_window_s:
            problems.append(
                "identity.max_token_age_s is above dedupe_window_s: a token would outlive the memory of its id"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self
