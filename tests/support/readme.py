"""The README's tables, made from the code.  `python -m tests.support.readme` writes them."""

import re
from pathlib import Path

from topics import catalog
from topics.outcomes import Outcome
from topics.settings import Settings

README = Path(__file__).parents[2] / "README.md"

MEANINGS = {
    Outcome.COMPLETED: "the engine answered; `body` is its response",
    Outcome.REJECTED_INVALID: "the request cannot be read or names something unknown; `detail` says what",
    Outcome.REJECTED_TOO_LARGE: "it exceeds the model's context, or costs more than a budget can ever hold",
    Outcome.REJECTED_BUDGET: "a budget is spent; `retry_after_s` says when it will do",
    Outcome.REJECTED_DEADLINE: "the deadline has passed, or cannot be met",
    Outcome.REJECTED_OVERLOAD: "it would wait longer than its class may; `retry_after_s` says when it will do",
    Outcome.CANCELLED: "a cancel order came before it had ended; what it used until then is charged",
    Outcome.EXPIRED: "the deadline passed while it waited; it never reached the engine",
    Outcome.FAILED: "the engine refused it, failed on every attempt, or the answer was too large",
}


def outcomes():
    """One line per outcome, as in the enum."""
    lines = [f"| `{outcome}` | {MEANINGS[outcome]} |" for outcome in Outcome]
    return "\n".join(["| outcome | when |", "|---|---|", *lines])


def topics():
    """One line per topic of the default settings, alike ones together."""
    families = {}
    for topic in catalog.topics(Settings()):
        name = re.sub(r"requests\.\w+\.\w+", "requests.<priority>.<length>", topic.name)
        name = re.sub(r"lanes\.(\w+)\.\w+\.\w+", r"lanes.\1.<tier>.<length>", name)
        families.setdefault((name, topic.key, topic.record, topic.partitions, topic.writers, topic.readers), []).append(
            topic
        )
    lines = [
        f"| `{name}` ({len(same)}) | {key} | {record} | {count} | {', '.join(writers)} | {', '.join(readers)} |"
        for (name, key, record, count, writers, readers), same in families.items()
    ]
    head = ["| topic (how many) | key | record | partitions | written by | read by |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *lines])


def render(text):
    """The README with fresh tables."""
    for name, table in (("outcomes", outcomes()), ("topics", topics())):
        text = re.sub(
            rf"<!-- {name} -->.*<!-- /{name} -->", f"<!-- {name} -->\n{table}\n<!-- /{name} -->", text, flags=re.DOTALL
        )
    return text


if __name__ == "__main__":
    README.write_text(render(README.read_text()))
