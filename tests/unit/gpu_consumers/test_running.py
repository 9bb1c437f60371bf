import asyncio

import pytest

from gpu_consumers.assignment import Assignment, Entry, Fetched
from gpu_consumers.engine import Finished, Load, Piece
from gpu_consumers.offsets import OffsetTracker
from gpu_consumers.policy.batching import Ask, InFlight
from gpu_consumers.policy.selection import Lane
from gpu_consumers.running import Runner
from gpu_consumers.settings import Gpu
from tests.support.builders import WALL_S, work
from tests.support.clock import FakeClock
from topics.errors import DependencyDown, EngineError
from topics.outcomes import Outcome, Reason
from topics.records import Control, ControlAction, ControlKind, Length, Tier, Tokens

TOKENS = Tokens(prompt=100, output=2)
ANSWER = Finished(b'{"ok":1}', TOKENS, engine_s=0.5)


class ScriptedEngine:
    """Plays what it is told: items to yield, errors to raise, events to wait for."""

    def __init__(self, *script):
        self.script, self.jobs, self.aborted = script, [], 0

    def load(self):
        return Load(0, 0, 1000, 1000)

    async def run(self, job):
        self.jobs.append(job)
        try:
            for step in self.script:
                if isinstance(step, int):
                    job.progress.output_tokens = step
                elif isinstance(step, Exception):
                    raise step
                elif isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    yield step
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted += 1
            raise

    async def close(self):
        pass


class RecordingSettler:
    def __init__(self):
        self.answers, self.retries, self.chunks, self.partly, self.cancels = [], [], [], [], []

    def answer(self, entry, ending):
        self.answers.append((entry, ending))

    def retry(self, entry, tokens):
        self.retries.append((entry, tokens))

    def cancel(self, entry, order, ending):
        self.cancels.append((entry, order, ending))

    def note_aborted(self, entry, tokens):
        self.partly.append(tokens)

    def note_fenced(self, entry, tokens):
        self.partly.append(tokens)

    async def chunk(self, entry, data):
        self.chunks.append(data)

    def is_settling(self, request_id):
        return any(entry.id == request_id for entry, _ in self.answers)


class Stage:
    def __init__(self, *script, **gpu):
        self.engine, self.settler = ScriptedEngine(*script), RecordingSettler()
        self.clock = FakeClock()
        self.room, self.fenced = [], []
        settings = Gpu(**{"window_requests": 2, **gpu})
        self.runner = Runner(settings, self.engine, self.settler, self.clock)
        self.runner.on_room = lambda: self.room.append(1)
        self.runner.on_fenced = self.fenced.append
        self.handed_over = []
        self.runner.on_handed_over = self.handed_over.append
        self.where = Assignment("lane", 0, Lane(Tier.HIGH, Length.LONG), OffsetTracker(None, [], window_records=9))

    def entry(self, request_id="r1", *, attempt=1, ask=None, **request):
        made = work({"id": request_id, **request}, attempt=attempt)
        self.where.inflight += 1
        return Entry(Fetched(self.where, 0, b"", b"", WALL_S), made, ask or Ask(100, 100, 100.0))

    async def run(self, entry):
        self.runner.reserve(entry)
        self.runner.start(entry)
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_an_answer_goes_to_the_settler_and_the_seat_is_free_again():
    stage = Stage(Piece(b""), ANSWER)
    entry = stage.entry()
    await stage.run(entry)
    ((answered, ending),) = stage.settler.answers
    assert answered is entry
    assert (ending.outcome, ending.tokens, ending.body, ending.engine_s) == (
        Outcome.COMPLETED,
        TOKENS,
        b'{"ok":1}',
        0.5,
    )
    assert entry.started_s == entry.first_token_s == WALL_S
    assert (stage.runner.seats.held, stage.runner.running) == (InFlight(), 0)
    assert stage.runner.seats.by_length[Length.LONG] == InFlight()
    assert stage.runner.ttft_s == 0.0, "no time passes here"
    assert stage.room


@pytest.mark.asyncio
async def test_the_engine_gets_the_body_byte_for_byte_and_the_rank_of_the_lane():
    stage = Stage(ANSWER)
    entry = stage.entry(max_tokens=7)
    await stage.run(entry)
    (job,) = stage.engine.jobs
    assert (job.id, job.body, job.max_tokens, job.stream) == ("r1", bytes(entry.work.request.body), 7, False)
    assert job.rank == 4  # high tier of the longs


