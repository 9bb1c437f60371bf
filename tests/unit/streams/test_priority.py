import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.policy import priority
from streams.policy.priority import RANK, Attributes, Rules
from streams.settings import Classes
from topics.records import Priority

HIGH, MEDIUM, LOW = Priority.HIGH, Priority.MEDIUM, Priority.LOW
DEFAULTS = Classes()
SEED = Rules(**{name: getattr(DEFAULTS, name) for name in Classes.model_fields})


def decide(claim=HIGH, rules=SEED, tenant="acme", **said):
    return priority.decide(claim, Attributes(tenant, **said), rules)


ORDER = {
    "user_tier": ["vip", "standard", "anonymous"],
    "source": ["production", "staging", "background"],
    "model_kind": ["revenue", "experimental"],
}


@pytest.mark.parametrize(("attribute", "words"), ORDER.items(), ids=ORDER)
def test_the_seed_rules_put_the_better_word_first(attribute, words):
    ranks = [RANK[decide(**{attribute: word})] for word in words]
    assert ranks == sorted(set(ranks))


@pytest.mark.parametrize("attribute", ORDER)
def test_a_word_that_no_rule_knows_is_medium(attribute):
    assert decide(**{attribute: "gold"}) is MEDIUM
    assert decide(LOW, **{attribute: "gold"}) is LOW


@pytest.mark.parametrize("claim", Priority)
def test_a_plain_request_keeps_its_claim(claim):
    assert decide(claim, model_kind="standard") is claim


@pytest.mark.parametrize("claim", Priority)
def test_the_best_words_never_raise_a_claim(claim):
    assert decide(claim, user_tier="vip", source="production", model_kind="revenue") is claim


CASES = {
    "the lowest of several counts": ({"user_tier": "vip", "source": "background"}, LOW),
    "in any order": ({"user_tier": "anonymous", "source": "production"}, LOW),
    "a tenant's cap": ({"tenant": "modest", "user_tier": "vip"}, LOW),
    "another tenant has the cap of all": ({"tenant": "other"}, MEDIUM),
    "the longest beginning of a path": ({"tenant": "big", "path": "/v1/batches/7"}, LOW),
    "a shorter beginning": ({"tenant": "big", "path": "/v1/chat"}, HIGH),
    "a path that no rule knows": ({"tenant": "big", "path": "/v2"}, MEDIUM),
    "an attribute without rules": ({"tenant": "big", "user_tier": "anything"}, HIGH),
    "a word for all others": ({"tenant": "big", "source": "elsewhere"}, LOW),
}
RULES = Rules(
    source={"production": HIGH, "*": LOW},
    path={"/v1": HIGH, "/v1/batch": LOW},
    tenant_cap={"modest": LOW, "big": HIGH, "*": MEDIUM},
)


@pytest.mark.parametrize(("said", "expected"), CASES.values(), ids=CASES)
def test_rules_combine_to_the_lowest(said, expected):
    rules = RULES if "tenant" in said else SEED
    if said.get("tenant") == "modest":
        rules = Rules(user_tier=SEED.user_tier, tenant_cap=RULES.tenant_cap)
    assert decide(rules=rules, **said) is expected


CLASSES = st.sampled_from(Priority)
WORD = st.sampled_from(["a", "b", "c", "/a", "/a/b"])
WORDS = st.dictionaries(st.sampled_from(["a", "b", "/a", "/a/b", "*"]), CLASSES)
MADE = st.builds(Rules, user_tier=WORDS, source=WORDS, model_kind=WORDS, path=WORDS, tenant_cap=WORDS)
NAMES = ["user_tier", "source", "model_kind", "path"]
SAID = st.fixed_dictionaries({"tenant": WORD}, optional=dict.fromkeys(NAMES, WORD))


@given(claim=CLASSES, said=SAID, rules=MADE)
def test_no_rule_raises_a_claim(claim, said, rules):
    assert RANK[priority.decide(claim, Attributes(**said), rules)] >= RANK[claim]


@given(claims=st.tuples(CLASSES, CLASSES), said=SAID, rules=MADE)
def test_a_higher_claim_never_gives_a_lower_class(claims, said, rules):
    higher, lower = sorted(claims, key=RANK.__getitem__)
    given_ = [RANK[priority.decide(claim, Attributes(**said), rules)] for claim in (higher, lower)]
    assert given_ == sorted(given_)


@given(claim=CLASSES, said=SAID, words=st.tuples(WORD, WORD), name=st.sampled_from(NAMES), rules=MADE)
def test_a_better_word_never_gives_a_lower_class(claim, said, words, name, rules):
    def rank(word, claimed, among):
        return RANK[priority.decide(claimed, Attributes(**{**said, name: word}), among)]

    alone = Rules(**{name: getattr(rules, name)})
    better, worse = sorted(words, key=lambda word: rank(word, HIGH, alone))
    assert rank(better, claim, rules) <= rank(worse, claim, rules)


@given(claim=CLASSES, said=SAID, rules=MADE, name=st.sampled_from(NAMES))
def test_saying_more_never_gives_a_higher_class(claim, said, rules, name):
    less = {key: word for key, word in said.items() if key != name}
    assert (
        RANK[priority.decide(claim, Attributes(**less), rules)]
        <= RANK[priority.decide(claim, Attributes(**said), rules)]
    )
