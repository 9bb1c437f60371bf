import pytest

from gpu_consumers.settings import Gpu


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"group_protocol": "share", "delivery": "transactional"}, "transactional needs offsets"),
        ({"group_protocol": "share", "instance_id": "gpu-a"}, "instance_id keeps partitions"),
        ({"group_protocol": "share", "role": "long"}, "borrowing dynamic looks who owns which lane"),
        ({"without_redis": "run", "delivery": "transactional"}, "which without_redis run cannot promise"),
        ({"engine": "vllm"}, "needs vllm_model"),
        ({"engine": "vllm", "lease_s": 3, "renew_s": 2}, "needs vllm_model; renew_s"),
        ({"static_batch_size": 200, "claim_batch": 100}, "must not exceed claim_batch"),
        ({"lease_s": 3, "renew_s": 2}, "at most half"),
    ],
)
def test_what_cannot_work_together_is_refused(fields, problem):
    with pytest.raises(ValueError, match=problem):
        Gpu(**fields)


def test_what_can_is_not():
    assert Gpu(group_protocol="share", role="long", borrowing="none").role == "long"
    assert Gpu(group_protocol="classic", delivery="transactional", instance_id="gpu-a").delivery == "transactional"
