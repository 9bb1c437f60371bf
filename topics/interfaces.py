"""By which way a request came.  A record only claims it, so nothing but a count follows from it."""

HEADER = "rampmeter_interface"
TOPIC, HTTP = "topic", "http"
ALL = (TOPIC, HTTP)


def of(claimed: str | None) -> str:
    """The way; a word that nobody knows is a producer's own."""
    return HTTP if claimed == HTTP else TOPIC
