// Owns the border to the native core: the only file that names '#core'; it gives the core's errors their codes.
import type * as core from "#core";
import { TierkvError, toTierkvError } from "./errors.ts";
import { packageVersion } from "./version.ts";

/** What crates/node/index.d.ts declares: names, order and types are the core's own. */
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

/** One that was built from other sources may understand bytes in another way. */
function checkRelease(core: Core): void {
  const { version } = core.coreInfo();
  if (version === packageVersion()) return;
  throw new Error(`it is of version ${version}, this is tierKV ${packageVersion()}`);
}

const loaded = await loadCore();

type NativeFunction = (...args: never[]) => unknown;

/** The same function, throwing coded errors instead of napi's. */
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

/** The same for one that answers later. */
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

export const createArena: Core["createArena"] = coded(loaded.createArena);
export const prefaultArena: Core["prefaultArena"] = coded(loaded.prefaultArena);
export const arenaStatus: Core["arenaStatus"] = coded(loaded.arenaStatus);
export const leaseSlots: Core["leaseSlots"] = coded(loaded.leaseSlots);
export const slotHolds: Core["slotHolds"] = coded(loaded.slotHolds);
export const releaseSlot: Core["releaseSlot"] = coded(loaded.releaseSlot);
export const chownSlot: Core["chownSlot"] = coded(loaded.chownSlot);
export const releaseOwner: Core["releaseOwner"] = coded(loaded.releaseOwner);
export const closeArena: Core["closeArena"] = coded(loaded.closeArena);
export const sweepArenaDir: Core["sweepArenaDir"] = coded(loaded.sweepArenaDir);

export const lockFile: Core["lockFile"] = coded(loaded.lockFile);
export const unlockFile: Core["unlockFile"] = coded(loaded.unlockFile);
export const readOwnFile: Core["readOwnFile"] = coded(loaded.readOwnFile);
export const writeOwnFile: Core["writeOwnFile"] = coded(loaded.writeOwnFile);
export const makeCertificate: Core["makeCertificate"] = coded(loaded.makeCertificate);
export const slotsDigest: Core["slotsDigest"] = codedLater(loaded.slotsDigest);
export const sendArena: Core["sendArena"] = coded(loaded.sendArena);
export const peerUid: Core["peerUid"] = coded(loaded.peerUid);

export const registerGeometry: Core["registerGeometry"] = coded(loaded.registerGeometry);
export const geometryInfo: Core["geometryInfo"] = coded(loaded.geometryInfo);
export const dropGeometry: Core["dropGeometry"] = coded(loaded.dropGeometry);
export const encodeSlots: Core["encodeSlots"] = coded(loaded.encodeSlots);
export const deferSlots: Core["deferSlots"] = coded(loaded.deferSlots);
export type CodecWeight = core.CodecWeight;
export const weighSlot: Core["weighSlot"] = coded(loaded.weighSlot);
export const outboxMake: Core["outboxMake"] = coded(loaded.outboxMake);
export const outboxPut: Core["outboxPut"] = coded(loaded.outboxPut);
export const outboxView: Core["outboxView"] = coded(loaded.outboxView);
export const outboxDrop: Core["outboxDrop"] = coded(loaded.outboxDrop);
export const outboxReserve: Core["outboxReserve"] = coded(loaded.outboxReserve);
export const parityOpen: Core["parityOpen"] = coded(loaded.parityOpen);
export const parityAdd: Core["parityAdd"] = codedLater(loaded.parityAdd);
export const parityMake: Core["parityMake"] = codedLater(loaded.parityMake);
export const parityClose: Core["parityClose"] = coded(loaded.parityClose);
export const parityRebuild: Core["parityRebuild"] = codedLater(loaded.parityRebuild);
export const outboxPosition: Core["outboxPosition"] = coded(loaded.outboxPosition);

export const recordKeysSet: Core["recordKeysSet"] = coded(loaded.recordKeysSet);
export const recordKeysNamespace: Core["recordKeysNamespace"] = coded(loaded.recordKeysNamespace);
export const recordKeysTenant: Core["recordKeysTenant"] = coded(loaded.recordKeysTenant);
export const recordKeysStatus: Core["recordKeysStatus"] = coded(loaded.recordKeysStatus);

