from prometheus_client import REGISTRY, generate_latest

from streams import metrics


def names(registry):
    return {line.split("{")[0].split(" ")[0] for line in generate_latest(registry).decode().splitlines() if line}


def test_a_shadows_series_have_a_name_of_their_own_and_those_of_the_process_stay():
    metrics.HELD.set(1)
    served, shadowed = names(metrics.registry(None)), names(metrics.registry("small"))
    assert served == names(REGISTRY)
    assert not [name for name in shadowed if name.startswith("rampmeter_streams_")]
    assert {name.replace("rampmeter_streams_", "rampmeter_shadow_") for name in served} == shadowed
    assert "rampmeter_shadow_held_requests" in shadowed
