// Owns the rules about who imports whom: the import table, cycles, barrels, and the native border.
import { posix } from "node:path";
import { under, type Rule, type Source } from "./sources.ts";
import {
  CORE_MODULES,
  FOUNDATION,
  FOUNDATION_PACKAGES,
  GATEWAY_ROOMS,
  ROOMS,
  SIDECAR_ROOMS,
  SOCKET_MODULES,
  VAULT_ROOMS,
  type Room,
} from "./table.ts";

interface Import {
  from: string;
  /** A path from the repository root when relative, else as written. */
  to: string;
  isPackage: boolean;
  typeOnly: boolean;
  reexport: boolean;
  /** Starts or reads the file instead of importing it: direction counts, a circle does not. */
  byUrl: boolean;
}

const STATEMENT =
  /^[ \t]*(import|export)\s+(type\s+)?(?:[\w*$\s{},]+?\sfrom\s*)?["']([^"'\n]+)["']/gm;
const DYNAMIC = /\b(import|new URL)\(\s*["']([^"'\n]+)["']/g;

/** Every import of a file, also dynamic ones and `new URL("./file.js", import.meta.url)`. */
function importsOf({ path, text }: Source): Import[] {
  const found: Import[] = [];
  const add = (specifier: string, kind: Partial<Import>): void => {
    const isPackage = !specifier.startsWith(".");
    const joined = posix.join(posix.dirname(path), specifier);
    const built = joined.replace(/^dist\/(.*)\.js$/, "src/$1.ts").replace(/\.js$/, ".ts");
    const to = isPackage ? specifier : built;
    const plain = { typeOnly: false, reexport: false, byUrl: false };
    found.push({ from: path, to, isPackage, ...plain, ...kind });
  };
  for (const [, keyword, type, specifier] of text.matchAll(STATEMENT)) {
    add(specifier!, { typeOnly: type !== undefined, reexport: keyword === "export" });
  }
  for (const [, how, specifier] of text.matchAll(DYNAMIC)) {
    add(specifier!, { byUrl: how === "new URL" });
  }
  return found;
}

/** "config" for src/config/load.ts, "vault/process" for a file below it, "" for a foundation file, null outside src. */
function roomOf(path: string): string | null {
  const [top, ...rest] = path.split("/");
  if (top !== "src" || rest.length === 0) return null;
  const [first = "", second = ""] = rest;
  if (first === "base") return "";
  const inner = `${first}/${second}`;
  return ROOMS[inner] === undefined ? first : inner;
}

const stem = (path: string): string => posix.basename(path, ".ts");
/** As the table names a foundation file: "limits/cost" for src/base/limits/cost.ts. */
const nameOf = (path: string): string => posix.relative("src/base", path).replace(/\.ts$/, "");

function foundationBreach({ from, to, isPackage, typeOnly, byUrl }: Import): string | null {
  if (to.startsWith("node:")) return null;
  if (isPackage) {
    const allowed = FOUNDATION_PACKAGES[nameOf(from)] ?? [];
    return allowed.includes(to) ? null : `${from}: a foundation file may not use ${to}`;
  }
  // A file that is read and no code: package.json.
  if (byUrl && roomOf(to) === null) return null;
  if (roomOf(to) !== "") return `${from}: the foundation may not import ${to}`;
  const isDownward = FOUNDATION.indexOf(nameOf(to)) < FOUNDATION.indexOf(nameOf(from));
  return isDownward || typeOnly ? null : `${from}: ${to} stands above it in the foundation`;
}

function packageBreach({ from, to }: Import, owner: string, room: Room): string | null {
  if (to.startsWith("node:")) {
    const isSocket = SOCKET_MODULES.includes(to.slice("node:".length));
    return room.offline && isSocket ? `${from}: ${owner} may not open sockets (${to})` : null;
  }
  const isAllowed = room.packages.some((name) => to === name || to.startsWith(`${name}/`));
  return isAllowed ? null : `${from}: ${owner} may not use the package ${to}`;
}

function roomBreach(edge: Import, name: string, room: Room): string | null {
  const { from, to, typeOnly } = edge;
  if (edge.isPackage) return packageBreach(edge, name, room);
  const target = roomOf(to);
  if (target === null || target === "" || target === name) return null;
  if (room.rooms.includes(target) || (typeOnly && room.types.includes(target))) return null;
  const how = room.types.includes(target) ? " (its types it may)" : "";
  return `${from}: ${name} may not import ${target}${how}`;
}

const direction: Rule = {
  name: "imports follow the table",
  breaches(sources) {
    const breaches: string[] = [];
    for (const source of under(sources, "src/", ".ts")) {
      const name = roomOf(source.path) ?? "";
      const room = ROOMS[name];
      const isKnown = name === "" ? FOUNDATION.includes(nameOf(source.path)) : room !== undefined;
      if (!isKnown) breaches.push(`${source.path}: not in the import table`);
      for (const edge of importsOf(source)) {
        const breach = room === undefined ? foundationBreach(edge) : roomBreach(edge, name, room);
        if (isKnown && breach !== null) breaches.push(breach);
      }
    }
    return breaches;
  },
  examples: [
    { "src/vault/server.ts": 'import { x } from "../client/vault-client.ts";' },
    { "src/sidecar/a.ts": 'import { loadConfig } from "../config/load.ts";' },
    { "src/config/load.ts": 'import {\n  a,\n} from "commander";' },
    { "src/arena/arena.ts": 'import { connect } from "node:net";' },
    { "src/codec/pool.ts": 'const f = new URL("../vault/server.js", import.meta.url);' },
    { "src/codec/pool.ts": 'const f = new URL("../../dist/vault/server.js", import.meta.url);' },
    { "src/base/limits/general.ts": 'import { x } from "../log.ts";' },
    { "src/base/time.ts": 'import { x } from "../wire/service.ts";' },
    { "src/base/block.ts": 'import core from "#core";' },
    { "src/client/a.ts": 'const cli = await import("../cli/main.ts");' },
    { "src/gossip/a.ts": "" },
    { "src/base/helpers.ts": "" },
    { "src/helpers.ts": "" },
    { "src/vault/a.ts": 'import { x } from "./process/b.ts";' },
    { "src/sidecar/a.ts": 'import { x } from "../extras/plan/model.ts";' },
  ],
};

/** The files of one cycle, or null; colours nodes as a depth-first walk does. */
function findCycle(edges: ReadonlyMap<string, readonly string[]>): string[] | null {
  const done = new Set<string>();
  const trail: string[] = [];
  const visit = (path: string): string[] | null => {
    if (trail.includes(path)) return [...trail.slice(trail.indexOf(path)), path];
    if (done.has(path)) return null;
    trail.push(path);
    for (const next of edges.get(path) ?? []) {
      const cycle = visit(next);
      if (cycle !== null) return cycle;
    }
    trail.pop();
    done.add(path);
    return null;
  };
  for (const path of edges.keys()) {
    const cycle = visit(path);
    if (cycle !== null) return cycle;
  }
  return null;
}

const cycles: Rule = {
  name: "no import cycles, types included",
  breaches(sources) {
    const edges = new Map<string, string[]>();
    for (const source of under(sources, "src/", ".ts")) {
      const imports = importsOf(source).filter((edge) => !edge.byUrl);
      edges.set(
        source.path,
        imports.map((edge) => edge.to),
      );
    }
    const cycle = findCycle(edges);
    return cycle === null ? [] : [cycle.join(" -> ")];
  },
  examples: [
    {
      "src/client/a.ts": 'import { b } from "./b.ts";',
      "src/client/b.ts": 'import type { c } from "./c.ts";',
      "src/client/c.ts": 'import { a } from "./a.ts";',
    },
  ],
};

const barrels: Rule = {
  name: "no barrels: import the file that owns the name",
  breaches(sources) {
    const files = under(sources, "src/", ".ts");
    const named = files.filter(({ path }) => stem(path) === "index").map(({ path }) => path);
    const passedOn = files.flatMap(importsOf).filter((edge) => edge.reexport);
    return [...named, ...passedOn.map((edge) => `${edge.from} passes on ${edge.to}`)];
  },
  examples: [
    { "src/client/index.ts": "" },
    { "src/client/all.ts": 'export * from "./vault-client.ts";' },
    { "src/client/all.ts": 'export { a, b } from "./vault-client.ts";' },
    { "src/client/all.ts": 'export type { A } from "./vault-client.ts";' },
  ],
};

const border: Rule = {
  name: "only native.ts names the native core",
  breaches: (sources) =>
    under(sources, "src/", ".ts")
      .filter(({ path, text }) => path !== "src/base/native.ts" && /["'`]#core["'`]/.test(text))
      .map(({ path }) => `${path} names #core`),
  examples: [{ "src/vault/store.ts": 'const core = "#core";' }],
};

const MAIN = "src/cli/main.ts";
const NATIVE = "src/base/native.ts";

/** Files that a file loads before its first line runs. */
function loadedBy({ path, text }: Source): string[] {
  return Array.from(text.matchAll(STATEMENT), ([, , type, to]) => ({ type, to: to! }))
    .filter(({ type, to }) => type === undefined && to.startsWith("."))
    .map(({ to }) => posix.join(posix.dirname(path), to));
}

/** Packages take their manual pages from the program before a core is compiled, and a missing core is an error of a command. */
const startsWithoutCore: Rule = {
  name: "the command line starts without the native core",
  breaches(sources) {
    const files = new Map(under(sources, "src/", ".ts").map((source) => [source.path, source]));
    const paths = new Map([[MAIN, MAIN]]);
    for (const [path, way] of paths) {
      const source = files.get(path);
      if (path === NATIVE) return [way];
      for (const to of source === undefined ? [] : loadedBy(source)) {
        if (!paths.has(to)) paths.set(to, `${way} -> ${to}`);
      }
    }
    return [];
  },
  examples: [
    {
      "src/cli/main.ts": 'import { a } from "./a.ts";',
      "src/cli/a.ts": 'import { core } from "../base/native.ts";',
      "src/base/native.ts": "",
    },
  ],
};

/** Rooms that are divided into rooms, lowest first. */
const DIVIDED: Readonly<Record<string, readonly string[]>> = {
  sidecar: SIDECAR_ROOMS,
  gateway: GATEWAY_ROOMS,
  vault: VAULT_ROOMS,
};

/** Where a file stands among its room's rooms; files beside them are above them all, and the process above those; null: elsewhere, -1: in an unknown room. */
function floorOf(path: string): number | null {
  const [top, room = "", inner, file] = path.split("/");
  const rooms = DIVIDED[room];
  if (top !== "src" || rooms === undefined || inner === undefined) return null;
  if (inner === "process") return rooms.length + 1;
  return file === undefined ? rooms.length : rooms.indexOf(inner);
}

const dividedRooms: Rule = {
  name: "the rooms of sidecar, vault and gateway import one way",
  breaches: (sources) =>
    Object.keys(DIVIDED)
      .flatMap((room) => under(sources, `src/${room}/`, ".ts"))
      .flatMap((source) => {
        const from = floorOf(source.path) ?? -1;
        if (from < 0) return [`${source.path}: not in a room of the table`];
        return importsOf(source)
          .filter(({ isPackage, to }) => !isPackage && (floorOf(to) ?? 0) > from)
          .map(({ to }) => `${source.path}: ${to} stands above it`);
      }),
  examples: [
    { "src/sidecar/restore/a.ts": 'import type { B } from "../engine/b.ts";' },
    { "src/sidecar/socket/a.ts": 'import { b } from "../sidecar.ts";' },
    { "src/sidecar/attic/a.ts": "" },
    { "src/sidecar/a.ts": 'import { b } from "./process/b.ts";' },
    { "src/gateway/engines/a.ts": 'import { b } from "../front/b.ts";' },
  ],
};

const CORE = "crates/core/src/";

const coreModules: Rule = {
  name: "the core's modules use those below them",
  breaches: (sources) =>
    under(sources, CORE, ".rs")
      .map(({ path, text }) => ({ path, text, module: path.slice(CORE.length).split(/[/.]/)[0]! }))
      .filter(({ module }) => module !== "lib")
      .flatMap(({ path, text, module }) => {
        const from = CORE_MODULES.indexOf(module);
        if (from < 0) return [`${path}: not a module of the table`];
        const used = new Set(Array.from(text.matchAll(/\bcrate::(\w+)/g), ([, name]) => name!));
        used.delete(module);
        return [...used]
          .filter((name) => !(CORE_MODULES.indexOf(name) < from))
          .map((name) => `${path}: ${name} stands above it`);
      }),
  examples: [
    { "crates/core/src/disk/a.rs": "use crate::store::Store;" },
    { "crates/core/src/attic.rs": "" },
  ],
};

export const IMPORT_RULES: readonly Rule[] = [
  direction,
  cycles,
  barrels,
  border,
  startsWithoutCore,
  dividedRooms,
  coreModules,
];
