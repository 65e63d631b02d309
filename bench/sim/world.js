// Owns one simulated world: hosts with the real placement, vaults that come, go and evict, and the outcome of every run.
import { createHash, hash } from "node:crypto";
import { chanceOf } from "./chance.js";
import { inVirtualTime } from "./clock.js";
import { Engine, Way } from "./links.js";

const HASH_BYTES = 32;
const REQUESTS = 40;
const DOCUMENTS = 6;
const RUNS_MAX = 6;
/** Parts of a run, each on another vault. */
const PARTS = 4;
const HOSTS = 2;
const VAULTS_MAX = 7;
const GIB = 2 ** 30;
/** Worlds that share vault names, because layouts of parts depend on names and take long to make. */
const NAMED_ALIKE = 1000;
/** One world in so many has vaults of different capacity, and one in so many has full vaults. */
const [UNLIKE_EVERY, FULL_EVERY] = [8, 3];
/** One request in so many meets an event; one host in so many updates its members, or probes vaults that are down. */
const [EVENT_EVERY, NEWS_EVERY, PROBE_EVERY] = [20, 4, 4];
/** One request in so many changes a link's rate. */
const LINK_EVERY = 15;
/** Longest pause between requests, and a long one once in so many, so that some old views expire within a world. */
const [PAUSE_MS, LONG_PAUSE_MS, LONG_EVERY] = [2000, 1_800_000, 8];

/** The runs that one vault holds, least recently used first. */
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

  /** Returns the runs evicted to make room. */
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

/** An engine's host: its clients, and the real pool over them. Learns of members late, and of deaths when it asks. */
class Host {
  constructor(vaults, isDouble, chance, parts) {
    this.chance = chance;
    this.parts = parts;
    this.members = new Set();
    this.clients = [];
    this.engine = new Engine(chance, parts);
    this.pool = new parts.Pool("kv", {
      clients: this.clients,
      isDouble,
      isMember: (client) => this.members.has(client.vault),
    });
    this.hear(vaults);
  }

  /** Updates the members. */
  hear(vaults) {
    for (const vault of vaults) {
      if (!vault.isMember) this.members.delete(vault);
      else this.members.add(vault);
      if (vault.isMember && !this.clients.some((client) => client.vault === vault)) {
        const { name: address, capacityBytes } = vault;
        const way = new Way(this.chance, this.parts);
        this.clients.push({ address, capacityBytes, isDown: false, vault, way });
      }
    }
  }

  /** Returns whether a vault answers; an unreachable one counts as down until it is probed. */
  reaches(client) {
    client.isDown = !client.vault.isUp;
    return client.vault.isUp;
  }

  probe() {
    for (const client of this.clients) if (client.isDown) this.reaches(client);
  }

  /** Returns whether its view equals the real pool. */
  knows(vaults) {
    return (
      vaults.every((vault) => this.members.has(vault) === vault.isMember) &&
      this.clients.every((client) => client.isDown === !client.vault.isUp)
    );
  }
}

class World {
  constructor(seed, parts, clock) {
    this.seed = seed;
    this.parts = parts;
    this.clock = clock;
    const chance = chanceOf(seed);
    this.chance = chance;
    const isDouble = chance.below(2) === 1;
    this.isUnlike = chance.below(UNLIKE_EVERY) === 0;
    this.runsMax = chance.below(FULL_EVERY) === 0 ? 8 : Infinity;
    this.vaults = [];
    for (let left = 3 + chance.below(3); left > 0; left -= 1) this.addVault();
    this.hosts = Array.from(
      { length: HOSTS },
      () => new Host(this.vaults, isDouble, chance, parts),
    );
    this.stored = new Set();
    this.evicted = new Set();
    /** Whether no event has happened that hosts could see differently. */
    this.isCalm = true;
    const misses = { fresh: 0, evicted: 0, lost: 0, elsewhere: 0, calmElsewhere: 0 };
    this.counts = { seed, isDouble, runs: 0, found: 0, ...misses, losses: 0, asked: 0, events: 0 };
  }

  addVault() {
    const capacity = (this.isUnlike ? 8 * (1 + this.chance.below(4)) : 16) * GIB;
    const name = `v${Math.floor(this.seed / NAMED_ALIKE)}-${this.vaults.length}:50051`;
    this.vaults.push(new Vault(name, capacity, this.runsMax));
  }

  /** Lets one event happen; at most one vault is lost per world, because copies cover one loss. */
  happen() {
    const { chance, vaults, counts } = this;
    const up = vaults.filter(({ isUp, isMember }) => isUp && isMember);
    const event = chance.below(4);
    if (event === 0 && counts.losses === 0) {
      const vault = chance.pick(up);
      vault.isUp = false;
      vault.runs.clear();
      counts.losses += 1;
    } else if (event === 1) {
      for (const vault of vaults) vault.isUp = true;
    } else if (event === 2 && vaults.length < VAULTS_MAX) {
      this.addVault();
    } else if (up.length > 3) {
      chance.pick(up).isMember = false;
    }
    counts.events += 1;
    this.isCalm = false;
  }

