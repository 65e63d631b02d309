// Owns the proof that a gateway's memory is bounded: silent and slow clients by the thousand, whole bodies of 32 MiB, prompts of 100,000 tokens.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import type { Socket } from "node:net";
import { dirname, join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import {
  GATEWAY_BODIES_BYTES_MAX,
  GATEWAY_BODY_BYTES_MAX,
  GATEWAY_BODY_COPIES,
} from "../../../src/base/limits/gateway.ts";
import { Program } from "../../support/command-line.ts";
import { Crowd, residentBytes } from "../../support/crowd.ts";
import { call, testFolder, until } from "../../support/gateways.ts";
import { SimEngine } from "../../support/sim-engine.ts";

const IS_LONG = process.env["TIERKV_TEST_LONG"] === "on";
const CONNECTIONS = IS_LONG ? 5000 : 200;
/** Below GATEWAY_IN_FLIGHT_DEFAULT: more would wait. */
const SLOW = IS_LONG ? 200 : 20;
const LONG_PROMPTS = IS_LONG ? 200 : 8;
const MIB = 1024 * 1024;
const KIB = 1024;
const TEST_MS_MAX = 300_000;
const HEAD = "POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n";

interface Gateway {
  url: string;
  port: number;
  engine: SimEngine;
  pid: number;
  /** Resident memory now, and the most it has been. */
  resident(): number;
  peak(): number;
}

async function gateway(preset: string): Promise<Gateway> {
  const engine = await new SimEngine(["m"]).start();
  const folder = testFolder();
  const path = join(folder, "tierkv.toml");
  writeFileSync(
    path,
    `[gateway]\nlisten = "127.0.0.1:0"\nengines = ["${engine.name}"]\npreset = "${preset}"\n` +
      `socket = "${join(folder, "g", "s")}"\nindex_file = "${join(dirname(path), "index")}"\n`,
  );
  const program = new Program(["gateway", "--json", "--config", path]);
  onTestFinished(async () => {
    program.signal("SIGKILL");
    await program.ended();
    await engine.kill().catch(() => {});
  });
  const { url } = await program.firstResult();
  const pid = program.process.pid!;
  const peak = (): number => {
    const status = readFileSync(`/proc/${pid}/status`, "utf8");
    return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1]) * KIB;
  };
  const port = Number(new URL(String(url)).port);
  return { url: String(url), port, engine, pid, resident: () => residentBytes(pid), peak };
}

/** Open files of the process: a few, and a socket for each client. */
function connectionsOf({ pid }: Gateway): number {
  return readdirSync(`/proc/${pid}/fd`).length;
}

async function serves({ url }: Gateway): Promise<void> {
  const body = JSON.stringify({ model: "m", prompt: "p" });
  const headers = { "content-type": "application/json" };
  expect((await call(url, "/v1/completions", { body, headers })).code).toBe(200);
}

test(
  `F95 ${CONNECTIONS} clients that send a little of a request, and then byte by byte`,
  async () => {
    const to = await gateway("least-load");
    await serves(to);
    const before = to.resident();
    const crowd = new Crowd();
    const first = Buffer.from(`${HEAD}content-length: 100000\r\n\r\n${"{".repeat(1000)}`);
    for (let n = 0; n < CONNECTIONS; n += 1) {
      const next = (): Buffer => Buffer.from("x");
      crowd.add({ host: "127.0.0.1", port: to.port }, { first, pace: "slow", next });
      if (n % 50 === 0) await new Promise(setImmediate);
    }
    await until(() => connectionsOf(to) >= CONNECTIONS);
    await serves(to);
    expect(crowd.closed).toBe(0);
    expect(to.peak() - before).toBeLessThan(64 * MIB + CONNECTIONS * 64 * KIB);
  },
  TEST_MS_MAX,
);

test(
  `F95 ${SLOW} clients that do not read their answers: the engine waits, not the gateway's memory`,
  async () => {
    const to = await gateway("least-load");
    await serves(to);
    const before = to.resident();
    // 64 MB for each, were they read.
    Object.assign(to.engine, { tokens: 1000, eventBytes: 64_000 });
    const body = JSON.stringify({ model: "m", stream: true });
    const asking = `${HEAD}content-length: ${body.length}\r\n\r\n${body}`;
    const sockets: Socket[] = [];
    onTestFinished(() => {
      for (const socket of sockets) socket.destroy();
    });
    for (let n = 0; n < SLOW; n += 1) {
      const socket = connect({ host: "127.0.0.1", port: to.port });
      socket.on("error", () => {}).write(asking);
      sockets.push(socket);
    }
    await until(() => to.engine.asked.length > SLOW);
    // Until nothing moves any more.
    let sent = -1;
    await until(async () => {
      await new Promise((resolve) => setTimeout(resolve, 500));
      const is = to.engine.sentBytes === sent;
      sent = to.engine.sentBytes;
      return is && sent > 0;
    });
    expect(sent / SLOW).toBeLessThan(32 * MIB);
    await serves(to);
    expect(to.peak() - before).toBeLessThan(64 * MIB + SLOW * MIB);
  },
  TEST_MS_MAX,
);