@pytest.mark.asyncio
async def test_pieces_are_chunks_only_for_those_who_stream():
    for stream, chunks in ((True, [b"1", b"2"]), (False, [])):
        stage = Stage(Piece(b"1"), Piece(b"2"), ANSWER)
        await stage.run(stage.entry(stream=stream))
        assert stage.settler.chunks == chunks


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "attempt", "ending"),
    [
        (EngineError("busy", retryable=True), 1, None),
        (EngineError("busy", retryable=True), 2, None),
        (EngineError("busy", retryable=True), 3, (Outcome.FAILED, Reason.ATTEMPTS_EXHAUSTED)),
        (EngineError("bad", retryable=False), 1, (Outcome.FAILED, Reason.ENGINE_ERROR)),
        (
            EngineError("no", retryable=False, outcome=Outcome.REJECTED_INVALID),
            1,
            (Outcome.REJECTED_INVALID, Reason.ENGINE_ERROR),
        ),
        (RuntimeError("prompt text"), 1, None),
        (RuntimeError("prompt text"), 3, (Outcome.FAILED, Reason.ATTEMPTS_EXHAUSTED)),
    ],
)
async def test_each_failure_ends_in_a_retry_or_in_one_answer(error, attempt, ending):
    stage = Stage(Piece(b""), error)
    await stage.run(stage.entry(attempt=attempt))
    if ending is None:
        assert len(stage.settler.retries) == 1
        assert stage.settler.answers == []
    else:
        ((_, told),) = stage.settler.answers
        assert (told.outcome, told.reason) == ending
        assert "prompt text" not in told.detail
        assert stage.settler.retries == []
    assert stage.runner.seats.held == InFlight()


@pytest.mark.asyncio
async def test_an_engine_that_ends_without_an_answer_is_tried_again():
    stage = Stage(Piece(b""))
    await stage.run(stage.entry())
    assert len(stage.settler.retries) == 1


@pytest.mark.asyncio
async def test_room_is_counted_in_seats_and_in_memory():
    stage = Stage(asyncio.Event())
    big = stage.entry("big", ask=Ask(400, 400, 1.0))
    await stage.run(big)
    assert not stage.runner.has_room(stage.entry("more", ask=Ask(200, 100, 1.0)))
    small = stage.entry("small", ask=Ask(50, 50, 1.0))
    assert stage.runner.has_room(small)
    await stage.run(small)
    assert not stage.runner.has_room(stage.entry("third", ask=Ask(1, 1, 1.0)))
    await stage.runner.stop()


@pytest.mark.asyncio
async def test_a_lost_claim_stops_its_attempt_in_the_engine_and_gives_no_answer():
    stage = Stage(Piece(b""), asyncio.Event())
    entry = stage.entry()
    await stage.run(entry)
    stage.runner.abort_lost(["r1", "unknown"])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert stage.engine.aborted == 1
    assert stage.fenced == [entry]
    assert (stage.settler.answers, stage.settler.retries) == ([], [])
    assert stage.settler.partly == [Tokens(prompt=100, output=1)]
    assert stage.runner.seats.held == InFlight()


@pytest.mark.asyncio
async def test_the_end_of_the_process_aborts_what_runs_and_names_it():
    stage = Stage(Piece(b""), asyncio.Event())
    await stage.run(stage.entry("a"))
    await stage.run(stage.entry("b"))
    assert sorted(entry.id for entry in await stage.runner.stop()) == ["a", "b"]
    assert stage.engine.aborted == 2
    assert stage.where.inflight == 0
    assert (stage.fenced, stage.settler.answers) == ([], [])
    assert stage.settler.partly == [Tokens(prompt=100, output=1)] * 2


async def hand_over(stage, entry):
    stage.runner.hand_over([entry.assignment])
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_what_is_handed_over_leaves_the_engine_tells_its_use_and_stays_unfinished_until_it_is_given_back():
    stage = Stage(Piece(b""), asyncio.Event())
    entry, other = stage.entry("a"), stage.entry("b")
    other.fetched = other.fetched._replace(assignment=Assignment("l", 1, entry.lane, entry.assignment.tracker))
    await stage.run(entry)
    await stage.run(other)
    await hand_over(stage, entry)
    assert stage.handed_over == [entry]
    assert (stage.engine.aborted, stage.runner.running, stage.where.inflight) == (1, 1, 2)
    assert stage.settler.partly == [Tokens(prompt=100, output=1)]
    assert (stage.settler.answers, stage.fenced) == ([], [])
    assert stage.room
    await stage.runner.stop()


