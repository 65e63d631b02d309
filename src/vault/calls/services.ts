// Owns the table of handlers for a vault's calls.
import { Server } from "@grpc/grpc-js";
import { serverOptions } from "../../wire/options.ts";
import { healthService, vaultService } from "../../wire/service.ts";
import type { ConnectionActivity } from "../access/connection-activity.ts";
import type { Gate } from "../access/gate.ts";
import { passUnknown, unknownMethods } from "../access/refusals.ts";
import type { VaultContext } from "./context.ts";
import { drainAway, list, weigh } from "./drain.ts";
import { flush } from "./flush.ts";
import { admit, gossip } from "./gossip.ts";
import type { Health } from "./health.ts";
import { invite, peers, redeem, revoke } from "./membership.ts";
import {
  hello,
  keep,
  lookup,
  measure,
  nameModel,
  report,
  sessions,
  stats,
  unary,
  unaryLater,
} from "./records.ts";

/** Without a gate every caller is admitted. */
export function newServer(
  vault: VaultContext,
  health: Health,
  activity: ConnectionActivity,
  gate: Gate | null,
): Server {
  // The first interceptor sees a call first, so that refused calls go no further.
  const interceptors = [
    ...(gate === null ? [] : [gate.interceptor]),
    activity.interceptor,
    unknownMethods,
  ];
  const server = new Server({ ...serverOptions(), interceptors });
  passUnknown(server);
  server.addService(
    { ...vaultService },
    {
      Hello: unary(vault, "Hello", hello),
      Lookup: unary(vault, "Lookup", lookup),
      Report: unaryLater(vault, "Report", report),
      Stats: unary(vault, "Stats", stats),
      Flush: unaryLater(vault, "Flush", flush),
      Name: unary(vault, "Name", nameModel),
      Keep: unary(vault, "Keep", keep),
      Sessions: unary(vault, "Sessions", sessions),
      Measure: unaryLater(vault, "Measure", measure),
      Invite: unary(vault, "Invite", invite),
      Redeem: unary(vault, "Redeem", redeem),
      Peers: unary(vault, "Peers", peers),
      Revoke: unary(vault, "Revoke", revoke),
      Watch: vault.watchers.watch,
      List: unaryLater(vault, "List", list),
      Drain: unary(vault, "Drain", drainAway),
      Weigh: unary(vault, "Weigh", weigh),
      Pool: vault.poolCalls.pool,
      Gossip: unaryLater(vault, "Gossip", gossip),
      Admit: unaryLater(vault, "Admit", admit),
    },
  );
  server.addService(
    { ...healthService },
    {
      Check: health.check,
      Watch: health.watch,
    },
  );
  return server;
}
