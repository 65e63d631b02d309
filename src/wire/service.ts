// Owns loading the proto files: the two service definitions, typed once for servers and clients alike.
import type { MethodDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { shipped } from "../base/shipped.ts";
import type * as m from "./messages.ts";

const loaded = loadSync(
  ["tierkv.proto", "health.proto"].map((name) => shipped(`proto/${name}`)),
  { longs: Number, defaults: true },
);

export interface VaultService {
  Hello: MethodDefinition<m.HelloRequest, m.HelloReply>;
  Lookup: MethodDefinition<m.LookupRequest, m.LookupReply>;
  Report: MethodDefinition<m.ReportRequest, m.ReportReply>;
  Stats: MethodDefinition<m.StatsRequest, m.StatsReply>;
  Flush: MethodDefinition<m.FlushRequest, m.FlushReply>;
  Name: MethodDefinition<m.NameRequest, m.NameReply>;
  Keep: MethodDefinition<m.KeepRequest, m.KeepReply>;
  Sessions: MethodDefinition<m.SessionsRequest, m.SessionsReply>;
  Measure: MethodDefinition<m.MeasureRequest, m.MeasureReply>;
  Invite: MethodDefinition<m.InviteRequest, m.InviteReply>;
  Redeem: MethodDefinition<m.RedeemRequest, m.RedeemReply>;
  Peers: MethodDefinition<m.PeersRequest, m.PeersReply>;
  Revoke: MethodDefinition<m.RevokeRequest, m.RevokeReply>;
  Watch: MethodDefinition<m.WatchRequest, m.WatchReply>;
  List: MethodDefinition<m.ListRequest, m.ListReply>;
  Drain: MethodDefinition<m.DrainRequest, m.DrainReply>;
  Weigh: MethodDefinition<m.WeighRequest, m.WeighReply>;
  Pool: MethodDefinition<m.PoolRequest, m.PoolReply>;
  Gossip: MethodDefinition<m.GossipRequest, m.GossipReply>;
  Admit: MethodDefinition<m.AdmitRequest, m.AdmitReply>;
}

export interface HealthService {
  Check: MethodDefinition<m.HealthCheckRequest, m.HealthCheckResponse>;
  Watch: MethodDefinition<m.HealthCheckRequest, m.HealthCheckResponse>;
}

/** Full names, as a health check asks for them. */
export const VAULT_SERVICE_NAME = "tierkv.v1.Vault";
const HEALTH_SERVICE_NAME = "grpc.health.v1.Health";

export const vaultService: VaultService = loaded[VAULT_SERVICE_NAME] as unknown as VaultService;
export const healthService: HealthService = loaded[HEALTH_SERVICE_NAME] as unknown as HealthService;