@pytest.mark.asyncio
async def test_work_handed_over_before_its_task_began_never_reaches_the_engine():
    stage = Stage(ANSWER)
    entry = stage.entry()
    stage.runner.reserve(entry)
    stage.runner.start(entry)
    await hand_over(stage, entry)
    assert (stage.handed_over, stage.engine.jobs, stage.settler.partly) == ([entry], [], [Tokens(prompt=0, output=0)])


@pytest.mark.asyncio
async def test_what_fails_while_it_is_handed_over_is_handed_over_and_nobodys_fault():
    fail = asyncio.Event()
    stage = Stage(Piece(b""), fail, EngineError("the server broke off", retryable=True))
    told = []
    stage.runner.on_broken = lambda *failure: told.append(failure)
    entry = stage.entry()
    await stage.run(entry)
    entry.gives_way = True
    fail.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (stage.handed_over, told, stage.settler.retries) == ([entry], [], [])
    assert stage.settler.partly == [Tokens(prompt=100, output=1)]


@pytest.mark.asyncio
async def test_a_lost_claim_is_not_given_back():
    stage = Stage(Piece(b""), asyncio.Event())
    entry = stage.entry()
    await stage.run(entry)
    stage.runner.abort_lost(["r1"])
    await hand_over(stage, entry)
    assert (stage.fenced, stage.handed_over) == ([entry], [])


ORDER = Control(id="o1", action=ControlAction.CANCEL, kind=ControlKind.REQUEST, name="r1", at_s=WALL_S, by="someone")


async def cancel(stage, entry):
    entry.order = ORDER
    stage.runner.abort(entry)
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("script", "tokens"),
    [
        ([], Tokens(prompt=0, output=0)),
        ([Piece(b"")], Tokens(prompt=100, output=1)),
        ([Piece(b""), 70], Tokens(prompt=100, output=70)),
    ],
)
async def test_a_cancelled_attempt_leaves_the_engine_and_is_answered_with_what_it_used(script, tokens):
    stage = Stage(*script, asyncio.Event())
    entry = stage.entry()
    await stage.run(entry)
    await cancel(stage, entry)
    ((cancelled, order, ending),) = stage.settler.cancels
    assert (cancelled, order) == (entry, ORDER)
    assert (ending.outcome, ending.reason, ending.tokens) == (Outcome.CANCELLED, Reason.CANCELLED, tokens)
    assert (stage.engine.aborted, stage.runner.seats.held, stage.runner.running) == (1, InFlight(), 0)
    assert (stage.settler.answers, stage.settler.partly, stage.fenced) == ([], [], [])
    assert stage.room


@pytest.mark.asyncio
async def test_an_attempt_cancelled_before_its_task_began_never_reaches_the_engine():
    stage = Stage(ANSWER)
    entry = stage.entry()
    stage.runner.reserve(entry)
    stage.runner.start(entry)
    await cancel(stage, entry)
    assert (len(stage.settler.cancels), stage.engine.jobs, stage.settler.answers) == (1, [], [])
    assert (stage.runner.seats.held, stage.runner.running, entry.started_s) == (InFlight(), 0, None)


@pytest.mark.asyncio
async def test_a_claim_lost_before_its_task_began_is_fenced_all_the_same():
    stage = Stage(ANSWER)
    entry = stage.entry()
    stage.runner.reserve(entry)
    stage.runner.start(entry)
    stage.runner.abort_lost(["r1"])
    for _ in range(5):
        await asyncio.sleep(0)
    assert (stage.fenced, stage.engine.jobs, stage.runner.seats.held) == ([entry], [], InFlight())


class DeafEngine(ScriptedEngine):
    """Comes to its end although it is told to stop."""

    async def run(self, job):
        try:
            async for item in super().run(job):
                yield item
        except asyncio.CancelledError:
            if isinstance(self.script[-1], Exception):
                raise self.script[-1] from None
            yield self.script[-1]


@pytest.mark.asyncio
@pytest.mark.parametrize("end", [ANSWER, EngineError("busy", retryable=True), RuntimeError("broken")])
async def test_an_attempt_that_ends_while_its_claim_is_lost_leaves_a_later_one_of_its_id_alone(end):
    stage = Stage()
    stage.runner._engine = stage.engine = DeafEngine(asyncio.Event(), end)
    await stage.run(stage.entry())
    stage.runner.abort_lost(["r1"])
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(stage.settler.answers) + len(stage.settler.retries) == 1
    stage.engine.script = [ANSWER]
    later = stage.entry()
    await stage.run(later)
    assert stage.settler.answers[-1][0] is later
    assert stage.fenced == []


