// Owns the kinds of values a key can have: how each is read from TOML, and what to say when it cannot be.
import { isIPv4, isIPv6 } from "node:net";
import { homedir } from "node:os";
import { join } from "node:path";
import { isNames, namesIn, sharedPath, sourceOf } from "../hosts.ts";
import { VAULT_SOCKET_BYTES_MAX } from "../limits/general.ts";
import { SHARED_PATH_BYTES_MAX } from "../limits/shared.ts";
import type { Address } from "./config.ts";
import { nearest } from "./nearest.ts";

/** Why a value was not taken. `expected` names a wrong type; `reason` a right type with an impossible value. */
export type Problem = { fix: string } & ({ expected: string } | { reason: string });

export type Parsed<T> = { value: T } | { problem: Problem };

/** One kind of value. `key` is given so that the fix can be copied into the file as it stands. */
export interface Kind<T> {
  /** For the docs: what may be written. */
  describe: string;
  parse(raw: unknown, key: string): Parsed<T>;
}

const wrongType = (expected: string, fix: string): { problem: Problem } => ({
  problem: { expected, fix },
});
const badValue = (reason: string, fix: string): { problem: Problem } => ({
  problem: { reason, fix },
});

export const boolean: Kind<boolean> = {
  describe: "`true` or `false`",
  parse(raw, key) {
    if (typeof raw === "boolean") return { value: raw };
    return wrongType("true or false without quotes", `write ${key} = true or ${key} = false`);
  },
};

export function choice<T extends string>(choices: readonly T[]): Kind<T> {
  const list = choices.map((name) => `"${name}"`).join(", ");
  return {
    describe: choices.map((name) => `\`"${name}"\``).join(", "),
    parse(raw, key) {
      if (typeof raw !== "string")
        return wrongType(`one of ${list}`, `write ${key} = "${choices[0]}"`);
      const found = choices.find((name) => name === raw);
      if (found !== undefined) return { value: found };
      const guess = nearest(raw, choices);
      const fix = guess === null ? `write one of ${list}` : `did you mean "${guess}"?`;
      return badValue(`not one of ${list}`, fix);
    },
  };
}

/** Integers from the parser are bigints, so that 1.0 is not taken for 1. */
export function integer(min: number, max: number, unit = ""): Kind<number> {
  const range = `${min} to ${max}${unit === "" ? "" : ` ${unit}`}`;
  return {
    describe: `whole number, ${range}`,
    parse(raw, key) {
      if (typeof raw !== "bigint") {
        return wrongType("a whole number without quotes", `write ${key} = a number from ${range}`);
      }
      return inRange(Number(raw), min, max, `write a number from ${range}`);
    },
  };
}

function inRange(value: number, min: number, max: number, fix: string): Parsed<number> {
  if (value < min) return badValue(`below the least value ${min}`, fix);
  if (value > max) return badValue(`above the greatest value ${max}`, fix);
  return { value };
}

const UNITS: Readonly<Record<string, number>> = {
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  tb: 1e12,
  kib: 1024,
  mib: 1024 ** 2,
  gib: 1024 ** 3,
  tib: 1024 ** 4,
};

/** A count of bytes: a whole number, or text with a unit ("24GB", "24GiB", "1.5 TB"). */
export function bytes(min: number, max: number): Kind<number> {
  const range = `write a size from ${showBytes(min)} to ${showBytes(max)}`;
  return {
    describe: `bytes: a whole number or text like \`"24GB"\`, \`"24GiB"\`; ${showBytes(min)} to ${showBytes(max)}`,
    parse(raw, key) {
      const example = `write ${key} = 24_000_000_000 or ${key} = "24GB"`;
      if (typeof raw === "bigint") return inRange(Number(raw), min, max, range);
      if (typeof raw !== "string")
        return wrongType("bytes as a whole number or text with a unit", example);
      const [, digits, unit = ""] = /^\s*(\d[\d_]*(?:\.\d+)?)\s*([A-Za-z]*)\s*$/.exec(raw) ?? [];
      const factor = UNITS[unit.toLowerCase()];
      if (digits === undefined || factor === undefined) {
        return badValue("not a number with a unit (B, KB to TB, KiB to TiB)", example);
      }
      const value = Number(digits.replaceAll("_", "")) * factor;
      return inRange(Math.floor(value), min, max, range);
    },
  };
}

