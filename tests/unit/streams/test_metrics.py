from prometheus_client import REGISTRY, generate_latest

from streams import metrics, served
from topics import codec


def names(registry):
    return {line.split("{")[0].split(" ")[0] for line in generate_latest(registry).decode().splitlines() if line}


def test_a_shadows_series_have_a_name_of_their_own_and_those_of_the_process_stay():
    metrics.HELD.set(1)
    served, shadowed = names(metrics.registry(None)), names(metrics.registry("small"))
    assert served == names(REGISTRY)
    assert not [name for name in shadowed if name.startswith("rampmeter_streams_")]
    assert {name.replace("rampmeter_streams_", "rampmeter_shadow_") for name in served} == shadowed
    assert "rampmeter_shadow_held_requests" in shadowed


def shown(name):
    return {
        tuple(sample.labels.values()): sample.value
        for family in metrics.REGISTRY.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_only_the_largest_tenants_have_a_series_and_they_change_with_the_window():
    metrics.show_tenants({"default": served.largest({"a": 1.0, "b": 5.0, "c": 3.0, "d": 1.0}, 2)})
    assert shown("rampmeter_streams_tenant_window_units") == {
        ("default", "b"): 5.0, ("default", "c"): 3.0, ("default", "(other)"): 2.0,
    }  # fmt: skip
    metrics.show_tenants({"default": served.largest({"a": 1.0}, 2)})
    assert shown("rampmeter_streams_tenant_window_units") == {("default", "a"): 1.0, ("default", "(other)"): 0.0}


def test_budgets_but_those_of_tenants_are_shown():
    metrics.show_levels({"pool:default": 7.0, "tenant:acme": 9.0, "class:high": -2.0})
    found = shown("rampmeter_streams_budget_level_units")
    assert (found["pool", "default"], found["class", "high"]) == (7.0, -2.0)
    assert not any(level == "tenant" for level, _ in found)


def test_a_tenant_can_have_no_name_like_that_of_the_others():
    assert codec.NAME.fullmatch(served.OTHER) is None
