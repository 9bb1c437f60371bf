"""What can go wrong between a client and its answer, beside what `topics.errors` knows."""

from topics.errors import PipelineError


class NoAnswer(PipelineError):
    """No terminal reply within the time given; the request may still be answered later."""

    def __init__(self, request_id: str, timeout_s: float) -> None:
        super().__init__(
            f"no answer to {request_id} within {timeout_s:g} s; it may still come. "
            "Ask again with the same id (it is not run or charged twice), or look at `rampmeter lag`."
        )
        self.request_id, self.timeout_s = request_id, timeout_s


class ClientClosed(PipelineError):
    """The client is not open: not yet, or no more."""

    def __init__(self) -> None:
        super().__init__("the client is closed; use it within its `with` block")
