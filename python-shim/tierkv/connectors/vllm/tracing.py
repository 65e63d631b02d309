"""Owns the trace that a request belongs to: W3C context as vLLM hands it on."""

from typing import Any

from tierkv.connectors.vllm import limits


def traceparent_of(request: Any) -> str:
    """Give the `traceparent` of a request's client; empty without one, and where vLLM's own tracing is off.

    vLLM passes headers on only with `--otlp-traces-endpoint`. What is longer than any version of the header is dropped.
    """
    headers = request.trace_headers or {}
    traceparent = str(headers.get("traceparent", ""))
    return traceparent if len(traceparent) <= limits.TRACEPARENT_CHARS_MAX else ""
