// Owns a trace collector for tests: the requests it received, and the spans with their senders.
import { once } from "node:events";
import { createServer } from "node:http";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import type { Span } from "../../src/exposition/spans.ts";
import { closeAfterTest } from "./vaults.ts";

interface Called {
  path: string | undefined;
  type: string | undefined;
  body: string;
}

export interface Collector {
  endpoint: string;
  calls: Called[];
  /** Spans in the order of their arrival. */
  spans(): (Span & { service: string })[];
}

type Answer = (request: IncomingMessage, response: ServerResponse) => void;

interface Body {
  resourceSpans: {
    resource: { attributes: { key: string; value: { stringValue: string } }[] };
    scopeSpans: { spans: Span[] }[];
  }[];
}

export async function openCollector(
  answer: Answer = (_, response) => response.end("{}"),
): Promise<Collector> {
  const calls: Called[] = [];
  const server = createServer((request, response) => {
    void text(request).then((body) => {
      calls.push({ path: request.url, type: request.headers["content-type"], body });
      answer(request, response);
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closeAfterTest({
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  });
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const spans = (): (Span & { service: string })[] =>
    calls.flatMap(({ body }) =>
      (JSON.parse(body) as Body).resourceSpans.flatMap(({ resource, scopeSpans }) => {
        const service = resource.attributes.find(({ key }) => key === "service.name");
        const name = service?.value.stringValue ?? "";
        return scopeSpans.flatMap((scope) =>
          scope.spans.map((span) => ({ ...span, service: name })),
        );
      }),
    );
  return { endpoint, calls, spans };
}

export const attribute = (span: Span | undefined, key: string): unknown =>
  span?.attributes.find((one) => one.key === key)?.value;
