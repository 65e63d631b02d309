// Owns the border to the native core: the only file that names '#core', and the conversion of the core's errors to codes.
import type * as core from "#core";
import { TierkvError, toTierkvError } from "./errors.ts";
import { packageVersion } from "./version.ts";

/** Declarations of crates/node/index.d.ts: names, order and types are the core's own. */
type Core = typeof core;

export type ArenaOptions = core.ArenaOptions;
export type ArenaStatus = core.ArenaStatus;
export type EncodeItem = core.EncodeItem;
export type Geometry = core.Geometry;
export type RecordHeader = core.RecordHeader;
export type LaneClientTls = core.LaneClientTls;
export type ListenerOptions = core.ListenerOptions;
export type LaneServerTls = core.LaneServerTls;
export type StoreArchiveOptions = core.StoreArchiveOptions;
export type StoreDiskOptions = core.StoreDiskOptions;
export type StoreDiskStats = core.StoreDiskStats;
export type CertificateOptions = core.CertificateOptions;
export type CertificateIssuer = core.CertificateIssuer;
export type CertifiedKey = core.CertifiedKey;

async function loadCore(): Promise<Core> {
  try {
    const core = await import("#core");
    checkRelease(core);
    return core;
  } catch (error) {
    const reason = toTierkvError(error).message;
    throw new TierkvError("CORE_MISSING", { reason }, { cause: error });
  }
}

/** Refuses a core built from other sources, because it may read bytes differently. */
function checkRelease(core: Core): void {
  const { version } = core.coreInfo();
  if (version === packageVersion()) return;
  throw new Error(`it is of version ${version}, this is tierKV ${packageVersion()}`);
}

const loaded = await loadCore();

declare const OF: unique symbol;
/** Id of one of the core's objects. Only its type keeps kinds apart, because the core would accept any number. */
type Id<Of extends string> = number & { readonly [OF]: Of };
export type ArenaId = Id<"arena">;
export type ColdId = Id<"cold">;
export type GeometryId = Id<"geometry">;
export type LanesId = Id<"lanes">;
export type ListenerId = Id<"listener">;
export type LockId = Id<"lock">;
export type RegionId = Id<"region">;
export type StoreId = Id<"store">;
export type TokenizerId = Id<"tokenizer">;

/** Parameters whose first ones become ids. */
type Led<Ids extends readonly unknown[], Rest extends readonly unknown[]> = Ids extends readonly [
  infer First,
  ...infer Others,
]
  ? Rest extends readonly [unknown, ...infer After]
    ? [First, ...Led<Others, After>]
    : Rest
  : Rest;
/** A function of the core with typed ids as its first parameters. */
type Takes<F extends keyof Core, Ids extends readonly unknown[]> = Core[F] extends (
  ...args: infer Args
) => infer Result
  ? (...args: Led<Ids, Args>) => Result
  : never;
/** A function that returns an object's id, alone or as a field. */
type Gives<F, Given> = F extends (...args: infer Args) => infer Result
  ? (...args: Args) => Result extends { id: number } ? Result & { id: Given } : Given
  : never;

type NativeFunction = (...args: never[]) => unknown;

/** Wraps a function to throw coded errors instead of napi's. */
function coded<F extends NativeFunction>(call: F): F {
  const guarded = (...args: never[]): unknown => {
    try {
      return call(...args);
    } catch (error) {
      throw toTierkvError(error);
    }
  };
  return guarded as F;
}

/** The same for an async function. */
function codedLater<F extends (...args: never[]) => Promise<unknown>>(call: F): F {
  const guarded = async (...args: never[]): Promise<unknown> => {
    try {
      return await call(...args);
    } catch (error) {
      throw toTierkvError(error);
    }
  };
  return guarded as F;
}

export const coreInfo: Core["coreInfo"] = coded(loaded.coreInfo);

export const writeRecord: Core["writeRecord"] = coded(loaded.writeRecord);

