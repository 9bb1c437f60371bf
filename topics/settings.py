"""Settings that every process shares, and the one way to load any settings: environment over file over defaults.

`RAMPMETER_KAFKA__X_Y` is the client property `x.y`; `RAMPMETER_CONFIG` names a TOML file.
"""

import hashlib
import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from topics.errors import ConfigError
from topics.records import Role
from topics.section import Section, in_words
from topics.tracing_settings import Tracing

ENV_PREFIX = "RAMPMETER_"
LOCAL_SERVERS = "127.0.0.1:9092"
_DECIDE_NOTHING = {"kafka", "redis", "status_host", "status_port", "log_json", "log_level", "tracing"}
_SECRET_WORDS = ("password", "secret", "token", "key.pem", "sasl.jaas")


def _client_properties(value: object) -> object:
    """Turn `sasl_mechanism` into `sasl.mechanism`; names with dots pass unchanged."""
    if not isinstance(value, dict):
        return value
    named = {str(name).lower().replace("_", "."): str(setting) for name, setting in value.items()}
    if not named.setdefault("bootstrap.servers", LOCAL_SERVERS).strip():
        message = "bootstrap.servers is empty; name at least one host:port"
        raise ValueError(message)
    return named


ClientProperties = Annotated[dict[str, str], BeforeValidator(_client_properties)]


def _redis_url(value: str) -> str:
    if not value.startswith(("redis://", "rediss://", "unix://")):
        message = "must start with redis://, rediss:// or unix://"
        raise ValueError(message)
    return value


class Redis(Section):
    """Where budgets and claims live."""

    url: Annotated[str, AfterValidator(_redis_url)] = "redis://127.0.0.1:6379/0"
    timeout_s: PositiveFloat = 2.0
    """Too small: a slow moment looks like an outage.  Too large: intake stalls for as long."""


class Topics(Section):
    """Names and sizes of the topics."""

    prefix: str = Field("", pattern=r"^[A-Za-z0-9._-]*$")
    landing_partitions: PositiveInt = 4
    """Of every topic that streams reads: Faust strands partitions when a worker leaves and the counts differ.

    At most this many workers share the intake; each partition costs every worker a part of each fetch."""
    tenants: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")], ...] = ()
    """Tenants with landing topics of their own, `requests.<tenant>.<priority>.<length>`, for `identity.mode` topic."""
    reply_partitions: PositiveInt = 4
    replication_factor: PositiveInt = 1
    """1 loses data with one disk; 3 in production."""
    retention_s: PositiveFloat = 6 * 3600.0
    """Prompts lie in the log for this long.  Too small: a consumer that was down loses work."""
    reply_topics: tuple[str, ...] = ("replies", "replies.*")
    """Reply topics that a request may name (`*` at the end matches a prefix); the first is the default."""
    max_record_bytes: PositiveInt = 1_000_000
    """Largest record a producer of ours sends; the broker's `max.message.bytes` must not be smaller."""
    defer_delays_s: tuple[PositiveInt, ...] = (1, 5, 30)
    retry_delays_s: tuple[PositiveInt, ...] = (1, 10)


class Pool(Section):
    """A group of equal GPU consumers that share lanes."""

    lane_partitions: PositiveInt = 4
    """At most this many consumers get work."""
    gpu_types: tuple[str, ...] = ()
    """Node labels of the GPUs that its consumers belong on; none: any.  See `rampmeter config deployment`."""
    role_gpu_types: dict[Role, tuple[str, ...]] = {}
    """The same for consumers of one role, in place of `gpu_types`."""
    high_weight: PositiveFloat = 8.0
    medium_weight: PositiveFloat = 4.0
    low_weight: PositiveFloat = 1.0
    """Shares of dispatched cost while several tiers wait; each is guaranteed its weight over their sum."""
    short_weight: PositiveFloat = 19.0
    long_weight: PositiveFloat = 1.0
    """The same between the lengths of a tier.  Too small for longs: they stand still in a burst of shorts."""
    aged_ratio: float = Field(0.1, gt=0, lt=1)
    """Share of dispatched cost for aged work while other tiers wait: what the consumers guarantee it, and the most
    that admission copies there.  Too large: overload turns into oldest-first.  Too small: old work waits on."""

    def gpu_types_of(self, role: Role) -> tuple[str, ...]:
        """Where consumers of this role belong; nothing is anywhere."""
        return self.role_gpu_types.get(role, self.gpu_types)


