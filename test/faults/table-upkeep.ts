// Owns the faults of upkeep: flushes, copies that are offered again, sizes, leases, credentials, pools with two copies.
import { AT_START, row } from "./row.ts";
import type { FaultRow } from "./row.ts";

/** A flush under way is its own load. */
const FLUSHED = { unloaded: "is driven beside restores and saves of its own" };
const AGAIN = { unloaded: "happens only while nothing else goes on" };
const MEASURED = { unloaded: "concerns records that no engine can name" };
const REVOKED = { unloaded: "is driven with calls and lanes of two machines of its own" };

const HANDED = { unloaded: "is driven with prompts of two engines of its own" };
const RUST = "crates/core/tests/";
const ARCHIVED = { unloaded: "is driven with a disk and stores of its own" };
const POOLED = { unloaded: "is driven with whole prompts of a pool of three processes" };

export const UPKEEP: readonly FaultRow[] = [
  row(
    "F60",
    "copies in arenas outlive a flush",
    "every sidecar that is connected drops them before the flush is answered; plans under way end as flushed",
    ["test/sidecar/vaults/flushes.test.ts", "test/engine/test_again.py"],
    FLUSHED,
  ),
  row(
    "F61",
    "a save handed over before a flush arrives after it",
    "it waits: dropped; it is on its way: the vault refuses it, because it names the last flush its maker knew of",
    ["test/sidecar/vaults/flushes.test.ts"],
    FLUSHED,
  ),
  row(
    "F62",
    "a sidecar is away during a flush, or the vault restarts before it comes back",
    "the vault keeps numbered flushes over restarts; a hello tells what was missed, before anything is restored",
    ["test/sidecar/vaults/flushes.test.ts"],
    FLUSHED,
  ),
  row(
    "F63",
    "disk_bytes is more than the disk has",
    "the start is refused, with key, value and what to write",
    ["test/cli/disk.test.ts"],
    AT_START,
  ),
  row(
    "F64",
    "a measuring command is killed",
    "its lease ends, and the vault drops what it stored, in memory and on disk",
    ["test/vault/leases.test.ts"],
    MEASURED,
  ),
  row(
    "F65",
    "a machine's credential is revoked while it is connected",
    "its lanes and connections end at once, other machines keep theirs",
    ["test/vault/membership.test.ts"],
    REVOKED,
  ),
  row(
    "F66",
    "a vault comes back empty while arenas hold what it held",
    "what they hold is offered again without a visit, prefix first, into room that is free",
    ["test/sidecar/save/reoffer.test.ts", "test/engine/test_again.py"],
    AGAIN,
  ),
  row(
    "F67",
    "a vault evicts what an arena holds",
    "it is offered again once per use, and displaces little at a time",
    ["test/sidecar/save/reoffer.test.ts"],
    AGAIN,
  ),
  row(
    "F68",
    "many sidecars see a vault return at once",
    "each begins at a random time, asks before it sends, sends what is missing at its own pace",
    ["test/sidecar/save/reoffer.test.ts"],
    AGAIN,
  ),
  row(
    "F69",
    "what is stored under a name is not what an engine of that name computes",
    "an idle engine finds out by computing a block of some restores itself; nothing of the name is used until a flush",
    ["test/sidecar/vaults/quarantine.test.ts", "test/engine/test_truth.py"],
    AGAIN,
  ),
  row(
    "F70",
    "one tenant's records are to go, and lie among those of others",
    "memory, disk, arenas and saves know each record's tenant: the flush takes what is its own, and nothing else",
    [
      "crates/core/tests/tenant_flushes.rs",
      "test/vault/flush.test.ts",
      "test/sidecar/vaults/flushes.test.ts",
      "test/engine/test_again.py",
    ],
    FLUSHED,
  ),
  row(
    "F71",
    "a vault of a pool is killed or hangs while each record lies on two, also in mid-restore",
    "the other copy is found and fetched, and nothing is computed again; with one copy, what the dead one held",
    ["test/sidecar/sidecar.copies.test.ts"],
    POOLED,
  ),
  row(
    "F72",
    "a vault of such a pool comes back empty",
    "it is offered what arenas hold of it, as owner and as second",
    ["test/sidecar/sidecar.copies.test.ts"],
    POOLED,
  ),
  row(
    "F73",
    "a vault leaves its pool while it is read",
    "what it holds moves to its next owners and is found before, during and after, sealed or not; nothing new comes to it",
    [
      "test/cli/commands/vaults.drain.test.ts",
      "test/cli/commands/vaults.drain-sealed.test.ts",
      "test/cli/commands/vaults.drain-parity.test.ts",
    ],
    POOLED,
  ),
  row(
    "F74",
    "a vault is killed in the middle of being emptied",
    "the command says how far it came; run again, it moves the rest alone",
    ["test/cli/commands/vaults.drain.test.ts"],
    POOLED,
  ),
  row(
    "F75",
    "the vaults that take what another held are full",
    "beginnings of prompts stay, what was evicted for them is said, and the move can be undone",
    ["test/cli/commands/vaults.drain.test.ts"],
    POOLED,
  ),
  row(
    "F76",
    "an engine that computes for another is killed, with its sidecar, before its blocks are placed",
    "the other restores what came, and computes the rest once nothing new came within `stall_ms`",
    ["test/engine/test_handoff.py"],
    HANDED,
  ),
  row(
    "F77",
    "a request brings a hand-off of another prompt or model, or one that is made up",
    "its key does not fit: counted, and computed like any other",
    ["test/engine/test_handoff.py"],
    HANDED,
  ),
  row(
    "F78",
    "a vault of a pool that keeps parity is killed, hangs or comes back empty, also in mid-restore; or is down while others are flushed",
    "its blocks are rebuilt from the others; with two lost they are missing; what is flushed stays gone",
    [
      "test/sidecar/sidecar.parity.test.ts",
      "test/sidecar/restore/rebuilder.shapes.test.ts",
      "test/cli/commands/vaults.drain-sealed.test.ts",
    ],
    POOLED,
  ),
  row(
    "F79",
    "records of a pool that keeps parity are damaged, or stored anew with other bytes",
    "what can be rebuilt is, everything else is missing; XOR of sound records that do not belong together is refused",
    ["test/sidecar/restore/rebuilder.damage.test.ts"],
    POOLED,
  ),
  row(
    "F80",
    "the disk of a vault with an archive is lost",
    "the vault finds in the archive what went there, and serves it checked; what was flushed stays away",
    ["test/vault/server.archive.test.ts", `${RUST}archive.rs`],
    ARCHIVED,
  ),
  row(
    "F81",
    "an archive is busy, slow, silent, tears uploads, or refuses expired credentials",
    "counted and told; the vault serves what it has, calls nothing archived that is not, and catches up",
    ["test/vault/server.s3.test.ts", `${RUST}archive.rs`],
    ARCHIVED,
  ),
  row(
    "F82",
    "behind vLLM's own offloading: chunks of another size, weights that change, a vault that dies while it is asked",
    "nothing is taken for what it is not, what the vault held is computed, the engine goes on and keeps again",
    ["test/engine/test_tier.py"],
    { unloaded: "one engine's own conversation with vLLM's tiers" },
  ),
  row(
    "F83",
    "the one vault of a pool that a sidecar knows dies, a vault hears nothing for a while, or somebody tells a forged or an old list",
    "the sidecar has learned the others and goes on; what the pool's key did not sign is refused and counted; who was taken out stays out",
    ["test/discovery/pool.test.ts"],
    { unloaded: "what becomes of records is F71 to F75; this is about who belongs" },
  ),
  row(
    "F84",
    "etcd is killed, started again, or refuses; a vault that registered there dies",
    "the last view is kept meanwhile, later vaults are heard of, and a lease that ran out takes the vault out",
    ["test/discovery/etcd.test.ts", "test/discovery/source.test.ts"],
    { unloaded: "what becomes of records is F71 to F75; this is about who belongs" },
  ),
  row(
    "F92",
    "a sidecar starts while every source of its vaults that is written down is away",
    "it begins with the vaults of its last run, asks those for news, and follows its source again once that answers",
    ["test/discovery/pool.test.ts", "test/discovery/kept.test.ts"],
    { unloaded: "what becomes of records is F71 to F75; this is about who belongs" },
  ),
  row(
    "F93",
    "the list of vaults that a sidecar kept is damaged, may be read by others, or cannot be written",
    "it counts for nothing, which is said; the source is followed as without it",
    ["test/discovery/kept.test.ts"],
    { unloaded: "is about one file at the start" },
  ),
  row(
    "F85",
    "of several ways to a vault one is cut in the middle of a restore, is blocked, or leads to another vault",
    "what it had comes over the others and no block is missed; what is not the vault is told nothing; a way that is back is used again",
    ["test/faults/rails.test.ts", "test/client/rails.test.ts", `${RUST}lanes/rails.rs`],
    { unloaded: "is driven in networks of its own, whose paces it sets" },
  ),
  row(
    "F86",
    "a vault's weight is changed while its pool is read",
    "all sidecars place alike by it at once, nothing that is held is missed, and a restart keeps it",
    ["test/cli/commands/vaults.weight.test.ts"],
    POOLED,
  ),
  row(
    "F87",
    "of a pool one vault is reached by some machines only, or is slow; two answer at one address; clocks are hours apart",
    "misses at most, no wrong bytes; all is whole again after it, and a flush takes all",
    ["test/sidecar/sidecar.pool-faults.test.ts"],
    POOLED,
  ),
  row(
    "F88",
    "a bundle is damaged, forged, of another namespace or sealed with another key; its import is killed; a registry fails or sends other bytes",
    "refused by name before anything is stored; a killed import leaves a beginning, and the next goes on; a pull goes on where it was cut off",
    [
      "test/bundle/layout.test.ts",
      "test/bundle/registry.test.ts",
      "test/cli/commands/bundle.test.ts",
      "test/cli/commands/bundle.sealed.test.ts",
    ],
    { unloaded: "files and one command; what vaults do with records is F71 to F75" },
  ),
  row(
    "F89",
    "somebody uses the machine of a vault, stays, and leaves",
    "silent within a second, its memory given back, the same records from disk afterwards; a machine that sleeps is woken when it is wanted",
    [
      "test/vault/yielding.test.ts",
      "test/vault/user/user.test.ts",
      "test/cli/commands/vault.yield.test.ts",
      "test/client/wake.test.ts",
    ],
    { unloaded: "to others it is a vault that ended and was started again" },
  ),
  row(
    "F98",
    "an engine ends while another one fetches what it hands over",
    "what was saved is restored, the rest computed, and no slot stays taken",
    ["test/sidecar/restore/handoff.test.ts"],
    { unloaded: "two engines of one sidecar; what vaults do meanwhile is F1 to F8" },
  ),
  row(
    "F99",
    "two hand-offs together are larger than the arena",
    "what was fetched early of one makes room for the other: both are restored, one after the other",
    ["test/sidecar/restore/handoff.test.ts"],
    { unloaded: "two engines of one sidecar; what vaults do meanwhile is F1 to F8" },
  ),
  row(
    "F94",
    "a gateway's key asks for more than its limits allow",
    "429 with the time to wait, before an engine is asked; other keys are served as before, and places come back when clients leave",
    ["test/gateway/front/allowance.test.ts", "test/gateway/picker/picker.test.ts"],
    { unloaded: "is a load of its own, before simulated engines" },
  ),
  row(
    "F95",
    "a gateway's clients are many, slow, silent, or send long prompts and bodies that are too large",
    "memory stays within its bounds, engines wait for who does not read, and what is refused is told before the connection ends",
    ["test/gateway/front/server.crowds.test.ts"],
    { unloaded: "is a load of its own, before simulated engines" },
  ),
  row(
    "F96",
    "a receipt of a restore is changed, of another namespace or of an unknown key; vaults lost or replaced what it names; its folder cannot be written",
    "refused by name; each record of its sample is called the same, different or gone; a restore without its receipt goes on and is counted",
    [
      "test/receipt/receipt.test.ts",
      "test/cli/commands/verify.test.ts",
      "test/cli/commands/verify.sealed.test.ts",
      "test/engine/test_receipts.py",
    ],
    { unloaded: "is made of what a restore has left, and read by one command" },
  ),
];
