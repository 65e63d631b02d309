// Owns one simulated world: engines that see a pool through the real placement, vaults that come, go, forget and evict, and a ledger of every run.
import { createHash, hash } from "node:crypto";
import { chanceOf } from "./chance.js";

const HASH_BYTES = 32;
const REQUESTS = 40;
const DOCUMENTS = 6;
const RUNS_MAX = 6;
const ENGINES = 2;
const GIB = 2 ** 30;
/** One world in so many has vaults of unlike capacity, and one in so many has vaults that are full. */
const [UNLIKE_EVERY, FULL_EVERY] = [8, 3];

/** What one vault holds: runs, the least recently used first. */
class Vault {
  constructor(name, capacityBytes, runsMax) {
    this.name = name;
    this.capacityBytes = capacityBytes;
    this.runsMax = runsMax;
    this.isUp = true;
    this.isMember = true;
    this.runs = new Map();
  }

  has(run) {
    return this.isUp && this.runs.has(run);
  }

  touch(run) {
    this.runs.delete(run);
    this.runs.set(run, true);
  }

  /** Returns the runs that went to make room. */
  keep(run) {
    this.touch(run);
    const gone = [];
    for (const oldest of this.runs.keys()) {
      if (this.runs.size <= this.runsMax) break;
      this.runs.delete(oldest);
      gone.push(oldest);
    }
    return gone;
  }
}

/** An engine's host: its own clients, and the real pool over them. It hears of members late, and of a death when it asks. */
class Host {
  constructor(vaults, isDouble, { Pool }) {
    this.members = new Set();
    this.clients = [];
    this.pool = new Pool("kv", {
      clients: this.clients,
      isDouble,
      isMember: (client) => this.members.has(client.vault),
    });
    this.hear(vaults);
  }

  /** Who is a member now. */
  hear(vaults) {
    for (const vault of vaults) {
      if (!vault.isMember) this.members.delete(vault);
      else this.members.add(vault);
      if (vault.isMember && !this.clients.some((client) => client.vault === vault)) {
        const { name: address, capacityBytes } = vault;
        this.clients.push({ address, capacityBytes, isOpen: false, vault });
      }
    }
  }

  /** Whether a vault answers; what does not counts as down until it is probed. */
  reaches(client) {
    client.isOpen = !client.vault.isUp;
    return client.vault.isUp;
  }

  probe() {
    for (const client of this.clients) if (client.isOpen) this.reaches(client);
  }
}

/** A prompt: a document's first runs, and some of its own. */
function promptOf(chance, seed, runBlocks) {
  const document = Math.floor(chance.next() ** 2 * DOCUMENTS);
  const shared = 1 + chance.below(RUNS_MAX);
  const runs = Array.from({ length: shared }, (_none, at) => `${seed}:${document}:${at}`);
  if (chance.below(3) === 0) runs.push(`${seed}:once:${chance.next()}`);
  const hashes = Buffer.alloc(runs.length * runBlocks * HASH_BYTES);
  for (const [at, run] of runs.entries()) {
    hash("sha256", run, "buffer").copy(hashes, at * runBlocks * HASH_BYTES);
  }
  return { runs, hashes };
}

/**
 * Runs one seed. `parts`: the real Pool, NO_VAULT and RUN_BLOCKS. Misses by cause: `fresh` was never stored, `evicted` and `lost` are with
 * no vault any more, `elsewhere` lies on a vault that this host did not ask, because hosts saw the pool differently.
 */
export function runSeed(seed, parts) {
  const { NO_VAULT, RUN_BLOCKS } = parts;
  const chance = chanceOf(seed);
  const isDouble = chance.below(2) === 1;
  const isUnlike = chance.below(UNLIKE_EVERY) === 0;
  const runsMax = chance.below(FULL_EVERY) === 0 ? 8 : Infinity;
  const newVault = (at) =>
    new Vault(`v${seed}-${at}:50051`, (isUnlike ? 8 * (1 + chance.below(4)) : 16) * GIB, runsMax);
  const vaults = Array.from({ length: 3 + chance.below(3) }, (_none, at) => newVault(at));
  const hosts = Array.from({ length: ENGINES }, () => new Host(vaults, isDouble, parts));
  const misses = { fresh: 0, evicted: 0, lost: 0, elsewhere: 0, settledElsewhere: 0 };
  const counts = { seed, isDouble, runs: 0, found: 0, ...misses, losses: 0, asked: 0, events: 0 };
  const stored = new Set();
  const evicted = new Set();
  /** From which request on all hosts see the pool as it is. */
  let settledFrom = 0;
  const trace = createHash("sha256");

  const happen = (request) => {
    const event = chance.below(4);
    const up = vaults.filter(({ isUp, isMember }) => isUp && isMember);
    if (event === 0 && up.length > 2) {
      // One at a time: copies are for one loss.
      if (counts.losses === 0) {
        const vault = chance.pick(up);
        vault.isUp = false;
        vault.runs.clear();
        counts.losses += 1;
      }
    } else if (event === 1) {
      for (const vault of vaults) vault.isUp = true;
    } else if (event === 2 && vaults.length < 7) {
      vaults.push(newVault(vaults.length));
    } else if (up.length > 3) {
      chance.pick(up).isMember = false;
    }
    counts.events += 1;
    settledFrom = Infinity;
    trace.update(`${request}e${event}`);
  };

  for (let request = 0; request < REQUESTS; request += 1) {
    if (chance.below(20) === 0) happen(request);
    // News arrives sooner here, later there.
    for (const host of hosts) if (chance.below(4) === 0) host.hear(vaults);
    const host = chance.pick(hosts);
    if (chance.below(4) === 0) host.probe();
    const areAlike = hosts.every(
      (one) =>
        vaults.every((vault) => one.members.has(vault) === vault.isMember) &&
        one.clients.every((client) => client.isOpen === !client.vault.isUp),
    );
    if (!areAlike) settledFrom = Infinity;
    else if (settledFrom === Infinity) settledFrom = request;
    const { runs, hashes } = promptOf(chance, seed, RUN_BLOCKS);
    const places = host.pool.placesOf(hashes);
    let isHole = false;
    for (const [at, run] of runs.entries()) {
      const index = at * RUN_BLOCKS;
      const asked = [places.owners[index], ...places.others.map((list) => list[index])];
      const clients = asked.filter((seat) => seat !== NO_VAULT).map((seat) => host.clients[seat]);
      counts.asked += clients.length;
      const holder = clients.find((client) => host.reaches(client) && client.vault.has(run));
      counts.runs += 1;
      if (holder !== undefined) {
        holder.vault.touch(run);
        counts.found += 1;
      } else if (!stored.has(run)) counts.fresh += 1;
      else if (vaults.some((vault) => vault.has(run))) {
        counts.elsewhere += 1;
        if (settledFrom === 0) counts.settledElsewhere += 1;
      } else if (evicted.has(run)) counts.evicted += 1;
      else counts.lost += 1;
      isHole ||= holder === undefined;
      // What is not held is computed, and saved; a prefix cache takes nothing behind a hole from vaults.
      if (!isHole) continue;
      const anchor = hashes.subarray(index * HASH_BYTES, (index + 1) * HASH_BYTES);
      const home = host.pool.homeOf(anchor, anchor);
      for (const seat of [home.owner, home.second]) {
        const client = host.clients[seat];
        if (client === undefined || !host.reaches(client)) continue;
        for (const gone of client.vault.keep(run)) evicted.add(gone);
        stored.add(run);
      }
    }
    trace.update(`${counts.found},${counts.elsewhere},${counts.lost};`);
  }
  return { ...counts, digest: trace.digest("hex") };
}