class Model(Section):
    """A model's home and price.

    Cost in units (ms of the reference engine) = coefficient * (input * prompt tokens + cached * cached prompt tokens
    + output * output tokens), the cached ones not among the first.
    The default weights are those of an 8B model on an A100: 67 us per prefilled token, and a saturated engine's
    time per generated token.
    """

    pool: str = "default"
    coefficient: PositiveFloat = 1.0
    input_units_per_token: PositiveFloat = 0.067
    output_units_per_token: PositiveFloat = 0.27
    context_tokens: PositiveInt = 131_072
    max_output_tokens: PositiveInt = 16_384
    """The largest `max_tokens` that is not absurd."""
    cached_units_per_token: NonNegativeFloat = 0.0067
    """Of prompt tokens that the engine finds in its prefix cache."""
    kind: str = "standard"
    """What the model is to the business: `revenue`, `experimental` or any word of the class rules."""
    default_output_tokens: PositiveInt = 256
    """Expected output when a request names no `max_tokens` and nothing is known of its like."""
    bytes_per_token: PositiveFloat = 4.0
    calibrate: bool = True
    """Whether the coefficient may follow the measured engine time."""
    image_tokens: NonNegativeInt = 1000
    """Prompt tokens of an image or another part that is not text.  Too small: images run on credit."""

    def units(self, prompt: float, output: float, *, cached: float = 0, coefficient: float | None = None) -> float:
        """Cost of these tokens, `cached` of the prompt's, at another coefficient if one is given."""
        weighted = (
            self.input_units_per_token * (prompt - cached)
            + self.cached_units_per_token * cached
            + self.output_units_per_token * output
        )
        return (self.coefficient if coefficient is None else coefficient) * weighted


DEFAULT_MODELS = {
    "llama-3-8b": Model(),
    "smollm2-135m": Model(pool="cpu", coefficient=0.1, context_tokens=2048, max_output_tokens=1024),
}


class _Environment(EnvSettingsSource):
    """Leaves broken JSON as it is, so that it is reported with all the other problems and its variable's name."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class Settings(BaseSettings):
    """What all processes agree on.  A package derives its own from this and adds one section."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
        nested_model_default_partial_update=True,
    )

    kafka: ClientProperties = {"bootstrap.servers": LOCAL_SERVERS}
    redis: Redis = Redis()
    topics: Topics = Topics()
    pools: dict[str, Pool] = {"default": Pool(), "cpu": Pool(lane_partitions=1)}
    models: dict[str, Model] = DEFAULT_MODELS
    default_model: str = "llama-3-8b"
    """Model of a request that names none."""
    dedupe_window_s: PositiveFloat = 600.0
    """How long the answer to an id is remembered.  Too small: a late repeat is run and charged again."""
    status_host: str = "127.0.0.1"
    status_port: int = Field(0, ge=0, le=65535)
    """Port of /metrics, /livez and /readyz; 0 takes a free one."""
    tracing: Tracing = Tracing()
    log_json: bool = False
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - replaced by ours
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then environment, then the TOML file."""
        path = os.environ.get(f"{ENV_PREFIX}CONFIG")
        file = (TomlConfigSettingsSource(settings_cls, Path(path)),) if path else ()
        return (init_settings, _Environment(settings_cls), *file)

    @model_validator(mode="after")
    def _refer_to_what_exists(self) -> Self:
        problems = [
            f"models.{name}.pool names the pool {model.pool!r}, which is not in pools ({', '.join(sorted(self.pools))})"
            for name, model in self.models.items()
            if model.pool not in self.pools
        ]
        if self.default_model not in self.models:
            problems.append(f"default_model {self.default_model!r} is not in models")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def topic(self, name: str) -> str:
        """The full name of a topic."""
        return self.topics.prefix + name

    def short_hash(self) -> str:
        """Identify the settings that a decision was made under: neither secrets enter nor how a process is reached."""
        deciding = {name: value for name, value in redacted(self).items() if name not in _DECIDE_NOTHING}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:12]


S = TypeVar("S", bound=Settings)


def variable_name(location: tuple[int | str, ...]) -> str:
    """The environment variable behind a setting: ("redis", "url") is RAMPMETER_REDIS__URL."""
    return ENV_PREFIX + "__".join(str(part).upper().replace(".", "_") for part in location)


def load(kind: type[S], **overrides: Any) -> S:
    """Build settings once; raise ConfigError with all problems, each with its variable."""
    path = os.environ.get(f"{ENV_PREFIX}CONFIG")
    if path:
        _check_file(Path(path))
    try:
        return kind(**overrides)
    except ValidationError as error:
        raise ConfigError(
            [_problem(item["loc"], in_words(item["type"], item["msg"])) for item in error.errors()]
        ) from error
    except ValueError as error:  # broken JSON in a variable
        raise ConfigError([str(error)]) from error


def _check_file(path: Path) -> None:
    try:
        tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else f"not TOML: {error}"
        raise ConfigError(
            [f"{ENV_PREFIX}CONFIG={path}: {what}. Name a readable TOML file or unset the variable."]
        ) from error


def _problem(location: tuple[int | str, ...], message: str) -> str:
    if not location:
        return message
    return f"{variable_name(location)} ({'.'.join(map(str, location))} in the file): {message}"


def redacted(settings: Settings) -> dict[str, Any]:
    """Settings as plain data with secrets and passwords hidden."""
    data = settings.model_dump(mode="json")
    data["kafka"] = {
        name: "***" if any(word in name for word in _SECRET_WORDS) else value for name, value in data["kafka"].items()
    }
    scheme, _, rest = data["redis"]["url"].partition("://")
    if "@" in rest:
        data["redis"]["url"] = f"{scheme}://***@{rest.rpartition('@')[2]}"
    return data


def redacted_json(settings: Settings) -> str:
    """The same as JSON with sorted keys."""
    return json.dumps(redacted(settings), sort_keys=True)
