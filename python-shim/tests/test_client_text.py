"""Whatever text clients choose (ids, salts, headers, parameters), frames can be sent and nothing is turned off."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import encode
from tierkv.connectors.vllm.link.messages import request_text

from .support.engine import Request, connector_of
from .support.scheduler import Bench

#: JSON may hold any code point, lone surrogates included.
TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
LONG = st.builds(lambda text, times: text * times, TEXT, st.sampled_from([1, 200, 70_000]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["session", "keep_s", "cache_control", "pin", "release", "report", "receipt", "handoff"]
)
OURS = st.dictionaries(KEYS | TEXT, JSON, max_size=4)
PARAMS = JSON | st.fixed_dictionaries({"tierkv": JSON | OURS}, optional={"max_load_tokens": JSON})


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(LONG, st.none() | TEXT, st.none() | st.dictionaries(st.just("traceparent"), LONG), PARAMS)
def test_no_text_of_a_client_ends_the_connection_or_turns_anything_off(
    bench: Bench, req_id: str, salt: str | None, headers: dict[str, str] | None, params: Any
) -> None:
    connector = connector_of(bench.shim)
    request = Request(req_id or "r", 41, cache_salt=salt, trace_headers=headers)
    request.kv_transfer_params = params
    connector.on_new_request(request)
    connector.get_num_new_matched_tokens(request, 0)
    connector.update_state_after_alloc(request, None, 0)
    _, answer = connector.request_finished(request, ())
    assert not bench.shim.failures.is_off
    assert not [name for name in bench.shim.counters.snapshot() if name.startswith("errors_")]
    assert request.kv_transfer_params is None or isinstance(request.kv_transfer_params, dict)
    encode({"t": "answer", "answer": answer})  # the API server must be able to send it
    for frame in (bench.shim._unasked.take(), {"t": "x", "req": request_text(req_id)}):
        assert len(encode({"t": "counts", **frame})) < limits.FRAME_BYTES_MAX
    assert len(request_text(req_id).encode()) <= limits.REQUEST_TEXT_BYTES_MAX
    assert bench.shim._channel.is_up