export const createArena = coded(loaded.createArena) as Gives<Core["createArena"], ArenaId>;
export const prefaultArena: Takes<"prefaultArena", [ArenaId]> = coded(loaded.prefaultArena);
export const arenaStatus: Takes<"arenaStatus", [ArenaId]> = coded(loaded.arenaStatus);
export const leaseSlots: Takes<"leaseSlots", [ArenaId]> = coded(loaded.leaseSlots);
export const slotHolds: Takes<"slotHolds", [ArenaId]> = coded(loaded.slotHolds);
export const releaseSlot: Takes<"releaseSlot", [ArenaId]> = coded(loaded.releaseSlot);
export const chownSlot: Takes<"chownSlot", [ArenaId]> = coded(loaded.chownSlot);
export const releaseOwner: Takes<"releaseOwner", [ArenaId]> = coded(loaded.releaseOwner);
export const closeArena: Takes<"closeArena", [ArenaId]> = coded(loaded.closeArena);
export const sweepArenaDir: Core["sweepArenaDir"] = coded(loaded.sweepArenaDir);

export const lockFile = coded(loaded.lockFile) as (
  ...args: Parameters<Core["lockFile"]>
) => LockId | null;
export const unlockFile: Takes<"unlockFile", [LockId]> = coded(loaded.unlockFile);
export const readOwnFile: Core["readOwnFile"] = coded(loaded.readOwnFile);
export const writeOwnFile: Core["writeOwnFile"] = coded(loaded.writeOwnFile);
export const makeCertificate: Core["makeCertificate"] = coded(loaded.makeCertificate);
export const slotsDigest: Takes<"slotsDigest", [ArenaId]> = codedLater(loaded.slotsDigest);
export const sendArena: Takes<"sendArena", [number, ArenaId]> = coded(loaded.sendArena);
export const peerUid: Core["peerUid"] = coded(loaded.peerUid);

export const registerGeometry = coded(loaded.registerGeometry) as Gives<
  Core["registerGeometry"],
  GeometryId
>;
export const geometryInfo: Takes<"geometryInfo", [GeometryId]> = coded(loaded.geometryInfo);
export const dropGeometry: Takes<"dropGeometry", [GeometryId]> = coded(loaded.dropGeometry);
export const encodeSlots: Takes<"encodeSlots", [ArenaId, GeometryId]> = coded(loaded.encodeSlots);
export const deferSlots: Takes<"deferSlots", [ArenaId, GeometryId]> = coded(loaded.deferSlots);
export type CodecWeight = core.CodecWeight;
export const weighSlot: Takes<"weighSlot", [ArenaId, GeometryId]> = coded(loaded.weighSlot);
export const outboxMake: Core["outboxMake"] = coded(loaded.outboxMake);
export const outboxPut: Core["outboxPut"] = coded(loaded.outboxPut);
export const outboxView: Core["outboxView"] = coded(loaded.outboxView);
export const outboxDrop: Core["outboxDrop"] = coded(loaded.outboxDrop);
export const outboxReserve: Core["outboxReserve"] = coded(loaded.outboxReserve);
export const recutSlots: Takes<"recutSlots", [ArenaId]> = codedLater(loaded.recutSlots);
export const outboxPosition: Core["outboxPosition"] = coded(loaded.outboxPosition);

export const recordKeysSet: Core["recordKeysSet"] = coded(loaded.recordKeysSet);
export const recordKeysNamespace: Core["recordKeysNamespace"] = coded(loaded.recordKeysNamespace);
export const recordKeysTenant: Core["recordKeysTenant"] = coded(loaded.recordKeysTenant);
export const recordKeysStatus: Core["recordKeysStatus"] = coded(loaded.recordKeysStatus);

