from topics import keys
from topics.settings import Settings, Topics


def test_no_two_deployments_or_shadows_share_a_key():
    prefixes, shadows = ("", "a", "a.b", "rampmeter", "-small-"), (None, "small", "a", "b", "small-b")
    made = [keys.of(Settings(topics=Topics(prefix=prefix)), name) for prefix in prefixes for name in shadows]
    assert len({each.ledger() for each in made}) == len(made)
    assert all(each.bucket("tenant", "acme").startswith(each.all().removesuffix("*")) for each in made)
