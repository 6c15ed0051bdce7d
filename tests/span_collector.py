"""A collector of OpenTelemetry spans on this machine: OTLP over HTTP, as Phoenix and Langfuse."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from rlforge.types import value


@value
class Received:
    """A span. target: the id of the span that it links to; None: it has no link."""

    name: str
    trace: bytes
    id: bytes
    parent: bytes
    target: bytes | None
    project: str
    seconds: tuple[float, float]
    attributes: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.attributes["openinference.span.kind"])

    @property
    def feedback(self) -> dict[str, dict[str, Any]]:
        """What is known about the answer, by name."""
        found: list[dict[str, Any]] = []
        while name := self.attributes.get(f"evaluations.{len(found)}.evaluation.name"):
            prefix = f"evaluations.{len(found)}.evaluation."
            found.append(
                {
                    key.removeprefix(prefix): one
                    for key, one in self.attributes.items()
                    if key.startswith(prefix)
                }
            )
            assert found[-1]["name"] == name
        return {str(one.pop("name")): one for one in found}


class Collector(ThreadingHTTPServer):
    """Keeps the spans it gets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Received] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    def of_kind(self, kind: str) -> list[Received]:
        return [span for span in self.spans if span.kind == kind]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            resource = _plain(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    self.server.spans.append(_received(span, resource))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(ExportTraceServiceResponse().SerializeToString())


def _received(span: Any, resource: Mapping[str, Any]) -> Received:
    links = [link.span_id for link in span.links]
    assert len(links) <= 1
    return Received(
        name=span.name,
        trace=span.trace_id,
        id=span.span_id,
        parent=span.parent_span_id,
        target=links[0] if links else None,
        project=resource["openinference.project.name"],
        seconds=(span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9),
        attributes=_plain(span.attributes),
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector during the block."""
    collector = Collector()
    thread = threading.Thread(target=collector.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.shutdown()
        collector.server_close()