export type Goodput = core.Goodput;
export const Goodput: Core["Goodput"] = loaded.Goodput;
export const lanesOpen = coded(loaded.lanesOpen) as Gives<Core["lanesOpen"], LanesId>;
export const lanesLookup: Takes<"lanesLookup", [LanesId]> = coded(loaded.lanesLookup);
export const lanesFetch: Takes<"lanesFetch", [LanesId]> = coded(loaded.lanesFetch);
export const lanesTake: Takes<"lanesTake", [LanesId]> = coded(loaded.lanesTake);
export const lanesStore: Takes<"lanesStore", [LanesId]> = coded(loaded.lanesStore);
export const packKeys: Core["packKeys"] = coded(loaded.packKeys);
export const lanesProbe: Takes<"lanesProbe", [LanesId]> = coded(loaded.lanesProbe);
export const lanesCancel: Takes<"lanesCancel", [LanesId]> = coded(loaded.lanesCancel);
export const lanesProgress: Takes<"lanesProgress", [LanesId]> = coded(loaded.lanesProgress);
export type LaneRail = core.LaneRail;
export const lanesFailedRails: Takes<"lanesFailedRails", [LanesId]> = coded(
  loaded.lanesFailedRails,
);
export const lanesLend: Takes<"lanesLend", [LanesId]> = coded(loaded.lanesLend);
export const lanesMtu: Takes<"lanesMtu", [LanesId]> = coded(loaded.lanesMtu);
export const lanesClose: Takes<"lanesClose", [LanesId]> = coded(loaded.lanesClose);
export const shmOpen = codedLater(loaded.shmOpen) as (
  ...args: Parameters<Core["shmOpen"]>
) => Promise<core.ShmInfo & { id: RegionId }>;
export const shmCheckGroup: Core["shmCheckGroup"] = coded(loaded.shmCheckGroup);
export const shmLookup: Takes<"shmLookup", [RegionId]> = coded(loaded.shmLookup);
export const shmLookupNow: Takes<"shmLookupNow", [RegionId]> = coded(loaded.shmLookupNow);
export const shmFetch: Takes<"shmFetch", [RegionId, ArenaId]> = coded(loaded.shmFetch);
export const shmTake: Takes<"shmTake", [RegionId]> = coded(loaded.shmTake);
export const shmStore: Takes<"shmStore", [RegionId]> = coded(loaded.shmStore);
export const shmCheck: Takes<"shmCheck", [RegionId]> = coded(loaded.shmCheck);
export const shmFlush: Takes<"shmFlush", [RegionId]> = coded(loaded.shmFlush);
export const shmName: Takes<"shmName", [RegionId]> = coded(loaded.shmName);
export const shmNews: Takes<"shmNews", [RegionId]> = coded(loaded.shmNews);
export const shmFill: Takes<"shmFill", [RegionId]> = coded(loaded.shmFill);
export const shmCancel: Takes<"shmCancel", [RegionId]> = coded(loaded.shmCancel);
export const shmProgress: Takes<"shmProgress", [RegionId]> = coded(loaded.shmProgress);
export const shmAsk: Core["shmAsk"] = codedLater(loaded.shmAsk);
export const shmAnswer: Core["shmAnswer"] = codedLater(loaded.shmAnswer);
export const shmClose: Takes<"shmClose", [RegionId]> = coded(loaded.shmClose);
export const coldOpen = coded(loaded.coldOpen) as Gives<Core["coldOpen"], ColdId>;
export const coldLookup: Takes<"coldLookup", [ColdId]> = coded(loaded.coldLookup);
export const coldFetch: Takes<"coldFetch", [ColdId]> = coded(loaded.coldFetch);
export const coldTake: Takes<"coldTake", [ColdId]> = coded(loaded.coldTake);
export const coldStore: Takes<"coldStore", [ColdId]> = coded(loaded.coldStore);
export const coldCheck: Takes<"coldCheck", [ColdId]> = coded(loaded.coldCheck);
export const coldPing: Takes<"coldPing", [ColdId]> = coded(loaded.coldPing);
export const coldCancel: Takes<"coldCancel", [ColdId]> = coded(loaded.coldCancel);
export const coldProgress: Takes<"coldProgress", [ColdId]> = coded(loaded.coldProgress);
export type ColdSettings = core.ColdSettings;
export const coldFlush: Takes<"coldFlush", [ColdId]> = coded(loaded.coldFlush);
export const coldLearnModel: Takes<"coldLearnModel", [ColdId]> = coded(loaded.coldLearnModel);
export const coldName: Takes<"coldName", [ColdId]> = coded(loaded.coldName);
export const coldNews: Takes<"coldNews", [ColdId]> = coded(loaded.coldNews);
export const coldNodes: Takes<"coldNodes", [ColdId]> = coded(loaded.coldNodes);
export const coldSpent: Takes<"coldSpent", [ColdId]> = coded(loaded.coldSpent);
export const coldRefusals: Takes<"coldRefusals", [ColdId]> = coded(loaded.coldRefusals);
export const coldClose: Takes<"coldClose", [ColdId]> = coded(loaded.coldClose);
type OpensListener = Takes<"listenerOpen", [StoreId]>;
export const listenerOpen = coded(loaded.listenerOpen as OpensListener) as Gives<
  OpensListener,
  ListenerId
