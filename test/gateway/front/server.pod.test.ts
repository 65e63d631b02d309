// Owns the proof that a gateway in a pod of one GiB sheds what it cannot hold, and lives: long bodies by the hundred, and long streams.
// @module-tag alone
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { Server, ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { Program } from "../../support/command-line.ts";
import { call, testFolder, until } from "../../support/gateways.ts";
import type { Answer } from "../../support/gateways.ts";

const MIB = 1024 * 1024;
const POD_BYTES = 1024 * MIB;
/** Node gives JavaScript half of a container's memory. */
const HEAP = "--max-old-space-size=512";
/** An agent's context of 400,000 tokens, from a crowd. */
const CROWD = 340;
const BODY_BYTES = 1.5 * MIB;
/** Running answers to the longest prompts. */
const STREAMS = 60;
const STREAM_BODY_BYTES = 8.9 * MIB;
const TEST_MS_MAX = 300_000;

/** Reads bodies and drops them, because hundreds of them would fill the test's own memory; answers in its own time. */
class Engine {
  /** Requests that wait for `answer` or for the end of their stream. */
  readonly held: ServerResponse[] = [];
  isHolding = true;
  readonly #server: Server = createServer((request, response) => {
    request.resume().once("end", () => this.#answer(request.url ?? "", response));
  });

  async start(): Promise<string> {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
    onTestFinished(() => {
      this.#server.closeAllConnections();
      this.#server.close();
    });
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Begins every answer that was held. */
  begin(): void {
    this.isHolding = false;
    for (const response of this.held) {
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.write('data: {"choices":[]}\n\n');
    }
  }

  /** Ends them. */
  end(): void {
    for (const response of this.held) response.end("data: [DONE]\n\n");
    this.held.length = 0;
  }

  #answer(path: string, response: ServerResponse): void {
    if (path === "/v1/models") response.end('{"object":"list","data":[{"id":"m"}]}');
    else if (path === "/tokenize") response.end(`{"tokens":[${"7,".repeat(1000)}7]}`);
    else if (!path.startsWith("/v1/")) response.writeHead(path === "/health" ? 200 : 404).end();
    else if (this.isHolding) this.held.push(response);
    else response.end("{}");
  }
}

interface Pod {
  url: string;
  engine: Engine;
  /** Most memory that the process had. */
  peak(): number;
}

async function pod(): Promise<Pod> {
  const engine = new Engine();
  const address = await engine.start();
  const folder = testFolder();
  const path = join(folder, "tierkv.toml");
  writeFileSync(
    path,
    `[gateway]\nlisten = "127.0.0.1:0"\nengines = ["${address}"]\npreset = "earliest-token"\n` +
      `socket = "${join(folder, "g", "s")}"\nindex_file = "${join(folder, "index")}"\nin_flight_max = 1024\n`,
  );
  const program = new Program(["gateway", "--json", "--config", path], {
    env: { NODE_OPTIONS: HEAP },
  });
  onTestFinished(async () => {
    program.signal("SIGKILL");
    await program.ended();
  });
  const { url } = await program.firstResult();
  const status = `/proc/${program.process.pid}/status`;
  const peak = (): number =>
    1024 * Number(/^VmHWM:\s+(\d+) kB$/m.exec(readFileSync(status, "utf8"))?.[1]);
  return { url: String(url), engine, peak };
}

/** A chat whose last message makes the body this long. */
const bodyOf = (bytes: number): Buffer =>
  Buffer.from(
    JSON.stringify({
      model: "m",
      stream: true,
      messages: [{ role: "user", content: "word ".repeat(bytes / 5) }],
    }),
  );

const ask = (url: string, body: Buffer, onChunk?: (text: string) => void): Promise<Answer> =>
  call(url, "/v1/chat/completions", {
    body,
    headers: { "content-type": "application/json" },
    ...(onChunk === undefined ? {} : { onChunk }),
  });

test(
  `${CROWD} bodies of 1.5 MB at once are answered or shed, within the pod's memory`,
  async () => {
    const { url, engine, peak } = await pod();
    const body = bodyOf(BODY_BYTES);
    const codes = new Map<number, number>();
    let settled = 0;
    const all = Array.from({ length: CROWD }, async () => {
      const { code } = await ask(url, body);
      codes.set(code, (codes.get(code) ?? 0) + 1);
      settled += 1;
    });
    // All that is not shed waits at the engine.
    await until(() => {
      return settled + engine.held.length === CROWD;
    });
    const held = engine.held.length;
    engine.begin();
    engine.end();
    await Promise.all(all);
    process.stdout.write(
      `pod ${JSON.stringify({ codes: Object.fromEntries(codes), held, peak: peak() })}\n`,
    );
    expect([...codes.keys()].sort((one, other) => one - other)).toEqual([200, 429]);
    expect(codes.get(200)).toBe(held);
    // A fifth of the memory at least is put to use: each body is held three times.
    expect(held * BODY_BYTES * 3).toBeGreaterThan(POD_BYTES / 10);
    expect(peak()).toBeLessThan(POD_BYTES);
    expect((await ask(url, bodyOf(1000))).code).toBe(200);
  },
  TEST_MS_MAX,
);

test(
  `${STREAMS} running streams of bodies of 8.9 MB leave room for the next`,
  async () => {
    const { url, engine, peak } = await pod();
    const body = bodyOf(STREAM_BODY_BYTES);
    const answers: Promise<Answer>[] = [];
    for (let n = 0; n < STREAMS; n += 1) {
      engine.isHolding = true;
      let isBegun = false;
      answers.push(ask(url, body, () => (isBegun = true)));
      await until(() => engine.held.length > n);
      engine.held.at(-1)!.writeHead(200, { "content-type": "text/event-stream" });
      engine.held.at(-1)!.write('data: {"choices":[]}\n\n');
      await until(() => isBegun);
    }
    engine.isHolding = false;
    expect((await ask(url, body)).code).toBe(200);
    process.stdout.write(`streams ${JSON.stringify({ peak: peak() })}\n`);
    // All bodies together have as many bytes.
    expect(peak()).toBeLessThan(STREAMS * STREAM_BODY_BYTES);
    engine.end();
    for (const { code } of await Promise.all(answers)) expect(code).toBe(200);
  },
  TEST_MS_MAX,
);