test(
  `F95 ${LONG_PROMPTS} prompts of 100,000 tokens at once are answered, within memory`,
  async () => {
    const to = await gateway("earliest-token");
    await serves(to);
    const before = to.resident();
    const ask = async (seed: number): Promise<number> => {
      const prompt = Array.from({ length: 100_000 }, (_none, at) => (at * 7919 + seed) % 152_064);
      const body = JSON.stringify({ model: "m", prompt });
      const headers = { "content-type": "application/json" };
      return (await call(to.url, "/v1/completions", { body, headers })).code;
    };
    const codes = await Promise.all(Array.from({ length: LONG_PROMPTS }, (_none, at) => ask(at)));
    expect(codes).toEqual(codes.map(() => 200));
    expect(to.peak() - before).toBeLessThan(256 * MIB + LONG_PROMPTS * 8 * MIB);
  },
  TEST_MS_MAX,
);

/** Bodies that lack their last byte. */
async function almost(to: Gateway, count: number): Promise<{ sockets: Socket[]; codes: string[] }> {
  const sockets: Socket[] = [];
  const codes: string[] = [];
  const body = Buffer.alloc(GATEWAY_BODY_BYTES_MAX - 1, 32);
  for (let n = 0; n < count; n += 1) {
    const socket = connect({ host: "127.0.0.1", port: to.port });
    sockets.push(socket);
    socket
      .on("error", () => {})
      .on("data", (chunk: Buffer) => {
        codes.push(/^HTTP\/1.1 (\d+)/.exec(chunk.toString("latin1"))?.[1] ?? "");
      });
    socket.write(`${HEAD}content-length: ${GATEWAY_BODY_BYTES_MAX}\r\n\r\n`);
    await new Promise<void>((resolve) => {
      socket.on("close", () => resolve()).write(body, () => resolve());
    });
  }
  return { sockets, codes };
}

test.runIf(IS_LONG)(
  "F95 bodies of 32 MiB: as many as fit are kept, the others are 429, and their room comes back",
  async () => {
    const to = await gateway("earliest-token");
    await serves(to);
    const before = to.resident();
    const most = GATEWAY_BODIES_BYTES_MAX / GATEWAY_BODY_BYTES_MAX / GATEWAY_BODY_COPIES;
    const { sockets, codes } = await almost(to, most + 8);
    await until(() => codes.length >= 8);
    expect(codes).toEqual(codes.map(() => "429"));
    expect(to.peak() - before).toBeLessThan(GATEWAY_BODIES_BYTES_MAX + 256 * MIB);
    for (const socket of sockets) socket.destroy();
    await until(async () => {
      const { sockets: again, codes: refused } = await almost(to, 1);
      again[0]!.destroy();
      return refused.length === 0;
    });
    // Whole ones, one after another: what they are parsed to goes again.
    const prompt = "x".repeat(GATEWAY_BODY_BYTES_MAX - 100);
    for (let n = 0; n < 8; n += 1) {
      const body = JSON.stringify({ model: "m", prompt });
      const headers = { "content-type": "application/json" };
      expect((await call(to.url, "/v1/completions", { body, headers })).code).toBe(200);
    }
    expect(to.peak() - before).toBeLessThan(2 * GATEWAY_BODIES_BYTES_MAX);
    await serves(to);
  },
  TEST_MS_MAX,
);

test(
  "F95 a body above 32 MiB is 413 before it is whole, said or not",
  { tags: ["nightly"] },
  async () => {
    const to = await gateway("least-load");
    const answerOf = (head: string, piece: string): Promise<string> =>
      new Promise((resolve) => {
        const socket = connect({ host: "127.0.0.1", port: to.port });
        onTestFinished(() => void socket.destroy());
        let text = "";
        const send = (): void => {
          while (text === "" && !socket.destroyed && socket.write(piece));
        };
        socket.on("error", () => {}).on("drain", send);
        socket.on("data", (chunk: Buffer) => (text += chunk.toString("latin1")));
        socket.on("close", () => resolve(text));
        socket.write(HEAD + head);
        send();
      });
    const told = await answerOf(
      `content-length: ${GATEWAY_BODY_BYTES_MAX + 1}\r\n\r\n`,
      "{".repeat(65_536),
    );
    expect(told).toMatch(/^HTTP\/1.1 413 /);
    const piece = `10000\r\n${" ".repeat(0x10000)}\r\n`;
    expect(await answerOf("transfer-encoding: chunked\r\n\r\n", piece)).toMatch(/^HTTP\/1.1 413 /);
    expect(to.peak()).toBeLessThan(256 * MIB);
    await serves(to);
  },
);
