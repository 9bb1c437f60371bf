"""`rampmeter explain`: what became of a request, step by step, told from the topics alone and without its text."""

from topics.errors import PipelineError


class Unknown(PipelineError):
    """No topic knows this id."""

    def __init__(self, request_id: str, since: str) -> None:
        super().__init__(
            f"no topic knows the id {request_id!r} within the last {since}."
            " Look further back with --since (the log keeps"
            " topics.retention_s), check its spelling and the prefix; a record without an id goes by"
            " topic-partition-offset."
        )