  /** Returns a prompt: a document's first runs, and sometimes a run that never returns. */
  prompt() {
    const { chance, seed, parts } = this;
    const document = Math.floor(chance.next() ** 2 * DOCUMENTS);
    const shared = 1 + chance.below(RUNS_MAX);
    const runs = Array.from({ length: shared }, (_none, at) => `${seed}:${document}:${at}`);
    if (chance.below(3) === 0) runs.push(`${seed}:once:${chance.next()}`);
    const hashes = Buffer.alloc(runs.length * parts.RUN_BLOCKS * HASH_BYTES);
    for (const [at, run] of runs.entries()) {
      hash("sha256", run, "buffer").copy(hashes, at * parts.RUN_BLOCKS * HASH_BYTES);
    }
    return { runs, hashes };
  }

  step() {
    const { chance, vaults, hosts } = this;
    if (chance.below(EVENT_EVERY) === 0) this.happen();
    for (const host of hosts) if (chance.below(NEWS_EVERY) === 0) host.hear(vaults);
    const host = chance.pick(hosts);
    if (chance.below(PROBE_EVERY) === 0) host.probe();
    this.isCalm &&= hosts.every((one) => one.knows(vaults));
    const { runs, hashes } = this.prompt();
    if (chance.below(LINK_EVERY) === 0) chance.pick(host.clients).way.change(chance);
    const places = host.pool.placesOf(hashes);
    let isHole = false;
    const held = new Map();
    for (const [at, run] of runs.entries()) {
      const holder = this.restore(host, places, at, run);
      isHole ||= holder === undefined;
      // Runs behind a hole are computed and saved, because nothing behind it can be restored.
      if (isHole) this.save(host, hashes, at, run);
      else held.set(holder.way, (held.get(holder.way) ?? 0) + this.parts.RUN_BLOCKS);
    }
    const tookS = host.engine.ask(runs.length * this.parts.RUN_BLOCKS, held);
    const isLong = chance.below(LONG_EVERY) === 0;
    this.clock.ms += tookS * 1000 + chance.below(isLong ? LONG_PAUSE_MS : PAUSE_MS);
  }

  /** Returns the total times of engines whose links and rates were known. */
  get times() {
    const sum = { restored: 0, computed: 0, tookS: 0, bestS: 0, late: 0 };
    for (const { engine } of this.hosts)
      for (const name of Object.keys(sum)) sum[name] += engine.counts[name];
    return sum;
  }

  restore(host, { owners, others }, at, run) {
    const { counts, parts } = this;
    const index = blockOf(at, parts);
    const indexes = [owners[index], ...others.map((list) => list[index])];
    const clients = indexes
      .filter((home) => home !== parts.NO_VAULT)
      .map((home) => host.clients[home]);
    counts.asked += clients.length;
    counts.runs += 1;
    const holder = clients.find((client) => host.reaches(client) && client.vault.has(run));
    holder?.vault.touch(run);
    counts[holder === undefined ? this.causeOf(run) : "found"] += 1;
    return holder;
  }

  causeOf(run) {
    if (!this.stored.has(run)) return "fresh";
    if (this.vaults.some((vault) => vault.has(run))) {
      if (this.isCalm) this.counts.calmElsewhere += 1;
      return "elsewhere";
    }
    return this.evicted.has(run) ? "evicted" : "lost";
  }

  save(host, hashes, at, run) {
    const first = at * this.parts.RUN_BLOCKS;
    const anchor = hashes.subarray(first * HASH_BYTES, (first + 1) * HASH_BYTES);
    const { owner, second } = host.pool.homeOf(anchor, anchor, blockOf(at, this.parts));
    for (const client of [host.clients[owner], host.clients[second]]) {
      if (client === undefined || !host.reaches(client)) continue;
      for (const gone of client.vault.keep(run)) this.evicted.add(gone);
      this.stored.add(run);
    }
  }
}

/** Returns the block that represents run `at`, from each part in turn. */
function blockOf(at, { RUN_BLOCKS }) {
  return at * RUN_BLOCKS + ((at % PARTS) * RUN_BLOCKS) / PARTS;
}

/**
 * Runs one seed. `parts`: the real Pool, NO_VAULT, RUN_BLOCKS, EngineRates and Link. Misses by cause: `fresh` was never stored, `evicted` and
 * `lost` are on no vault any more, `elsewhere` is on a vault that this host did not ask, because hosts saw the pool differently.
 */
export function runSeed(seed, parts) {
  const clock = { ms: 1 };
  return inVirtualTime(clock, () => {
    const world = new World(seed, parts, clock);
    const trace = createHash("sha256");
    for (let request = 0; request < REQUESTS; request += 1) {
      world.step();
      trace.update(JSON.stringify([world.counts, world.times, clock.ms]));
    }
    return { ...world.counts, ...world.times, digest: trace.digest("hex") };
  });
}
