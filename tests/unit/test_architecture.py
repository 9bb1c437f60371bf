"""How the code must hang together, read from its syntax trees."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("topics", "streams", "gpu_consumers", "autoscaler", "rampmeter")
MAY_IMPORT = {
    "topics": {"topics"},
    "streams": {"topics", "streams"},
    "gpu_consumers": {"topics", "gpu_consumers"},
    "autoscaler": {"topics", "autoscaler"},
    "rampmeter": set(OURS),
}
MODULES = sorted(path.relative_to(ROOT).as_posix() for package in OURS for path in (ROOT / package).rglob("*.py"))
POLICIES = [module for module in MODULES if "/policy/" in module]
PURE = {
    "__future__", "bisect", "collections", "dataclasses", "enum", "fractions", "functools", "heapq", "itertools",
    "math", "operator", "statistics", "types", "typing", "msgspec",
    "topics.bounds", "topics.codec", "topics.notes", "topics.offset_map", "topics.orders", "topics.outcomes",
    "topics.records", "topics.settings", "topics.telemetry", "topics.timing", "topics.tokens", "topics.trace_context",
}  # fmt: skip
CLOCK_READS = {"time", "monotonic", "perf_counter", "sleep", "time_ns", "monotonic_ns", "now", "utcnow", "today"}
MAY_SLEEP = {
    "topics/admin.py": "waits until the broker shows what it has created",
    "topics/local_broker.py": "waits for a child that has no event to wait for",
    "topics/local_redis.py": "waits for a child that has no event to wait for",
    "topics/local_process.py": "waits for a lock that has no event to wait for",
    "autoscaler/targets/process.py": "waits for children that have no event to wait for",
    "rampmeter/lag.py": "a command that repeats itself for a person",
    "rampmeter/load.py": "sends at the times of a trace",
}
MAY_READ_ENVIRONMENT = {
    "topics/settings.py": "the one place of settings",
    "topics/process.py": "NO_COLOR is not ours",
    "rampmeter/output.py": "NO_COLOR is not ours",
    "rampmeter/checks.py": "reports variables that no setting knows",
    "rampmeter/state.py": "tells a default from a choice",
    "rampmeter/supervisor.py": "hands the environment on to children",
    "rampmeter/simulation/compiled.py": "hands the environment on to itself",
    "autoscaler/__main__.py": "hands the environment on to children",
    "gpu_consumers/engines/factory.py": "vLLM takes some of its settings from the environment alone",
}
MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 300


@cache
def tree(module):
    return ast.parse((ROOT / module).read_text())


def imported(module):
    """Dotted names of all imports, those inside functions too; `from a import b` gives a and a.b."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            yield from ((node.module, f"{node.module}.{alias.name}") for alias in node.names)


def calls(module):
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr


def reached_from(package):
    """The package's modules and all of ours that they import, directly or not."""
    reached, waiting = set(), [module for module in MODULES if module.startswith(f"{package}/")]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            names = {name.replace(".", "/") + ".py" for pair in imported(module) for name in pair}
            waiting += names & set(MODULES)
    return reached


@pytest.mark.parametrize("module", MODULES)
def test_packages_meet_only_through_topics(module):
    package = module.split("/")[0]
    roots = {name.split(".")[0] for name, _ in imported(module)}
    assert roots & {*OURS, "tests"} <= MAY_IMPORT[package]


@pytest.mark.parametrize("module", POLICIES)
def test_a_policy_imports_nothing_that_blocks_logs_or_tells_the_time(module):
    allowed_here = module.split("/")[0] + ".policy"
    foreign = {
        full
        for name, full in imported(module)
        if name not in PURE
        and full not in PURE
        and name.split(".")[0] not in PURE
        and not name.startswith(allowed_here)
        and not full.startswith(allowed_here)
    }
    assert foreign == set()


@pytest.mark.parametrize("module", POLICIES)
def test_a_policy_does_no_io(module):
    names = {node.id for node in ast.walk(tree(module)) if isinstance(node, ast.Name)}
    assert names & {"open", "print", "input", "clock"} == set()
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree(module)))


@pytest.mark.parametrize("module", [m for m in MODULES if m != "topics/clock.py" and m not in MAY_SLEEP])
def test_only_the_clock_reads_the_clock(module):
    read = {full for name, full in imported(module) if name in {"time", "datetime"}}
    called = {f"{owner}.{name}" for owner, name in calls(module) if owner in {"time", "datetime"}}
    assert {full for full in read if full.split(".")[-1] in CLOCK_READS - {"time"} or full == "time.time"} == set()
    assert {name for name in called if name.split(".")[-1] in CLOCK_READS} == set()


@pytest.mark.parametrize("module", MAY_SLEEP)
def test_a_module_that_may_sleep_reads_no_time(module):
    read = {full for name, full in imported(module) if name == "time"}
    called = {f"{owner}.{name}" for owner, name in calls(module) if owner == "time"}
    assert (read | called) - {"time"} <= {"time.sleep"}
    assert "time.sleep" in read | called, "no exception is needed any more"


@pytest.mark.parametrize("module", [m for m in MODULES if not m.endswith("__main__.py")])
def test_the_system_clock_is_built_by_a_main_only(module):
    if module == "topics/clock.py" or module.startswith("rampmeter/"):  # each command of the CLI is a main
        return
    assert not any(full == "topics.clock.SystemClock" for _, full in imported(module))


@pytest.mark.parametrize("module", MODULES)
def test_settings_come_from_one_place(module):
    reads = any(name in {"environ", "getenv"} for _, name in calls(module)) or any(
        full in {"os.environ", "os.getenv"} for _, full in imported(module)
    )
    assert reads == (module in MAY_READ_ENVIRONMENT)


@pytest.mark.parametrize("module", MODULES)
def test_functions_and_modules_stay_small(module):
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == {}
    assert len((ROOT / module).read_text().splitlines()) <= MAX_MODULE_LINES


@pytest.mark.parametrize("module", MODULES)
def test_faust_is_used_by_streams_only_and_names_say_something(module):
    assert module.startswith("streams/") or not any(name.split(".")[0] == "faust" for name, _ in imported(module))
    assert Path(module).stem not in {"utils", "util", "helpers", "common", "manager", "base"}
    assert ast.get_docstring(tree(module))


def test_what_a_consumer_with_vllm_installs_is_what_the_project_pins_and_all_that_it_imports():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    group = set(project["dependency-groups"]["gpu"])
    assert {one for one in group if not one.startswith("vllm")} <= set(project["project"]["dependencies"])
    names = {re.split(r"[<>=]", one)[0].replace("-", "_") for one in group} | {"pynvml", "jwt", "opentelemetry"}
    foreign = {name.partition(".")[0] for module in reached_from("gpu_consumers") for name, _ in imported(module)}
    assert foreign - set(sys.stdlib_module_names) - set(OURS) <= names
