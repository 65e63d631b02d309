"""Tenants: equal salts have one number, others another, none has 0; nothing of a salt shows."""

from tierkv.connectors.vllm.requests.requests import tenant_of

from .support.engine import Request


def _salted(salt: str | None) -> Request:
    return Request("r", 4, cache_salt=salt)


def test_a_tenant_is_the_same_for_equal_salts_and_no_other() -> None:
    numbers = [tenant_of(_salted(f"tenant {index}")) for index in range(1000)]
    assert len(set(numbers)) == 1000
    assert all(0 < number < 2**48 for number in numbers)
    assert tenant_of(_salted("tenant 7")) == numbers[7]


def test_the_number_of_a_salt_is_what_every_release_makes_of_it() -> None:
    assert tenant_of(_salted("a")) == 156_759_798_606_283
    assert tenant_of(_salted("Mandant ä 🦀")) == 101_642_226_882_119


def test_without_a_salt_it_is_nobody_in_particular() -> None:
    assert tenant_of(Request("r", 4)) == tenant_of(_salted(None)) == tenant_of(_salted("")) == 0
