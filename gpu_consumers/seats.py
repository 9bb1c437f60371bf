"""What the engine holds and what it may hold: in all, by length and by model.  Touched only by the loop."""

from collections.abc import Callable

from gpu_consumers.assignment import Entry
from gpu_consumers.policy import batching
from gpu_consumers.policy.batching import InFlight, Limits, Verdict
from gpu_consumers.settings import Gpu
from topics.records import Length

NOTHING = InFlight()


class Seats:
    """Sums over the entries with a seat, which have it from before their claim until they leave the engine."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.held = InFlight()
        self.by_length = dict.fromkeys(Length, InFlight())
        self._by_model = dict.fromkeys(gpu.model_rooms, InFlight())
        self._model_limits = {
            model: Limits(
                room.window_requests or gpu.window_requests, room.window_kv_tokens, None, room.window_cost_units
            )
            for model, room in gpu.model_rooms.items()
        }
        self.limits = self._limits(None)

    def refresh(self, kv_tokens: int | None) -> None:
        """Take in how much KV cache the engine has."""
        self.limits = self._limits(kv_tokens)

    def has_room(self, entry: Entry) -> bool:
        """Whether the engine may take it now."""
        return batching.judge(entry.ask, self.held, self.limits) is Verdict.ENTER

    def has_room_of_model(self, entry: Entry) -> bool:
        """Whether its model may take it now, if it has a room of its own."""
        model = entry.work.request.model
        limits = self._model_limits.get(model)
        return limits is None or batching.judge(entry.ask, self._by_model[model], limits) is Verdict.ENTER

    def share(self, length: Length, waiting: InFlight = NOTHING) -> float:
        """Part of the engine that work of a length takes with what waits of it; above 1 for more than it holds."""
        return batching.share(self.by_length[length] + waiting, self.limits)

    def reserve(self, entry: Entry) -> None:
        """Give it a seat."""
        entry.has_seat = True
        self._change(entry, lambda held: held.entered(entry.ask))

    def prefilled(self, entry: Entry) -> bool:
        """Its first token came; tells whether the engine may have more to read now."""
        self._change(entry, lambda held: held.prefilled(entry.ask))
        most = self.limits.prefill_tokens
        return most is not None and self.held.prefill_tokens < most

    def free(self, entry: Entry) -> None:
        """Take its seat back; harmless on one without."""
        if entry.has_seat:
            entry.has_seat = False
            self._change(entry, lambda held: held.left(entry.ask, had_first_token=entry.first_token_s is not None))

    def _change(self, entry: Entry, change: Callable[[InFlight], InFlight]) -> None:
        length, model = entry.lane.length, entry.work.request.model
        self.held = change(self.held)
        self.by_length[length] = change(self.by_length[length])
        if model in self._by_model:
            self._by_model[model] = change(self._by_model[model])

    def _limits(self, kv_tokens: int | None) -> Limits:
        gpu = self._gpu
        if gpu.static_batch_size is not None:
            return Limits(gpu.static_batch_size, kv_tokens, None, gpu.window_cost_units)
        return Limits(gpu.window_requests, kv_tokens, gpu.prefill_limit_tokens, gpu.window_cost_units)