/** The largest binary unit that divides evenly, for texts: 16 MiB. */
export function showBytes(count: number): string {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let step = 0;
  while (value >= 1024 && value % 1024 === 0 && step < names.length - 1) {
    value /= 1024;
    step += 1;
  }
  return `${value} ${names[step] ?? "B"}`;
}

const CONNECT_SAMPLE = "192.168.1.10:50051";

/** `host:port`; IPv6 in brackets. Port 0 (the system chooses) only where one listens. Or `unix:/path`. */
export function address(use: "listen" | "connect"): Kind<Address> {
  const sample = use === "listen" ? "127.0.0.1:50051" : CONNECT_SAMPLE;
  const tcp = tcpOnly(sample, use === "listen" ? 0 : 1);
  return {
    describe: '`"host:port"` or `"unix:/path"`',
    parse(raw, key) {
      const isUnix = typeof raw === "string" && raw.startsWith(UNIX_PREFIX);
      return isUnix ? unixAddress(raw, key) : tcp.parse(raw, key);
    },
  };
}

/** The same without `unix:/path`; `sample` is shown where no better guess can be made. */
export function tcpOnly(sample: string, portMin: number): Kind<Address> {
  return {
    describe: '`"host:port"`',
    parse(raw, key) {
      const fix = `write ${key} = "${suggestAddress(raw, sample)}"`;
      if (typeof raw !== "string") return wrongType('an address "host:port" in quotes', fix);
      return tcpAddress(raw, portMin, fix);
    },
  };
}

/** A list of different addresses `host:port`. */
export function addresses(sample: string, countMax: number): Kind<readonly Address[]> {
  return listOf(tcpOnly(sample, 1), sample, countMax);
}

/** An address to connect to, or a name that stands for several: `dns:host:port`, or `dns:name` of SRV records. */
function vaultAddress(): Kind<Address> {
  const one = address("connect");
  return {
    describe:
      '`"host:port"`, `"unix:/path"`, `"dns:host:port"` (all its addresses), `"dns:name"` (its SRV records), `"pool:host:port"` (all vaults of its pool) or `"etcd:vaults"` (those registered there)',
    parse(raw, key) {
      if (typeof raw !== "string" || !isNames(raw)) return one.parse(raw, key);
      const name = namesIn(raw);
      if (sourceOf(raw) === "etcd") {
        if (name === "vaults") return { value: { host: "", port: 0, text: raw } };
        return badValue("etcd has a list of vaults alone", `write ${key} = "etcd:vaults"`);
      }
      if (sourceOf(raw) === "pool") {
        const seed = tcpAddress(
          name,
          1,
          `write ${key} = "pool:${suggestAddress(name, CONNECT_SAMPLE)}"`,
        );
        return "value" in seed ? { value: { ...seed.value, text: raw } } : seed;
      }
      const fix = `write ${key} = "dns:vaults.example:50051", or "dns:_tierkv._tcp.example" for SRV records`;
      if (isHost(name)) return { value: { host: name, port: 0, text: raw } };
      const parsed = tcpAddress(name, 1, fix);
      return "value" in parsed ? { value: { ...parsed.value, text: raw } } : parsed;
    },
  };
}

/** Addresses to connect to: one, or a list of different ones. */
export function vaultAddresses(countMax: number): Kind<readonly Address[]> {
  const remote = vaultAddress();
  const one: Kind<Address> = {
    describe: `${remote.describe}, or \`"shm:/path"\``,
    parse(raw, key) {
      const isShared = typeof raw === "string" && sharedPath(raw) !== null;
      return isShared ? sharedAddress(raw, key) : remote.parse(raw, key);
    },
  };
  const list = listOf(one, CONNECT_SAMPLE, countMax);
  return {
    describe: `${one.describe}, or a list of them, at most ${countMax}`,
    parse(raw, key) {
      if (Array.isArray(raw)) return list.parse(raw, key);
      const parsed = one.parse(raw, key);
      return "value" in parsed ? { value: [parsed.value] } : parsed;
    },
  };
}

