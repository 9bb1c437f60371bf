"""What vLLM tells of itself once a step.  The only importer of its logger classes, whose interface is not stable."""

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase


class Stats(StatLoggerBase):
    """The latest figures of one engine.  Written by vLLM's output task, read on the same loop.

    They are as of the last step: an engine that has become idle makes none.
    """

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:  # noqa: ARG002 - vLLM's signature
        self._config = vllm_config
        self.waiting = 0
        self._kv_used_ratio: float | None = None

    def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
        """Take the figures of a step."""
        if scheduler_stats is not None:
            self.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self._kv_used_ratio = scheduler_stats.kv_cache_usage

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    @property
    def total_kv_tokens(self) -> int | None:
        """Size of the KV cache, once the engine has told it."""
        cache = self._config.cache_config
        return cache.num_gpu_blocks * cache.block_size if cache.num_gpu_blocks else None

    @property
    def free_kv_tokens(self) -> int | None:
        """Free KV cache after the last step; None before the first."""
        total = self.total_kv_tokens
        if total is None or self._kv_used_ratio is None:
            return None
        return int(total * (1 - self._kv_used_ratio))
