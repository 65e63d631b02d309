// Owns a real S3 server for tests, and a proxy before it that injects faults and issues credentials.
import { execFileSync, spawn } from "node:child_process";
import { createHash, createHmac } from "node:crypto";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { createServer, request } from "node:http";
import type { IncomingMessage, ServerResponse } from "node:http";
import { connect } from "node:net";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { closeAfterTest, until } from "./vaults.ts";

const ACCESS_KEY = "tierkv";
const SECRET_KEY = "not-a-secret";
const SLOW_MS = 400;
const LIFE_MS = 3_600_000;

/** Keys of the server's only user, for an environment. */
export const KEYS: Record<string, string> = {
  AWS_ACCESS_KEY_ID: ACCESS_KEY,
  AWS_SECRET_ACCESS_KEY: SECRET_KEY,
};
/** Domain below which buckets are hosts. */
export const DOMAIN = "s3.test";

/** Returns versitygw; `TIERKV_TEST_S3` names it where it is not on the path. */
function found(): string | null {
  const command = process.env["TIERKV_TEST_S3"] ?? "versitygw";
  try {
    execFileSync(command, ["--version"], { stdio: "ignore" });
    return command;
  } catch {
    return null;
  }
}

/** The server's program; null where these tests are not asked for, or it is missing. */
export const SERVER: string | null = process.env["TIERKV_TEST_LONG"] === undefined ? null : found();
if (process.env["TIERKV_TEST_LONG"] !== undefined && SERVER === null) {
  console.warn("no versitygw, so no archive on S3 is tried");
}

/** Returns a port that was free a moment ago. */
async function freePort(): Promise<number> {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = listener.address() as AddressInfo;
  listener.close();
  await once(listener, "close");
  return port;
}

/** A server with one bucket, named bucket. */
export class S3Server {
  readonly port: number;
  readonly #folder: string;

  private constructor(port: number, folder: string) {
    this.port = port;
    this.#folder = folder;
  }

  static async start(): Promise<S3Server> {
    const folder = mkdtempSync(join(tmpdir(), "tierkv-s3-"));
    closeAfterTest({ close: () => rmSync(folder, { recursive: true, force: true }) });
    mkdirSync(join(folder, "bucket"));
    const port = await freePort();
    const { PATH = "" } = process.env;
    const args = ["--port", `127.0.0.1:${port}`, "--virtual-domain", `${DOMAIN}:${port}`];
    const child = spawn(SERVER ?? "", [...args, "posix", folder], {
      env: { PATH, ROOT_ACCESS_KEY: ACCESS_KEY, ROOT_SECRET_KEY: SECRET_KEY },
      stdio: "ignore",
    });
    closeAfterTest({ close: () => child.kill("SIGKILL") });
    const isUp = async (): Promise<boolean> => {
      const socket = connect(port, "127.0.0.1");
      try {
        await once(socket, "connect");
        return true;
      } catch {
        return false;
      } finally {
        socket.destroy();
      }
    };
    await until(isUp, "the S3 server");
    return new S3Server(port, folder);
  }

