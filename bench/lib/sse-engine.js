// Owns the far side of the gateway's bench: an engine that streams events, in a process of its own.
import { createServer } from "node:http";

const GAP_MS = 20;
const EVENT = `data: ${JSON.stringify({ id: "cmpl-0", object: "text_completion", model: "m", choices: [{ index: 0, text: " token", logprobs: null, finish_reason: null }], usage: null })}\n\n`;

/** Times at which clients broke off, and the requests that wait for them. */
const gone = [];
const asking = [];
function match() {
  while (gone.length > 0 && asking.length > 0) {
    asking.shift().end(JSON.stringify({ ms: gone.shift() }));
  }
}

const server = createServer((request, response) => {
  if (request.url === "/aborted") {
    asking.push(response);
    match();
    return;
  }
  if (request.method === "GET") {
    response.end('{"data":[{"id":"m"}]}');
    return;
  }
  let body = "";
  request.on("data", (chunk) => (body += chunk));
  request.on("end", () => {
    const { max_tokens: events } = JSON.parse(body);
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.once("close", () => {
      if (response.writableFinished) return;
      gone.push(performance.timeOrigin + performance.now());
      match();
    });
    let sent = 0;
    const send = () => {
      if (response.destroyed) return;
      response.write(EVENT);
      sent += 1;
      if (sent === events) response.end();
      else setTimeout(send, GAP_MS);
    };
    send();
  });
});
server.listen(0, "127.0.0.1", () => {
  console.log(JSON.stringify({ event: "ready", url: `http://127.0.0.1:${server.address().port}` }));
});