@pytest.mark.asyncio
@pytest.mark.parametrize(("attempt", "retried"), [(1, True), (3, False)])
async def test_a_failed_attempt_is_charged_what_it_used(attempt, retried):
    stage = Stage(Piece(b""), 30, EngineError("busy", retryable=True))
    entry = stage.entry(attempt=attempt)
    await stage.run(entry)
    used = Tokens(prompt=100, output=30)
    if retried:
        assert stage.settler.retries == [(entry, used)]
    else:
        assert stage.settler.answers[0][1].tokens == used


@pytest.mark.asyncio
async def test_done_cost_grows_with_the_tokens_and_is_whole_at_the_end():
    go_on = [asyncio.Event() for _ in range(3)]
    stage = Stage(go_on[0], Piece(b""), 1, go_on[1], 50, go_on[2], ANSWER)
    entry = stage.entry(ask=Ask(100, 100, 100.0, prompt_units=20.0))
    await stage.run(entry)
    seen = [stage.runner.done_units()]
    for event in go_on:
        event.set()
        for _ in range(5):
            await asyncio.sleep(0)
        seen.append(stage.runner.done_units())
    assert seen == [0.0, pytest.approx(20.8), pytest.approx(60.0), pytest.approx(100.0)]
    assert stage.runner.has_finished


@pytest.mark.asyncio
async def test_an_attempt_that_makes_tokens_moves_although_it_is_silent():
    go_on = asyncio.Event()
    stage = Stage(Piece(b""), 1, go_on, 50, asyncio.Event())
    await stage.run(stage.entry())
    stage.runner.refresh()
    first_s = stage.runner.moved_s
    stage.clock.advance(60.0)
    stage.runner.refresh()
    assert stage.runner.moved_s == first_s
    go_on.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stage.runner.refresh()
    assert stage.runner.moved_s == first_s + 60.0


@pytest.mark.asyncio
async def test_nothing_enters_a_dead_engine_and_its_request_is_left_to_the_next_owner_of_its_claim():
    stage = Stage(Piece(b""), EngineError("its process died", retryable=True, fatal=True))
    entry = stage.entry()
    assert stage.runner.has_room(entry)
    await stage.run(entry)
    assert (stage.settler.retries, stage.settler.answers, stage.where.inflight) == ([], [], 0)
    assert stage.settler.partly == [Tokens(prompt=100, output=1)]
    assert await stage.runner.stop() == []
    assert not stage.runner.has_room(stage.entry("r2"))
    assert isinstance(stage.runner.failure, DependencyDown)


@pytest.mark.asyncio
async def test_a_refusal_leaves_the_engine_alive():
    stage = Stage(EngineError("no", retryable=True))
    await stage.run(stage.entry())
    assert stage.runner.failure is None
    assert stage.runner.has_room(stage.entry("r2"))


@pytest.mark.asyncio
async def test_what_the_engine_did_not_take_is_no_attempt_until_it_was_refused_for_too_long():
    stage = Stage(EngineError("busy", retryable=True, untried=True), refused_wait_s=60)
    untried = []
    stage.runner.on_untried = untried.append
    entry = stage.entry()
    await stage.run(entry)
    stage.clock.advance(59)
    await stage.run(entry)
    assert untried == [entry, entry]
    assert (stage.settler.retries, stage.runner.seats.held) == ([], InFlight())
    stage.clock.advance(1)
    await stage.run(entry)
    assert [retried for retried, _ in stage.settler.retries] == [entry]


@pytest.mark.asyncio
async def test_what_may_be_the_fault_of_another_is_not_judged_here():
    broken = EngineError("the server broke off", retryable=True)
    stage = Stage(broken)
    told = []
    stage.runner.on_broken = lambda *failure: told.append(failure)
    entry = stage.entry(attempt=3)
    await stage.run(entry)
    assert told == [(entry, broken)]
    assert (stage.settler.answers, stage.settler.retries, stage.runner.seats.held) == ([], [], InFlight())


@pytest.mark.asyncio
async def test_an_engine_that_takes_nothing_has_no_room():
    stage = Stage(EngineError("busy", retryable=True, untried=True))
    stage.engine.load = lambda: Load(0, 0, None, None, closed="the server asked for a pause")
    assert stage.runner.has_room(stage.entry("r2"))
    await stage.run(stage.entry())
    assert not stage.runner.has_room(stage.entry("r2"))
    stage.engine.load = lambda: Load(0, 0, None, None)
    stage.runner.refresh()
    assert stage.runner.has_room(stage.entry("r2"))