>;
export const listenerSettle: Takes<"listenerSettle", [ListenerId]> = coded(loaded.listenerSettle);
export const listenerLeave: Takes<"listenerLeave", [ListenerId]> = coded(loaded.listenerLeave);
export const listenerAdmit: Takes<"listenerAdmit", [ListenerId]> = coded(loaded.listenerAdmit);
export const listenerStatus: Takes<"listenerStatus", [ListenerId]> = coded(loaded.listenerStatus);
export const listenerDrain: Takes<"listenerDrain", [ListenerId]> = coded(loaded.listenerDrain);
export const listenerClose: Takes<"listenerClose", [ListenerId]> = coded(loaded.listenerClose);
export type LaneSpan = core.LaneSpan;
export type LaneSpans = core.LaneSpans;
export const listenerSpans: Takes<"listenerSpans", [ListenerId]> = coded(loaded.listenerSpans);
export const listenerExpel: Takes<"listenerExpel", [ListenerId]> = coded(loaded.listenerExpel);

export const createStore = coded(loaded.createStore) as Gives<Core["createStore"], StoreId>;
export const storeLookup: Takes<"storeLookup", [StoreId]> = coded(loaded.storeLookup);
export const storeSessionAdd: Takes<"storeSessionAdd", [StoreId]> = coded(loaded.storeSessionAdd);
export const storeSessionEnd: Takes<"storeSessionEnd", [StoreId]> = coded(loaded.storeSessionEnd);
export const storeSessionStats: Takes<"storeSessionStats", [StoreId]> = coded(
  loaded.storeSessionStats,
);
export const storeDurable: Takes<"storeDurable", [StoreId]> = coded(loaded.storeDurable);
export const storeRecheck: Takes<"storeRecheck", [StoreId]> = codedLater(loaded.storeRecheck);
export const storeFlush: Takes<"storeFlush", [StoreId]> = codedLater(loaded.storeFlush);
export const storeNoteFlush: Takes<"storeNoteFlush", [StoreId]> = coded(loaded.storeNoteFlush);
export const storeForgetFlushes: Takes<"storeForgetFlushes", [StoreId]> = coded(
  loaded.storeForgetFlushes,
);
export const storeDrain: Takes<"storeDrain", [StoreId]> = codedLater(loaded.storeDrain);
export const storeDiskStats: Takes<"storeDiskStats", [StoreId]> = coded(loaded.storeDiskStats);
export const storeList: Takes<"storeList", [StoreId]> = codedLater(loaded.storeList);
export const storeDrainAway: Takes<"storeDrainAway", [StoreId]> = coded(loaded.storeDrainAway);
export const storeTrim: Takes<"storeTrim", [StoreId]> = codedLater(loaded.storeTrim);
export const storeStats: Takes<"storeStats", [StoreId]> = coded(loaded.storeStats);
export const closeStore: Takes<"closeStore", [StoreId]> = coded(loaded.closeStore);

export const tokenizerOpen = codedLater(loaded.tokenizerOpen) as (
  ...args: Parameters<Core["tokenizerOpen"]>
) => Promise<TokenizerId>;
export const tokenizerEncode: Takes<"tokenizerEncode", [TokenizerId]> = codedLater(
  loaded.tokenizerEncode,
);
export const tokenizerDecode: Takes<"tokenizerDecode", [TokenizerId]> = codedLater(
  loaded.tokenizerDecode,
);
export const tokenizerClose: Takes<"tokenizerClose", [TokenizerId]> = coded(loaded.tokenizerClose);

export type IndexReport = core.IndexReport;
export type IndexSample = core.IndexSample;
export type IndexView = core.IndexView;
export const IndexCore: Core["IndexCore"] = loaded.IndexCore;
export type IndexCore = core.IndexCore;
export const hashRoot: Core["hashRoot"] = coded(loaded.hashRoot);
export const hashBlocks: Core["hashBlocks"] = coded(loaded.hashBlocks);
export const nameBlocks: Core["nameBlocks"] = coded(loaded.nameBlocks);

export const HttpCore: Core["HttpCore"] = loaded.HttpCore;
export type HttpCore = core.HttpCore;
/** Returns the token ids in an engine's answer; empty: it has none by which the prompt's blocks are known. */
export const idsIn: Core["idsIn"] = coded(loaded.idsIn);
export const AnswerMeter: Core["AnswerMeter"] = loaded.AnswerMeter;
export type AnswerMeter = core.AnswerMeter;
