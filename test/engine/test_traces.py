"""A client's trace: spans of vLLM, sidecar and vault reach one collector, parsed with OpenTelemetry's classes."""

from __future__ import annotations

import json
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import Parse  # type: ignore[import-untyped]
from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until
from harness.server import Server
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.processes import Cluster

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
#: vLLM's blocks have 128 tokens on a CPU.
TEXT = prompt(83, 3 * 128 + 1)
RESTORED = 3 * 128
OF_ALL = {"tierkv.request", "llm_request", "tierkv.vault.lookup", "tierkv.vault.fetch"}


class Collector:
    """Spans that a collector received, by trace and name."""

    def __init__(self) -> None:
        self.traces: dict[str, dict[str, Any]] = defaultdict(dict)
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                is_json = self.headers["content-type"] == "application/json"
                collector.hear(parse_json(body) if is_json else parse_protobuf(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def hear(self, request: Any) -> None:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.traces[span.trace_id.hex()][span.name] = span


def parse_protobuf(body: bytes) -> Any:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    return request


def parse_json(body: bytes) -> Any:
    """OTLP's JSON is protobuf's except for hexadecimal ids. Unknown fields are refused."""
    tree = json.loads(body)
    spans = [
        span
        for resource in tree["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    ids = [{name: span.pop(name, "") for name in NAMES} for span in spans]
    request = Parse(json.dumps(tree), ExportTraceServiceRequest())
    parsed = [
        span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans
    ]
    for span, names in zip(parsed, ids, strict=True):
        for name, field in NAMES.items():
            setattr(span, field, bytes.fromhex(names[name]))
    return request


NAMES = {"traceId": "trace_id", "spanId": "span_id", "parentSpanId": "parent_span_id"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.nightly
def test_a_restore_joins_the_trace_of_its_client(
    new_cluster: Callable[..., Cluster], models: Models, collector: Collector
) -> None:
    cluster = new_cluster(otlp=collector.endpoint)
    line = ["vllm", "serve", "MODEL", "--enable-prefix-caching"]
    line += ["--kv-transfer-config", json.dumps(cluster.transfer_config)]
    line += ["--otlp-traces-endpoint", f"{collector.endpoint}/v1/traces"]
    environment = {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    with Server(line, models.path(PLAIN), cluster.folder / "server.log", environment) as server:
        server.complete(prompt(84, 300))
        cluster.wait_restoring()
        server.complete(TEXT)
        cluster.wait_saved(3)
        # Stopped, because a sidecar asks no vault for blocks that it stored itself.
        cluster.sidecar.stop()
        cluster.sidecar.start()
        cluster.wait_restoring()
        server.post("/reset_prefix_cache")
        server.complete(TEXT, traceparent=f"00-{TRACE}-{PARENT}-01")
        heard = collector.traces[TRACE]
        wait_until(lambda: heard.keys() >= OF_ALL, f"spans; got {heard}")
    request = heard["tierkv.request"]
    assert request.parent_span_id.hex() == heard["llm_request"].parent_span_id.hex() == PARENT
    assert {"tierkv.lookup", "tierkv.fetch", "tierkv.load"} < heard.keys()
    for step in ("lookup", "fetch"):
        asked, done = heard[f"tierkv.{step}"], heard[f"tierkv.vault.{step}"]
        assert done.parent_span_id == asked.span_id
    said = {each.key: each.value for each in request.attributes}
    assert said["gen_ai.usage.cache_read.input_tokens"].int_value == RESTORED
    assert said["tierkv.decision"].string_value == "loaded"
