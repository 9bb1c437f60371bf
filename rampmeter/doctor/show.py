"""The doctor's findings, judgements and access list for people, and as one record."""

from collections.abc import Sequence

from rampmeter.columns import render
from rampmeter.doctor.diagnosis import Judgement
from rampmeter.doctor.findings import Finding
from topics.acls import Acl

_SHOWS = {True: "YES", False: "no", None: "unknown"}


def findings(found: Sequence[Finding]) -> str:
    """A line each, what to do below those that want something."""
    rows = [(one.health.value, one.area.value, one.what) for one in found]
    first, *lines = render(("", "AREA", "WHAT"), rows).split("\n")
    said = [first]
    for line, one in zip(lines, found, strict=True):
        said += [line, *([f"         -> {one.fix}"] if one.fix else [])]
    return "\n".join(said)


def judgements(found: Sequence[Judgement]) -> str:
    """A line for each pattern of each pool."""
    rows = [(one.pool, one.pattern.value, _SHOWS[one.shows], one.why + (f" -> {one.advice}" if one.advice else ""))
            for one in found]  # fmt: skip
    return render(("POOL", "PATTERN", "SHOWS", "WHY, AND WHAT TO DO"), rows)


def access_list(lines: Sequence[Acl]) -> str:
    """A line each."""
    rows = [
        (
            line.process + (f" ({line.tenant})" if line.tenant else ""),
            line.resource,
            line.name + ("*" if line.is_prefix else ""),
            ", ".join(line.operations),
        )
        for line in lines
    ]
    return render(("PRINCIPAL OF", "RESOURCE", "NAME", "OPERATIONS"), rows)