function listOf(one: Kind<Address>, sample: string, countMax: number): Kind<readonly Address[]> {
  return {
    describe: `list of \`"host:port"\`, at most ${countMax}`,
    parse(raw, key) {
      const fix = `write ${key} = ["${sample}"]`;
      if (!Array.isArray(raw)) return wrongType("a list of addresses in brackets", fix);
      if (raw.length > countMax)
        return badValue(`${raw.length} addresses, at most ${countMax}`, fix);
      const parsed = raw.map((item: unknown) => one.parse(item, key));
      const bad = parsed.find((item) => "problem" in item);
      if (bad !== undefined && "problem" in bad) return bad;
      const value = parsed.flatMap((item) => ("value" in item ? [item.value] : []));
      const texts = value.map(({ text }) => text);
      const twice = texts.find((text, index) => texts.indexOf(text) !== index);
      return twice === undefined ? { value } : badValue(`${twice} stands there twice`, fix);
    },
  };
}

function tcpAddress(raw: string, portMin: number, fix: string): Parsed<Address> {
  const [, host = "", port] = /^(.*):(\d+)$/.exec(raw) ?? [];
  if (raw.includes("://")) return badValue("an address has no scheme", fix);
  if (port === undefined || isIPv6(raw)) return badValue("the port is missing", fix);
  const bare = host.replace(/^\[(.*)\]$/, "$1");
  const isBracketed = bare !== host;
  if (isBracketed ? !isIPv6(bare) : !isHost(bare)) {
    const reason = `"${host}" is not a host name or IP address`;
    return badValue(host === "" ? "the host is missing" : reason, fix);
  }
  const number = Number(port);
  if (number < portMin || number > 65_535) {
    return badValue(`port ${port} is not ${portMin} to 65535`, fix);
  }
  return { value: { host: bare, port: number, text: `${host}:${number}` } };
}

const UNIX_PREFIX = "unix:";

/** Memory that the sidecars of this machine share. */
function sharedAddress(raw: string, key: string): Parsed<Address> {
  const file = sharedPath(raw) ?? "";
  const bytesMax = SHARED_PATH_BYTES_MAX;
  if (process.platform !== "linux") {
    return badValue("shared memory needs Linux", `write ${key} = "${CONNECT_SAMPLE}"`);
  }
  if (!/^\/[^\0]+$/.test(file) || Buffer.byteLength(file) > bytesMax) {
    const fix = `write ${key} = "shm:/dev/shm/tierkv"`;
    return badValue(`not an absolute path of at most ${bytesMax} bytes behind shm:`, fix);
  }
  return { value: { host: "", port: 0, text: raw } };
}

function unixAddress(raw: string, key: string): Parsed<Address> {
  const file = raw.slice(UNIX_PREFIX.length);
  const bytesMax = VAULT_SOCKET_BYTES_MAX;
  if (!/^\/[^\0]+$/.test(file)) {
    return badValue("not an absolute path behind unix:", `write ${key} = "unix:/absolute/path"`);
  }
  const size = Buffer.byteLength(file);
  if (size > bytesMax) {
    return badValue(`a path of ${size} bytes, the limit is ${bytesMax}`, "choose a shorter path");
  }
  return { value: { host: "", port: 0, text: raw } };
}

function isHost(host: string): boolean {
  if (/^[\d.]+$/.test(host)) return isIPv4(host);
  return host.length <= 253 && /^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$/.test(host);
}

/** What was probably meant: the given host with the given or a usual port. */
function suggestAddress(raw: unknown, sample: string): string {
  const port = sample.slice(sample.lastIndexOf(":") + 1);
  if (typeof raw === "object" && raw !== null && "host" in raw && typeof raw.host === "string") {
    return "port" in raw && typeof raw.port === "bigint"
      ? `${raw.host}:${raw.port}`
      : `${raw.host}:${port}`;
  }
  if (typeof raw !== "string") return sample;
  const plain = raw
    .trim()
    .replace(/^\w+:\/\//, "")
    .replace(/\/.*$/, "");
  if (isIPv6(plain)) return `[${plain}]:${port}`;
  const host = plain.replace(/:.*$/, "");
  return isHost(host) ? `${host}:${port}` : sample;
}

const SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400 };