  /** Objects in the bucket, with their folders. */
  objects(): string[] {
    const names = readdirSync(join(this.#folder, "bucket"), { recursive: true, encoding: "utf8" });
    return names.filter((name) => name.endsWith(".seg"));
  }

  /** Parts of uploads that are neither complete nor aborted, as the server keeps them. */
  parts(): string[] {
    const folder = join(this.#folder, "bucket", ".sgwtmp", "multipart");
    try {
      return readdirSync(folder, { recursive: true, encoding: "utf8" });
    } catch {
      return [];
    }
  }
}

const TOKEN = "X-Amz-Security-Token";
const SIGNATURE = "X-Amz-Signature";

interface Signed {
  method: string;
  path: string;
  /** Encoded names and values of the query. */
  pairs: Map<string, string>;
  host: string;
}

function partsOf(url: string): { path: string; pairs: Map<string, string>; signature: string } {
  const [path = "", query = ""] = url.split("?", 2);
  const pairs = new Map(
    query.split("&").map((pair): [string, string] => {
      const [name = "", value = ""] = pair.split("=", 2);
      return [name, value];
    }),
  );
  const signature = pairs.get(SIGNATURE) ?? "";
  pairs.delete(SIGNATURE);
  return { path, pairs, signature };
}

const queryOf = (pairs: ReadonlyMap<string, string>): string =>
  [...pairs]
    .map(([name, value]) => `${name}=${value}`)
    .toSorted()
    .join("&");

/** Signature of a presigned URL of the server's user, version 4. */
function signatureOf({ method, path, pairs, host }: Signed): string {
  const hmac = (key: Buffer | string, of: string): Buffer =>
    createHmac("sha256", key).update(of).digest();
  const hash = (of: string): string => createHash("sha256").update(of).digest("hex");
  const canonical = [
    method,
    path,
    queryOf(pairs),
    `host:${host}`,
    "",
    "host",
    "UNSIGNED-PAYLOAD",
  ].join("\n");
  const [, ...scope] = decodeURIComponent(pairs.get("X-Amz-Credential") ?? "").split("/");
  const signed = ["AWS4-HMAC-SHA256", pairs.get("X-Amz-Date"), scope.join("/"), hash(canonical)];
  const key = scope.reduce(hmac, Buffer.from(`AWS4${SECRET_KEY}`));
  return hmac(key, signed.join("\n")).toString("hex");
}

type Fault = "none" | "busy" | "expired" | "torn" | "slow" | "silent";

/** Passes requests on, or injects one fault. */
export class S3Proxy {
  fault: Fault = "none";
  /** Requests that met a fault. */
  acted = 0;
  endpoint = "";
  /** Whether requests need a token that was issued here. */
  asksTokens = false;
  /** Tokens issued. */
  issued = 0;
  /** Names and ports that clients asked to be connected to. */
  readonly connected = new Set<string>();
  /** A request that is left without an answer. */
  swallows: (asked: IncomingMessage) => boolean = () => false;
  /** Tokens that have not expired. */
  readonly #tokens = new Set<string>();

  static async to(port: number): Promise<S3Proxy> {
    const proxy = new S3Proxy();
    const front = createServer((asked, answer) => void proxy.#take(port, asked, answer));
    // An HTTP proxy's way to a server, whose name need not be known to the system.
    front.on("connect", (asked, client) => {
      proxy.connected.add(asked.url ?? "");
      const server = connect(port, "127.0.0.1", () => {
        client.write("HTTP/1.1 200 Connected\r\n\r\n");
        server.pipe(client).pipe(server);
      });
      server.on("error", () => client.destroy());
      client.on("error", () => server.destroy());
      client.on("close", () => server.destroy());
    });
    front.listen(0, "127.0.0.1");
    await once(front, "listening");
    closeAfterTest({
      close: () => {
        front.close();
        front.closeAllConnections();
      },
    });
    proxy.endpoint = `http://127.0.0.1:${(front.address() as AddressInfo).port}`;
    return proxy;
  }

  /** All tokens issued so far expire now, whatever was said of them. */
  expireTokens(): void {
    this.#tokens.clear();
  }

  async #take(port: number, asked: IncomingMessage, answer: ServerResponse): Promise<void> {
    if (asked.method === "POST" && asked.url === "/") {
      const form = new URLSearchParams(await text(asked));
      this.#issue(form, answer);
      return;
    }
    const url = this.#admitted(asked);
    if (url !== null) {
      this.#pass(port, url, asked, answer);
      return;
    }
    this.acted += 1;
    asked.resume();
    answer.writeHead(400).end("<Error><Code>ExpiredToken</Code></Error>");
  }

  /** Answers as a token service does; each token is of the server's user. */
  #issue(form: URLSearchParams, answer: ServerResponse): void {
    if (form.get("Action") !== "AssumeRoleWithWebIdentity" || !form.get("WebIdentityToken")) {
      answer.writeHead(400).end("<Error><Code>InvalidIdentityToken</Code></Error>");
      return;
    }
    this.issued += 1;
    const token = `token-${this.issued}`;
    this.#tokens.add(token);
    const fields = {
      AccessKeyId: ACCESS_KEY,
      SecretAccessKey: SECRET_KEY,
      SessionToken: token,
      Expiration: new Date(Date.now() + LIFE_MS).toISOString(),
    };
    const elements = Object.entries(fields).map(([name, value]) => `<${name}>${value}</${name}>`);
    answer.end(`<R><Credentials>${elements.join("")}</Credentials></R>`);
  }

  /**
   * Returns a request's URL as the server takes it, which knows no tokens of ours; null: the token was not issued, has
   * expired, or is not in the signature.
   */
  #admitted({ method = "GET", url = "/", headers }: IncomingMessage): string | null {
    if (!this.asksTokens) return url;
    const { path, pairs, signature } = partsOf(url);
    const host = headers.host ?? "";
    const isGood = this.#tokens.has(pairs.get(TOKEN) ?? "");
    if (!isGood || signature !== signatureOf({ method, path, pairs, host })) return null;
    pairs.delete(TOKEN);
    const again = signatureOf({ method, path, pairs, host });
    return `${path}?${queryOf(pairs)}&${SIGNATURE}=${again}`;
  }

  #pass(port: number, path: string, asked: IncomingMessage, answer: ServerResponse): void {
    const { fault } = this;
    if (fault !== "none") this.acted += 1;
    if (fault === "silent") return;
    if (this.swallows(asked)) {
      this.acted += 1;
      asked.resume();
      return;
    }
    if (fault === "busy" || fault === "expired") {
      const status = fault === "busy" ? 503 : 403;
      const code = fault === "busy" ? "SlowDown" : "ExpiredToken";
      asked.resume();
      answer.writeHead(status).end(`<Error><Code>${code}</Code></Error>`);
      return;
    }
    if (fault === "torn" && asked.method === "PUT") {
      asked.once("data", () => asked.socket.destroy());
      return;
    }
    const { method = "GET", headers } = asked;
    const on = request({ host: "127.0.0.1", port, method, path, headers }, (got) => {
      const send = (): void => {
        answer.writeHead(got.statusCode ?? 502, got.headers);
        got.pipe(answer);
      };
      setTimeout(send, fault === "slow" ? SLOW_MS : 0);
    });
    on.on("error", () => answer.destroy());
    asked.pipe(on);
  }
}
