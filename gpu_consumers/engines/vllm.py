"""vLLM in this process.  Imported only when it is the chosen engine, since vLLM need not be installed."""

import asyncio
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from subprocess import PIPE, Popen
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError, VLLMError
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from gpu_consumers.engine import Finished, Job, Load, Piece
from gpu_consumers.engines import completions, openai_request, vllm_options, vllm_request
from gpu_consumers.engines.vllm_options import VllmOptions
from gpu_consumers.engines.vllm_request import Prompt
from gpu_consumers.engines.vllm_stats import Stats
from gpu_consumers.engines.waits import Waits
from topics.clock import Clock
from topics.errors import DependencyDown, EngineError
from topics.records import Tokens

_CLOSE_S = 1.0
"""Longest wait for aborts at the end.  An iterator that nobody reads on keeps its job."""


class _Answer:
    """An answer as it grows out of vLLM's deltas."""

    def __init__(self, job: Job, prompt_tokens: int) -> None:
        self._job = job
        self._texts: list[str] = []
        self._prompt_tokens, self._cached_tokens, self._output_tokens = prompt_tokens, 0, 0
        self.finish_reason: str | None = None

    @property
    def tokens(self) -> Tokens:
        """As the engine counts them."""
        cached_tokens = min(self._cached_tokens, self._prompt_tokens)
        return Tokens(prompt=self._prompt_tokens, output=self._output_tokens, cached=cached_tokens)

    @property
    def text(self) -> str:
        """All so far."""
        return "".join(self._texts)

    def add(self, output: Any) -> str:
        """Take one output in; returns its text."""
        (part,) = output.outputs
        self._texts.append(part.text)
        self._output_tokens += len(part.token_ids)
        self._cached_tokens = output.num_cached_tokens or self._cached_tokens
        self._job.progress.output_tokens = self._output_tokens
        self.finish_reason = part.finish_reason
        if part.finish_reason in ("abort", "error"):
            raise EngineError(f"vLLM ended the request: {part.finish_reason}", retryable=True)
        return str(part.text)


@dataclass(frozen=True, slots=True)
class Processes:
    """Those of vLLM, and the one that ends them after this one."""

    pids: list[int]
    guard: Popen[bytes]


