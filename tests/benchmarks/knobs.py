"""What `sweeps` changes, one at a time: settings by name, and their values."""

from dataclasses import dataclass

ALL = ("W1", "long-context", "mix")


@dataclass(frozen=True, slots=True)
class Knob:
    """Values that are tried, each some settings; and which of the figures tell them apart."""

    values: tuple
    traces: tuple = ALL
    columns: tuple = ("ttft_gain", "e2e_gain", "long_ratio", "in_time", "tokens_ratio")


def _one(name, *values):
    return tuple({name: value} for value in values)


def _several(names, *values):
    return tuple(dict(zip(names, each, strict=True)) for each in values)


_POOL = "pools.default."
_PLACE = "streams.placement."
KNOBS = {
    "length_weights": Knob(_one(_POOL + "short_weight", 1, 4, 9, 19, 49)),
    "tier_weights": Knob(
        _several(
            (_POOL + "high_weight", _POOL + "medium_weight"), (1, 1), (2, 1.4), (4, 2), (8, 4), (16, 4), (64, 8)
        ),
        traces=("classes",),
        columns=("ttft_high_s", "ttft_medium_s", "ttft_low_s", "e2e_gain", "long_ratio", "tokens_ratio"),
    ),
    "aged_cap": Knob(
        _several(
            (_POOL + "aged_ratio", "streams.aged_after_s"), (0.001, 1e6), (0.1, 30), (0.2, 30), (0.35, 30), (0.1, 10)
        ),
        columns=("ttft_gain", "e2e_gain", "long_ratio", "long_wait_s", "in_time"),
    ),
    "long_cap": Knob(
        _several(
            ("gpu.long_window_ratio", "gpu.long_window_least_ratio"),
            (1, 1), (0.5, 0.5), (0.25, 0.25), (0.75, 0.5), (0.75, 0.25),
        )
    ),
    "long_prefill": Knob(_one("gpu.long_prefill_tokens", None, 1024, 512, 384, 320, 256, 192)),
    "window": Knob(_one("gpu.window_requests", 16, 32, 48, 64, 96)),
    "open_prefill": Knob(_one("gpu.prefill_limit_tokens", 2048, 4096, 8192)),
    "lane_window": Knob(_one("streams.fair.window_s", 1, 3, 6)),
    "refusal": Knob(
        _several(
            ("gpu.short_start_s", "gpu.long_start_s"), (None, None), (1, 15), (1.8, 28), (2, 30), (2, 60), (3, 45)
        ),
        columns=(
            "in_time", "in_time_short", "in_time_long", "shed", "e2e_gain", "long_ratio", "tokens_ratio",
            "tokens_at_most",
        ),
    ),
    "placement": Knob(
        _several(
            (_PLACE + "memory_weight", _PLACE + "queue_weight", _PLACE + "latency_weight"),
            (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 2, 1), (1, 4, 1), (1, 2, 0), (1, 4, 0),
        )
    ),
    "label": Knob(
        (
            {"streams.length_mode": "declared"},
            *({"streams.long_cost_quantile": quantile} for quantile in (0.5, 0.6, 0.7, 0.8, 0.9)),
        ),
        columns=("short", "ttft_gain", "true_ttft_gain", "all_ttft_gain", "e2e_gain", "long_ratio", "in_time"),
    ),
}  # fmt: skip
"""The defaults are among the values; what a knob does not name keeps its default."""
