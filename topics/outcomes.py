"""How a request can end, and why.  The closed lists that replies, metrics and logs share."""

from enum import StrEnum


class Outcome(StrEnum):
    """The one terminal state of a request: a reply's field, a metric's label, a log's field."""

    COMPLETED = "completed"
    REJECTED_INVALID = "rejected_invalid"
    REJECTED_TOO_LARGE = "rejected_too_large"
    REJECTED_BUDGET = "rejected_budget"
    REJECTED_DEADLINE = "rejected_deadline"
    REJECTED_OVERLOAD = "rejected_overload"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"


class Reason(StrEnum):
    """Why a request was not simply completed; stable words for machines, beside a sentence for people."""

    NONE = "none"
    UNDECODABLE = "undecodable"
    EMPTY_VALUE = "empty_value"
    WRONG_SHAPE = "wrong_shape"
    BAD_HEADER = "bad_header"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_PRIORITY = "unknown_priority"
    MAX_TOKENS = "max_tokens"
    CONTEXT_LENGTH = "context_length"
    BODY_TOO_LARGE = "body_too_large"
    REPLY_TOPIC_FORBIDDEN = "reply_topic_forbidden"
    REPLY_TOPIC_MISSING = "reply_topic_missing"
    REPLY_PARTITION_MISSING = "reply_partition_missing"
    REPLY_TOO_LARGE = "reply_too_large"
    DEADLINE_PASSED = "deadline_passed"
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    BUDGET_GLOBAL = "budget_global"
    BUDGET_POOL = "budget_pool"
    BUDGET_TENANT = "budget_tenant"
    BUDGET_CLASS = "budget_class"
    BUDGET_UNAVAILABLE = "budget_unavailable"
    FAIR_SHARE = "fair_share"
    LANE_WAIT = "lane_wait"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    BAD_IDENTITY = "bad_identity"
    ENGINE_ERROR = "engine_error"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    CRASH_LOOP = "crash_loop"