export type Goodput = core.Goodput;
export const Goodput: Core["Goodput"] = loaded.Goodput;
export const lanesOpen: Core["lanesOpen"] = coded(loaded.lanesOpen);
export const lanesLookup: Core["lanesLookup"] = coded(loaded.lanesLookup);
export const lanesFetch: Core["lanesFetch"] = coded(loaded.lanesFetch);
export const lanesTake: Core["lanesTake"] = coded(loaded.lanesTake);
export const lanesStore: Core["lanesStore"] = coded(loaded.lanesStore);
export const lanesProbe: Core["lanesProbe"] = coded(loaded.lanesProbe);
export const lanesCancel: Core["lanesCancel"] = coded(loaded.lanesCancel);
export const lanesProgress: Core["lanesProgress"] = coded(loaded.lanesProgress);
export type LaneRail = core.LaneRail;
export const lanesFailedRail: Core["lanesFailedRail"] = coded(loaded.lanesFailedRail);
export const lanesMtu: Core["lanesMtu"] = coded(loaded.lanesMtu);
export const lanesClose: Core["lanesClose"] = coded(loaded.lanesClose);
export const shmOpen: Core["shmOpen"] = coded(loaded.shmOpen);
export const shmLookup: Core["shmLookup"] = coded(loaded.shmLookup);
export const shmFetch: Core["shmFetch"] = coded(loaded.shmFetch);
export const shmStore: Core["shmStore"] = coded(loaded.shmStore);
export const shmCheck: Core["shmCheck"] = coded(loaded.shmCheck);
export const shmFlush: Core["shmFlush"] = coded(loaded.shmFlush);
export const shmName: Core["shmName"] = coded(loaded.shmName);
export const shmNews: Core["shmNews"] = coded(loaded.shmNews);
export const shmFill: Core["shmFill"] = coded(loaded.shmFill);
export const shmCancel: Core["shmCancel"] = coded(loaded.shmCancel);
export const shmProgress: Core["shmProgress"] = coded(loaded.shmProgress);
export const shmAsk: Core["shmAsk"] = codedLater(loaded.shmAsk);
export const shmAnswer: Core["shmAnswer"] = codedLater(loaded.shmAnswer);
export const shmClose: Core["shmClose"] = coded(loaded.shmClose);
export const listenerOpen: Core["listenerOpen"] = coded(loaded.listenerOpen);
export const listenerSettle: Core["listenerSettle"] = coded(loaded.listenerSettle);
export const listenerLeave: Core["listenerLeave"] = coded(loaded.listenerLeave);
export const listenerAdmit: Core["listenerAdmit"] = coded(loaded.listenerAdmit);
export const listenerStatus: Core["listenerStatus"] = coded(loaded.listenerStatus);
export const listenerDrain: Core["listenerDrain"] = coded(loaded.listenerDrain);
export const listenerClose: Core["listenerClose"] = coded(loaded.listenerClose);
export const listenerExpel: Core["listenerExpel"] = coded(loaded.listenerExpel);

export const createStore: Core["createStore"] = coded(loaded.createStore);
export const storeLookup: Core["storeLookup"] = coded(loaded.storeLookup);
export const storeSessionAdd: Core["storeSessionAdd"] = coded(loaded.storeSessionAdd);
export const storeSessionEnd: Core["storeSessionEnd"] = coded(loaded.storeSessionEnd);
export const storeSessionStats: Core["storeSessionStats"] = coded(loaded.storeSessionStats);
export const storeDurable: Core["storeDurable"] = coded(loaded.storeDurable);
export const storeRecheck: Core["storeRecheck"] = codedLater(loaded.storeRecheck);
export const storeFlush: Core["storeFlush"] = codedLater(loaded.storeFlush);
export const storeNoteFlush: Core["storeNoteFlush"] = coded(loaded.storeNoteFlush);
export const storeForgetFlushes: Core["storeForgetFlushes"] = coded(loaded.storeForgetFlushes);
export const storeDrain: Core["storeDrain"] = codedLater(loaded.storeDrain);
export const storeDiskStats: Core["storeDiskStats"] = coded(loaded.storeDiskStats);
export const storeList: Core["storeList"] = codedLater(loaded.storeList);
export const storeDrainAway: Core["storeDrainAway"] = coded(loaded.storeDrainAway);
export const storeTrim: Core["storeTrim"] = codedLater(loaded.storeTrim);
export const storeStats: Core["storeStats"] = coded(loaded.storeStats);
export const closeStore: Core["closeStore"] = coded(loaded.closeStore);
