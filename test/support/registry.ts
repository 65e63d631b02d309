// Owns an OCI registry with injectable faults: tokens for logged-in clients, and blobs redirected to another place.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import type { IncomingMessage, RequestListener, Server, ServerResponse } from "node:http";
import { createServer as createClosed } from "node:https";
import type { AddressInfo } from "node:net";
import type { CertifiedKey } from "../../src/base/native.ts";
import { digestOf } from "../../src/extras/bundle/manifest.ts";
import { closeAfterTest } from "./vaults.ts";

export const LOGIN = "someone:a password";

export interface TestRegistry {
  /** host:port */
  address: string;
  blobs: Map<string, Buffer>;
  manifests: Map<string, Buffer>;
  /** Method and path of each request, in order. */
  asked: string[];
  /** Authorization headers of requests for blobs at their place. */
  told: (string | undefined)[];
  /** Changes a blob on its way out; null: the connection breaks off. */
  spoil: (bytes: Buffer) => Buffer | null;
  /** Uploads beyond this number are answered with 503. */
  uploadsMax: number;
}

async function listening(server: Server): Promise<string> {
  await new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () => resolve(null));
  });
  closeAfterTest({
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  });
  return `localhost:${(server.address() as AddressInfo).port}`;
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  return Buffer.concat(parts);
}

interface Asked {
  method: string;
  url: URL;
  login: string;
  body: Buffer;
}

type Answer = [status: number, body?: Buffer | string, headers?: Record<string, string>];

/** null: without TLS. */
export async function startRegistry(identity: CertifiedKey | null): Promise<TestRegistry> {
  const scheme = identity === null ? "http" : "https";
  const serverOf = (listener: RequestListener): Server =>
    identity === null
      ? createServer(listener)
      : createClosed({ cert: identity.certPem, key: identity.keyPem }, listener);
  const tokens = new Map<string, string>();
  let uploads = 0;
  const registry: TestRegistry = {
    address: "",
    blobs: new Map(),
    manifests: new Map(),
    asked: [],
    told: [],
    spoil: (bytes) => bytes,
    uploadsMax: Infinity,
  };
  const store = serverOf((request, response) => {
    registry.told.push(request.headers.authorization);
    const bytes = registry.blobs.get((request.url ?? "").slice(1)) ?? Buffer.alloc(0);
    const sent = registry.spoil(bytes);
    if (sent !== null) response.end(sent);
    else response.write(bytes.subarray(0, bytes.length >> 1), () => response.destroy());
  });
  const elsewhere = await listening(store);
  const own = (): string => `${scheme}://${registry.address}`;
  /** Grants a token to logged-in clients. */
  const grant = ({ url, login }: Asked): Answer => {
    if (login !== `Basic ${Buffer.from(LOGIN).toString("base64")}`) return [401];
    const token = randomUUID();
    tokens.set(token, url.searchParams.get("scope") ?? "");
    return [200, JSON.stringify({ token })];
  };
  const put = ({ url, body }: Asked): Answer => {
    const digest = url.searchParams.get("digest") ?? "";
    if (digestOf(body) !== digest || url.searchParams.get("state") !== "x") return [400];
    registry.blobs.set(digest, body);
    return [201];
  };
  const begin = (repository: string): Answer => {
    uploads += 1;
    if (uploads > registry.uploadsMax) return [503, "too many"];
    return [202, "", { location: `/v2/${repository}/blobs/uploads/one?state=x` }];
  };
  const read = (method: string, name: string): Answer => {
    if (!registry.blobs.has(name)) return [404];
    if (method === "HEAD") return [200];
    return [307, "", { location: `${scheme}://${elsewhere}/${name}` }];
  };
  const manifest = ({ method, body }: Asked, name: string): Answer => {
    if (method === "GET") return [200, registry.manifests.get(name) ?? ""];
    registry.manifests.set(name, body);
    return [201];
  };
  const answer = (asked: Asked): Answer => {
    const { method, url, login } = asked;
    const [, repository = "", kind = "", name = ""] =
      /^\/v2\/(.+)\/(blobs|manifests)\/(.+)$/.exec(url.pathname) ?? [];
    const isRead = method === "GET" || method === "HEAD";
    const scope = `repository:${repository}:${isRead ? "pull" : "pull,push"}`;
    const held = tokens.get(login.replace("Bearer ", "")) ?? "";
    if (!`${held},`.startsWith(`${scope},`)) {
      const challenge = `Bearer realm="${own()}/token",service="test",scope="${scope}"`;
      return [401, "", { "www-authenticate": challenge }];
    }
    registry.asked.push(`${method} ${kind}/${name}`);
    if (kind === "manifests") return manifest(asked, name);
    if (isRead) return read(method, name);
    return method === "POST" ? begin(repository) : put(asked);
  };
  const serve = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { method = "", headers, url = "" } = request;
    const login = headers.authorization ?? "";
    const asked = { method, url: new URL(url, own()), login, body: await bodyOf(request) };
    const isLogin = asked.url.pathname === "/token";
    const [status, body = "", more = {}] = isLogin ? grant(asked) : answer(asked);
    response.writeHead(status, more).end(body);
  };
  registry.address = await listening(
    serverOf((request, response) => void serve(request, response)),
  );
  return registry;
}
