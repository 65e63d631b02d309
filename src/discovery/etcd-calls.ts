// Owns calls to etcd over its own protocol: one server at a time, the next after a failure, with TLS and a login where needed.
import { isIP } from "node:net";
import { checkServerIdentity } from "node:tls";
import type { PeerCertificate } from "node:tls";
import { Client, credentials, Metadata } from "@grpc/grpc-js";
import type {
  ChannelCredentials,
  ChannelOptions,
  ClientDuplexStream,
  MethodDefinition,
} from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { splitAddress } from "../base/hosts.ts";
import { ETCD_PING_MS, ETCD_TIMEOUT_MS } from "../base/limits/pool.ts";
import { shipped } from "../base/shipped.ts";
import { wallClockMs } from "../base/time.ts";

// 64-bit ids do not fit into numbers.
const loaded = loadSync(shipped("proto/etcd.proto"), {
  longs: String,
  defaults: true,
  keepCase: true,
});

type Service<Methods> = Readonly<Methods>;

interface KeyValue {
  key: Buffer;
  value: Buffer;
}

export const KV = loaded["etcdserverpb.KV"] as unknown as Service<{
  Range: MethodDefinition<
    { key: Buffer; range_end: Buffer; limit: number },
    { header: { revision: string } | null; kvs: KeyValue[] }
  >;
  Put: MethodDefinition<{ key: Buffer; value: Buffer; lease: string }, object>;
}>;
export const WATCH = loaded["etcdserverpb.Watch"] as unknown as Service<{
  Watch: MethodDefinition<
    { create_request: { key: Buffer; range_end: Buffer; start_revision: string } },
    { canceled: boolean; events: object[] }
  >;
}>;
export const LEASE = loaded["etcdserverpb.Lease"] as unknown as Service<{
  LeaseGrant: MethodDefinition<{ TTL: number }, { ID: string }>;
  LeaseRevoke: MethodDefinition<{ ID: string }, object>;
  LeaseKeepAlive: MethodDefinition<{ ID: string }, { TTL: string }>;
}>;
const AUTH = loaded["etcdserverpb.Auth"] as unknown as Service<{
  Authenticate: MethodDefinition<{ name: string; password: string }, { token: string }>;
}>;

export interface EtcdAccess {
  /** `host:port`; at least one. */
  endpoints: readonly string[];
  /** null: in the clear. */
  tls: { caPem: Buffer; certPem: Buffer | null; keyPem: Buffer | null } | null;
  /** null: etcd needs no login. */
  login: { user: string; password: string } | null;
}

/** TLS sends no IP addresses as server names (RFC 6066): grpc-js would, and Node warns of it on the user's terminal. */
const NO_NAME = "etcd";

function secured(
  address: string,
  tls: EtcdAccess["tls"],
): { security: ChannelCredentials; options: ChannelOptions } {
  if (tls === null) return { security: credentials.createInsecure(), options: {} };
  const { host } = splitAddress(address);
  const check = (_named: string, certificate: PeerCertificate): Error | undefined =>
    checkServerIdentity(host, certificate);
  const security = credentials.createSsl(tls.caPem, tls.keyPem, tls.certPem, {
    checkServerIdentity: check,
  });
  const options = isIP(host) === 0 ? {} : { "grpc.ssl_target_name_override": NO_NAME };
  return { security, options };
}

/** One connection to one server. */
export class EtcdCalls {
  readonly #client: Client;
  readonly #login: EtcdAccess["login"];
  #metadata: Metadata | null = null;

  /** `turn` picks one of the endpoints. */
  constructor({ endpoints, tls, login }: EtcdAccess, turn: number) {
    const address = endpoints[turn % endpoints.length] ?? "";
    const { security, options } = secured(address, tls);
    this.#client = new Client(address, security, {
      ...options,
      "grpc.use_local_subchannel_pool": 1,
      "grpc.enable_http_proxy": 0,
      "grpc.keepalive_time_ms": ETCD_PING_MS,
      "grpc.keepalive_timeout_ms": ETCD_TIMEOUT_MS,
    });
    this.#login = login;
  }

  async unary<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
    request: Request,
  ): Promise<Reply> {
    return await this.#call(method, request, await this.#shown());
  }

  async stream<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
  ): Promise<ClientDuplexStream<Request, Reply>> {
    const { path, requestSerialize, responseDeserialize } = method;
    const shown = await this.#shown();
    return this.#client.makeBidiStreamRequest(path, requestSerialize, responseDeserialize, shown);
  }

  close(): void {
    this.#client.close();
  }

  /** Logs in once per connection; an expired token ends the connection. */
  async #shown(): Promise<Metadata> {
    if (this.#metadata !== null) return this.#metadata;
    const shown = new Metadata();
    // A member cut off from the majority then ends calls and streams, and would else keep them open without news.
    shown.set("hasleader", "true");
    if (this.#login !== null) {
      const { user: name, password } = this.#login;
      const { token } = await this.#call(AUTH.Authenticate, { name, password }, shown);
      shown.set("token", token);
    }
    this.#metadata = shown;
    return shown;
  }

  #call<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
    request: Request,
    metadata: Metadata,
  ): Promise<Reply> {
    const { path, requestSerialize, responseDeserialize } = method;
    const deadline = wallClockMs() + ETCD_TIMEOUT_MS;
    return new Promise((resolve, reject) => {
      this.#client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        metadata,
        { deadline },
        (error, reply) => {
          if (error === null && reply !== undefined) resolve(reply);
          else reject(error ?? new Error("no reply"));
        },
      );
    });
  }
}

/** Returns the range of all keys with this prefix. */
export function rangeOf(prefix: string): { key: Buffer; range_end: Buffer } {
  const key = Buffer.from(prefix);
  const end = Buffer.from(key);
  end[end.length - 1] = (end.at(-1) ?? 0) + 1;
  return { key, range_end: end };
}
