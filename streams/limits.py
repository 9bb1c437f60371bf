"""The budgets in force: those of the settings, and above them what operators changed while everything runs."""

from streams.settings import Bucket, Streams
from topics.records import Control, Priority


def configured(section: Streams, level: str, name: str) -> Bucket:
    """The budget that the settings give to `name` of a level: global, pool, tenant or class."""
    match level:
        case "global":
            return section.global_budget
        case "pool":
            return section.pool_budget
        case "tenant":
            return section.tenant_budgets.get(name, section.tenant_budget)
        case "class":
            return section.class_budgets[Priority(name)]
        case _:
            raise ValueError(f"budgets have no level {level!r}")


def ordered(section: Streams, order: Control) -> Bucket | None:
    """The budget of the settings with an order's figures in it; None when it gives none: the settings hold again."""
    given = {"refill_units_per_s": order.refill_units_per_s, "burst_s": order.burst_s}
    given = {name: value for name, value in given.items() if value is not None}
    return configured(section, order.kind, order.name).model_copy(update=given) if given else None


class LiveLimits:
    """The budgets of one worker as they hold now.

    One writer, the thread that follows the orders: it replaces single values, so that readers need no lock.
    """

    def __init__(self, section: Streams) -> None:
        """Nothing is changed yet."""
        self._section = section
        self._changed: dict[tuple[str, str], Bucket] = {}

    def of(self, level: str, name: str) -> Bucket:
        """The budget that holds."""
        changed = self._changed.get((level, name))
        return configured(self._section, level, name) if changed is None else changed

    def set(self, level: str, name: str, bucket: Bucket | None) -> None:
        """Change a budget from now on; None goes back to the settings."""
        if bucket is None:
            self._changed.pop((level, name), None)
        else:
            self._changed[level, name] = bucket

    def slowest_fill_s(self) -> float:
        """The longest that any budget takes from empty to full, also one that is changed at the moment."""
        section = self._section
        buckets = (
            section.global_budget,
            section.pool_budget,
            section.tenant_budget,
            *section.tenant_budgets.values(),
            *section.class_budgets.values(),
            *list(self._changed.values()),  # at once: the thread adds to it
        )
        return max(bucket.burst_s + bucket.warm_up_s for bucket in buckets)
