"""The rules of the policies as the settings say them."""

from streams.policy import admission, placement, pricing
from streams.settings import Streams, StreamsSettings


def of_admission(settings: StreamsSettings) -> admission.Rules:
    """Of how long requests wait, and where."""
    fair = settings.streams.fair
    return admission.Rules(fair.window_s, fair.hold_s, settings.topics.defer_delays_s)


def of_placement(section: Streams) -> placement.Rules:
    """Of how owners are compared."""
    return placement.Rules(**section.placement.model_dump(), stale_s=section.telemetry_stale_s)


def of_pricing(section: Streams) -> pricing.Rules:
    """Of what is long."""
    return pricing.Rules(section.length_mode, section.long_max_tokens, section.history.long_service_s)