class VllmEngine:
    """One AsyncLLM; made and used on one event loop."""

    def __init__(self, llm: Any, stats: Stats, processes: Processes, clock: Clock) -> None:
        self._llm, self._stats, self._clock = llm, stats, clock
        self._defaults: dict[str, Any] = llm.model_config.get_diff_sampling_param()
        self._tokenizer = llm.get_tokenizer()
        # A thread, since a long prompt takes its time; one, since a tokenizer serves one at a time.
        self._templates = ThreadPoolExecutor(1, "chat-template")
        self._waits = Waits()
        self._names = itertools.count()
        self._running = 0
        self._guard = processes.guard
        # vLLM does not wake every call that waits for an answer of a dead process.
        self._watched = [os.pidfd_open(pid) for pid in processes.pids]
        for handle in self._watched:
            asyncio.get_running_loop().add_reader(handle, self._died)

    def load(self) -> Load:
        """Our count of jobs; what vLLM said after its last step of those that wait and of the KV cache."""
        waiting = min(self._stats.waiting, self._running)
        free = self._stats.free_kv_tokens if self._running else self._stats.total_kv_tokens
        return Load(self._running - waiting, waiting, free, self._stats.total_kv_tokens)

    async def run(self, job: Job) -> AsyncGenerator[Piece | Finished, None]:
        """See the protocol; leaving early aborts the request in vLLM."""
        created_s = self._clock.wall_s()
        self._running += 1
        try:
            prompt = vllm_request.prepare(job)
            token_ids = await self._token_ids(prompt, job)
            params = self._params(prompt, job, len(token_ids))
            answer = _Answer(job, len(token_ids))
            is_first = True
            async with aclosing(self._outputs(token_ids, params, job)) as outputs:
                while (output := await self._waits.next(outputs)) is not None:
                    text = answer.add(output)
                    if job.stream and (text or is_first or answer.finish_reason):
                        delta = {"role": "assistant", "content": text} if is_first else {"content": text}
                        yield Piece(completions.chunk(job.id, job.model, created_s, delta, answer.finish_reason))
                    elif is_first:
                        yield Piece(b"")
                    is_first = False
        finally:
            self._running -= 1
        if answer.finish_reason is None:
            raise EngineError("vLLM ended without an answer", retryable=True)
        if job.stream and prompt.wants_usage:
            yield Piece(completions.usage_chunk(job.id, job.model, created_s, answer.tokens))
        body = completions.whole(job.id, job.model, created_s, answer.text, answer.finish_reason, answer.tokens)
        yield Finished(body, answer.tokens, engine_s=None)

    async def close(self) -> None:
        """Jobs that run end with a retryable error."""
        self._waits.close()
        self._unwatch()
        # Those who were woken abort their requests first: its end waits for those that are still in it.
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                while self._running:  # noqa: ASYNC110 - once in a life
                    await asyncio.sleep(0.01)
        self._llm.shutdown()
        self._templates.shutdown(wait=False)
        # It ends with its standard input.
        self._guard.communicate()

    def _died(self) -> None:
        self._waits.close("vLLM's engine process died", fatal=True)
        self._unwatch()

    def _unwatch(self) -> None:
        while self._watched:
            handle = self._watched.pop()
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)

    async def _token_ids(self, prompt: Prompt, job: Job) -> list[int]:
        if self._waits.is_closed:
            raise self._waits.error()
        return await asyncio.get_running_loop().run_in_executor(self._templates, self._render, prompt, job)

    def _render(self, prompt: Prompt, job: Job) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                prompt.messages,
                **{**prompt.template_options, "add_generation_prompt": True, "tokenize": True, "return_dict": False},
            )
        except Exception as error:
            # A template raises what it likes when roles do not suit it.
            told = openai_request.safe(str(error), job.body)
            raise EngineError(f"the chat template refuses the messages: {told}", retryable=False) from error
        return ids

    def _params(self, prompt: Prompt, job: Job, prompt_tokens: int) -> Any:
        limit_tokens = vllm_request.limit(job, prompt_tokens, self._llm.model_config.max_model_len)
        fields = vllm_request.sampling(prompt, self._defaults, limit_tokens)
        try:
            if form := fields.pop("structured_outputs", None):
                fields["structured_outputs"] = StructuredOutputsParams(**form)
            return SamplingParams(**fields, output_kind=RequestOutputKind.DELTA)
        except (VLLMClientError, ValueError, TypeError) as error:
            raise _refusal(error, job) from error

    async def _outputs(self, token_ids: list[int], params: Any, job: Job) -> AsyncGenerator[Any, None]:
        # A name of our own: an id may come again while its first attempt is being aborted.
        name = f"job-{next(self._names)}"
        # Without tracing of its own vLLM takes a trace for a mistake, and logs it.
        trace = job.trace.texts() if job.trace is not None and await self._llm.is_tracing_enabled() else None
        generated = self._llm.generate(tokens_input(token_ids), params, name, priority=job.rank, trace_headers=trace)
        try:
            async with aclosing(generated):
                async for output in generated:
                    yield output
        except EngineDeadError as error:
            self._died()
            raise self._waits.error() from error
        except (VLLMClientError, ValueError) as error:
            raise _refusal(error, job) from error
        except VLLMError as error:
            # Its text is general, and its cause's may hold the prompt.
            raise EngineError(f"vLLM failed: {type(error).__name__}", retryable=True) from error


def _refusal(error: Exception, job: Job) -> EngineError:
    return EngineError(f"vLLM refuses it: {openai_request.safe(str(error), job.body)}", retryable=False)


def start(options: VllmOptions, clock: Clock) -> VllmEngine:
    """Load the model: half a minute for a small one on a CPU.  Call it on the event loop that will use the engine."""
    made: list[Stats] = []

    def logger(config: Any, index: int) -> Stats:
        made.append(Stats(config, index))
        return made[-1]

    others = set(multiprocessing.active_children())
    guard = _guard()
    # Its processes inherit this: Ctrl-C in a terminal reaches them too, and must not end them before what they run.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        arguments = AsyncEngineArgs(**vllm_options.arguments(options))
        llm = AsyncLLM.from_engine_args(arguments, stat_loggers=[logger])
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        guard.communicate()
        reason = " ".join(str(error).split())[:300]
        raise DependencyDown(f"vLLM did not start: {reason}", options.model, "Its messages above say more.") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    mine = set(multiprocessing.active_children()) - others
    pids = [process.pid for process in mine if process.pid is not None]
    _tell(guard, pids)
    return VllmEngine(llm, made[0], Processes(pids, guard), clock)


def _guard() -> Popen[bytes]:
    command = [sys.executable, "-m", "gpu_consumers.engines.vllm_guard", str(os.getpid())]
    # In a session of its own, so that what is sent to the consumer's whole group leaves it at work.
    guard = Popen(command, stdin=PIPE, stdout=PIPE, start_new_session=True)  # noqa: S603 - our own module
    assert guard.stdout is not None  # noqa: S101 - a pipe, as told
    guard.stdout.readline()
    return guard


def _tell(guard: Popen[bytes], pids: list[int]) -> None:
    assert guard.stdin is not None  # noqa: S101 - a pipe, as told
    guard.stdin.write(" ".join(map(str, pids)).encode() + b"\n")
    guard.stdin.flush()