/** Seconds as people write them: `30m`, `2h`, `7d`. */
export function duration(maxS: number): Kind<number> {
  return {
    describe: "a number with s, m, h or d",
    parse(raw, key) {
      const fix = `write ${key} = 2h`;
      const [, digits, unit = ""] = /^(\d{1,9})([smhd])$/.exec(String(raw)) ?? [];
      if (digits === undefined) return badValue("not a number with s, m, h or d", fix);
      return inRange(
        Number(digits) * (SECONDS[unit] ?? 1),
        1,
        maxS,
        `${fix}, at most ${maxS / 86_400}d`,
      );
    },
  };
}

export const httpUrl: Kind<string> = {
  describe: "URL of `http` or `https`",
  parse(raw, key) {
    const fix = `write ${key} = "http://127.0.0.1:4318"`;
    if (typeof raw !== "string") return wrongType("a URL in quotes", fix);
    const isUrl = /^https?:\/\//.test(raw) && URL.canParse(raw);
    return isUrl ? { value: raw } : badValue("not a URL of http or https", fix);
  },
};

/** Where a vault's archive is: a bucket, or a directory. */
export function archiveUrl(bytesMax: number): Kind<string> {
  return {
    describe: '`"s3://bucket/prefix"` or `"file:///directory"`',
    parse(raw, key) {
      const fix = `write ${key} = "s3://bucket/prefix" or ${key} = "file:///mnt/archive"`;
      if (typeof raw !== "string") return wrongType("a URL in quotes", fix);
      if (Buffer.byteLength(raw) > bytesMax) return badValue(`longer than ${bytesMax} bytes`, fix);
      const isBucket = /^s3:\/\/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:\/[\w!.*'()-]+)*\/?$/i.test(raw);
      const isKnown = isBucket && !/\/\.{1,2}(?:\/|$)/.test(raw);
      if (isKnown || /^file:\/\/\/[^\0]+$/.test(raw)) return { value: raw };
      return badValue("not a bucket, and not an absolute directory", fix);
    },
  };
}

/** An absolute path; `~/` is the home directory. Relative ones are refused: shim and sidecar run in different directories. */
export function path(bytesMax: number): Kind<string> {
  return {
    describe: "absolute path; `~/` is the home directory",
    parse(raw, key) {
      if (typeof raw !== "string")
        return wrongType("a path in quotes", `write ${key} = "/absolute/path"`);
      const full = raw.startsWith("~/") ? join(homedir(), raw.slice(2)) : raw;
      if (!full.startsWith("/") || full.includes("\0")) {
        return badValue(
          "not an absolute path",
          `write ${key} = "/absolute/path" or ${key} = "~/path"`,
        );
      }
      const size = Buffer.byteLength(full);
      if (size > bytesMax)
        return badValue(`${size} bytes long, the limit is ${bytesMax}`, "choose a shorter path");
      return { value: full };
    },
  };
}

/** `NAME=NUMBER`, each name once. */
export function numbered(countMax: number, most: number): Kind<ReadonlyMap<string, number>> {
  const fix = 'write a list such as ["chat=10", "batch=-1"]';
  return {
    describe: `list of \`NAME=NUMBER\`, at most ${countMax}`,
    parse(raw) {
      if (!Array.isArray(raw)) return wrongType("a list", fix);
      const found = new Map<string, number>();
      for (const one of raw as unknown[]) {
        const [, name = "", digits = ""] = /^([\w.-]{1,64})=(-?\d{1,9})$/.exec(String(one)) ?? [];
        if (name === "" || Math.abs(Number(digits)) > most) {
          return badValue(`${String(one)} is no NAME=NUMBER from -${most} to ${most}`, fix);
        }
        found.set(name, Number(digits));
      }
      if (found.size !== raw.length || raw.length > countMax) {
        return badValue(`a name twice, or more than ${countMax}`, fix);
      }
      return { value: found };
    },
  };
}

/** Plain words: ASCII without spaces. */
export function label(charsMax: number): Kind<string> {
  return {
    describe: `text without spaces, at most ${charsMax} characters`,
    parse(raw, key) {
      const fix = `write ${key} = "tierkv"`;
      if (typeof raw !== "string") return wrongType("text in quotes", fix);
      const isPlain = /^[\x21-\x7e]+$/.test(raw) && raw.length <= charsMax;
      return isPlain
        ? { value: raw }
        : badValue(`not 1 to ${charsMax} characters without spaces`, fix);
    },
  };
}
