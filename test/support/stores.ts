// Owns real servers of Valkey and S3 for tests, where the machine has the programs: on the loopback, ended with the test.
import { execFileSync, spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { freePort } from "./etcd.ts";
import { testDirectory } from "./sidecars.ts";
import { closeAfterTest, until } from "./vaults.ts";

/** Returns a program that `variable` names, or of that name on the path; null, and a line, where there is none. */
function found(variable: string, name: string): string | null {
  const program = process.env[variable] ?? name;
  try {
    execFileSync(program, ["--version"], { stdio: "ignore" });
    return program;
  } catch {
    console.warn(`skipped: there is no ${name}; ${variable} names it`);
    return null;
  }
}

const VALKEY = found("TIERKV_TEST_VALKEY", "valkey-server");
/** Redis as Debian builds it, with jemalloc, as Valkey's own builds are. */
export const REDIS: string | null = found("TIERKV_TEST_REDIS", "redis-server");
const S3 = found("TIERKV_TEST_S3", "versitygw");
/** The command line of Valkey, or of Redis, which speaks the same. */
export const VALKEY_CLI: string | null = found("TIERKV_TEST_VALKEY_CLI", "valkey-cli");
export const HAS_VALKEY: boolean = VALKEY !== null;
export const HAS_VALKEY_CLI: boolean = VALKEY_CLI !== null;
export const HAS_REDIS: boolean = REDIS !== null;
export const HAS_S3: boolean = S3 !== null;

async function isListening(port: number): Promise<boolean> {
  const socket = connect(port, "127.0.0.1");
  try {
    await once(socket, "connect");
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}

interface Given {
  file?: string | null;
  /** Another server that speaks the same. */
  program?: string | null;
  /** Of the default user; empty: none. */
  password?: string;
}

export class ValkeyServer {
  readonly port: number;
  readonly #child: ChildProcess;
  readonly #password: string;

  /** `more` and the address take precedence over `file`, a configuration of Valkey. */
  static async start(more: readonly string[] = [], given: Given = {}): Promise<ValkeyServer> {
    const server = new ValkeyServer(await freePort(), await freePort(), more, given);
    await until(() => isListening(server.port), "Valkey to listen");
    return server;
  }

  private constructor(
    port: number,
    bus: number,
    more: readonly string[],
    { file = null, program = VALKEY, password = "" }: Given,
  ) {
    this.port = port;
    this.#password = password;
    const own = [
      ...(file === null ? [] : [file]),
      "--port",
      `${port}`,
      "--bind",
      "127.0.0.1",
      "--save",
      "",
      "--dir",
      testDirectory(),
    ];
    this.#child = spawn(program ?? "", [...own, "--cluster-port", `${bus}`, ...more], {
      stdio: "ignore",
    });
    closeAfterTest({ close: () => this.#child.kill("SIGKILL") });
  }

  get address(): string {
    return `valkey://127.0.0.1:${this.port}`;
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  async kill(): Promise<void> {
    this.#child.kill("SIGKILL");
    if (this.#child.exitCode === null && this.#child.signalCode === null)
      await once(this.#child, "exit");
  }

  /** Sends one command and returns the raw answer to its end: a line, a value, or a list of values. */
  async ask(...words: (string | Buffer)[]): Promise<Buffer> {
    const login = this.#password === "" ? [] : commandOf(["AUTH", this.#password]);
    const socket = connect(this.port, "127.0.0.1");
    const chunks: Buffer[] = [];
    socket.on("data", (chunk: Buffer) => chunks.push(chunk));
    // The second command's answer marks the end of the first one's.
    socket.write(Buffer.concat([...login, ...commandOf(words), ...commandOf(["QUIT"])]));
    await once(socket, "close");
    const from = login.length === 0 ? 0 : "+OK\r\n".length;
    return Buffer.concat(chunks).subarray(from, -"+OK\r\n".length);
  }

  async say(...words: string[]): Promise<string> {
    return String(await this.ask(...words));
  }

  /** Returns a number of INFO. */
  async info(name: string): Promise<number> {
    const text = await this.say("INFO");
    return Number(new RegExp(`^${name}:(\\d+)`, "m").exec(text)?.[1]);
  }

  /** Returns the keys that match a pattern. */
  async keys(pattern: string): Promise<Buffer[]> {
    return keysIn(await this.ask("KEYS", pattern));
  }

  /** Flips a byte of each record. */
  async damageAll(): Promise<void> {
    for (const key of await this.keys("tierkv:1:*")) {
      const answer = await this.ask("GET", key);
      const value = Buffer.from(answer.subarray(answer.indexOf("\n") + 1, -2));
      value[value.length - 100]! ^= 0x10;
      await this.ask("SET", key, value);
    }
  }
}

function commandOf(words: readonly (string | Buffer)[]): Buffer[] {
  const parts = words.map((word) => Buffer.from(word));
  const body = parts.flatMap((part) => [
    Buffer.from(`$${part.length}\r\n`),
    part,
    Buffer.from("\r\n"),
  ]);
  return [Buffer.from(`*${parts.length}\r\n`), ...body];
}

/** Reads the keys of an answer to KEYS. */
function keysIn(answer: Buffer): Buffer[] {
  const keys: Buffer[] = [];
  let at = answer.indexOf("\n") + 1;
  while (at < answer.length) {
    const end = answer.indexOf("\r\n", at);
    const length = Number(answer.subarray(at + 1, end));
    keys.push(answer.subarray(end + 2, end + 2 + length));
    at = end + 4 + length;
  }
  return keys;
}

/** Starts a cluster of three primaries. */
export async function startCluster(): Promise<ValkeyServer[]> {
  const options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
  const servers = await Promise.all([0, 1, 2].map(() => ValkeyServer.start(options)));
  const [first] = servers;
  for (const [number, server] of servers.entries()) {
    const from = Math.floor((number * 16_384) / 3);
    const to = Math.floor(((number + 1) * 16_384) / 3) - 1;
    await server.ask("CLUSTER", "ADDSLOTSRANGE", `${from}`, `${to}`);
    const bus = (await server.say("CONFIG", "GET", "cluster-port")).split("\r\n").at(-2) ?? "";
    if (server !== first) await first!.ask("CLUSTER", "MEET", "127.0.0.1", `${server.port}`, bus);
  }
  for (const server of servers) {
    await until(async () => {
      const info = await server.say("CLUSTER", "INFO");
      return info.includes("cluster_state:ok") && info.includes("cluster_known_nodes:3");
    }, "the cluster to agree");
  }
  return servers;
}

const KEYS = { AWS_ACCESS_KEY_ID: "tierkv", AWS_SECRET_ACCESS_KEY: "not-a-secret" };

export interface TestBucket {
  /** Address of an empty prefix in it. */
  address: string;
  /** Variables that lead there. */
  env: Record<string, string>;
  /** Names of its objects. */
  objects(): string[];
  /** Flips a byte of each object, in its last record. */
  damageAll(): void;
  /** Ends the server. */
  kill(): void;
}

/** Starts an S3 server over a folder. */
export async function startBucket(): Promise<TestBucket> {
  const folder = testDirectory();
  mkdirSync(join(folder, "bucket"));
  const port = await freePort();
  const { PATH = "" } = process.env;
  const child = spawn(S3 ?? "", ["--port", `127.0.0.1:${port}`, "posix", folder], {
    env: { PATH, ROOT_ACCESS_KEY: "tierkv", ROOT_SECRET_KEY: "not-a-secret" },
    stdio: "ignore",
  });
  closeAfterTest({ close: () => child.kill("SIGKILL") });
  await until(() => isListening(port), "the S3 server to listen");
  const objects = (): string[] =>
    readdirSync(join(folder, "bucket"), { recursive: true, encoding: "utf8" }).filter((name) =>
      statSync(join(folder, "bucket", name)).isFile(),
    );
  return {
    address: "s3://bucket/here",
    env: { ...KEYS, AWS_ENDPOINT_URL: `http://127.0.0.1:${port}` },
    objects,
    damageAll() {
      for (const name of objects()) {
        const path = join(folder, "bucket", name);
        const bytes = readFileSync(path);
        bytes[bytes.length - 100]! ^= 0x10;
        writeFileSync(path, bytes);
      }
    },
    kill: () => void child.kill("SIGKILL"),
  };
}
