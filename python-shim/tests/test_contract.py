"""The contract probe: nothing is missing in the release under test, and what goes missing or comes new is named."""

import pytest
from tierkv.connectors.vllm.api import compat, contract
from tierkv.connectors.vllm.connector import TierKVConnector


def test_the_running_release_has_all_the_shim_uses_and_nothing_it_does_not_know() -> None:
    report = contract.probe(TierKVConnector)
    assert (report.missing, report.unknown) == ((), ())
    assert all(report.features.values())
    assert not getattr(TierKVConnector, "__abstractmethods__", None)


def test_what_is_gone_and_what_is_new_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def get_finished(self) -> None: ...
        def offload_everything(self) -> None: ...
        def supports_sleep_mode(self) -> None: ...

    monkeypatch.setattr(contract, "KVConnectorBase_V1", Other)
    report = contract.probe(TierKVConnector)
    assert "wait_for_save" in report.missing
    assert "get_finished(finished_req_ids)" in report.missing
    assert "supports_sleep_mode(kv_transfer_config)" in report.missing
    assert report.unknown == ("offload_everything",)
    assert "offload_everything" in str(report)
    assert "block frees waited for" in str(report)


def test_a_release_counts_as_known_up_to_the_newest_that_was_tested() -> None:
    assert compat.check_release("0.28.0")
    assert compat.check_release("0.32.1+cpu")
    assert not compat.check_release("0.99.0")
    assert not compat.check_release("nightly")
