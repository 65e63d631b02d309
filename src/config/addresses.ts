// Owns the kinds of values that are addresses: of vaults, engines and listeners, single or in lists, with the likely fix.
import { isIP, isIPv4, isIPv6 } from "node:net";
import {
  isNames,
  namesIn,
  sharedPath,
  sourceOf,
  storeKind,
  unixPath,
  valkeyHosts,
} from "../base/hosts.ts";
import { STORE_ADDRESS_MAX } from "../base/limits/cold.ts";
import { VAULT_SOCKET_BYTES_MAX } from "../base/limits/general.ts";
import { SHARED_PATH_BYTES_MAX } from "../base/limits/shared.ts";
import type { Address } from "./config.ts";
import { badValue, wrongType } from "./kinds.ts";
import type { Kind, Parsed, Problem } from "./kinds.ts";
import { showValue } from "./show.ts";

const CONNECT_SAMPLE = "192.168.1.10:50051";

/** `host:port`; IPv6 in brackets. Port 0 (the system chooses) only to listen. Or `unix:/path`. */
export function address(
  use: "listen" | "connect",
  sample: string = use === "listen" ? "127.0.0.1:50051" : CONNECT_SAMPLE,
): Kind<Address> {
  const tcp = tcpOnly(sample, use === "listen" ? 0 : 1);
  return {
    describe: '`"host:port"` or `"unix:/path"`',
    parse(raw, key) {
      const socket = typeof raw === "string" ? unixPath(raw) : null;
      return socket === null ? tcp.parse(raw, key) : unixAddress(socket, key);
    },
  };
}

/** The same without `unix:/path`; `sample` is shown where there is no better guess. */
export function tcpOnly(sample: string, portMin: number): Kind<Address> {
  return {
    describe: '`"host:port"`',
    parse(raw, key) {
      const fix = `write ${key} = "${suggestAddress(raw, sample)}"`;
      if (typeof raw !== "string") return wrongType('an address "host:port" in quotes', fix);
      if (unixPath(raw) !== null) {
        return badValue("other machines do not reach a Unix socket", `write ${key} = "${sample}"`);
      }
      return tcpAddress(raw, portMin, fix);
    },
  };
}

/** A list of different addresses; `one`: their kind. */
export function addresses(
  sample: string,
  countMax: number,
  one: Kind<Address> = tcpOnly(sample, 1),
): Kind<readonly Address[]> {
  return listOf(one, sample, countMax);
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
    describe: `${remote.describe}, \`"valkeys://host:6379"\`, \`"s3://bucket/prefix"\`, or \`"shm:/path"\``,
    parse(raw, key) {
      if (typeof raw === "string" && storeKind(raw) !== null) return storeAddress(raw, key);
      const memory = typeof raw === "string" ? sharedPath(raw) : null;
      return memory === null ? remote.parse(raw, key) : sharedAddress(memory, key);
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

/** Different IP addresses of this machine, without ports. */
export function ownAddresses(countMax: number, sample: string): Kind<readonly string[]> {
  return {
    describe: `list of IP addresses, at most ${countMax}`,
    parse(raw, key) {
      const fix = `write ${key} = ["${sample}"]`;
      if (!Array.isArray(raw) || !raw.every((one) => typeof one === "string"))
        return wrongType("a list of IP addresses in quotes, in brackets", fix);
      if (raw.length > countMax) return tooMany(raw.length, countMax, fix);
      const named = raw.find((one) => isIP(one) === 0);
      if (named !== undefined) return badValue(`${named} is no IP address`, fix);
      return allDifferent(raw, raw, key);
    },
  };
}

const tooMany = (count: number, most: number, fix: string): Parsed<never> =>
  badValue(`${count} addresses, at most ${most}`, fix);

function allDifferent<T>(value: T, texts: readonly string[], key: string): Parsed<T> {
  const twice = texts.find((text, index) => texts.indexOf(text) !== index);
  if (twice === undefined) return { value };
  const once = [...new Set(texts)];
  const fix =
    once.length > LIST_SHOWN_MAX
      ? `leave one "${twice}" out`
      : `write ${key} = [${once.map((text) => showValue(text)).join(", ")}]`;
  return badValue(`${twice} stands there twice`, fix);
}

function listOf(one: Kind<Address>, sample: string, countMax: number): Kind<readonly Address[]> {
  return {
    describe: `list of ${one.describe}, at most ${countMax}`,
    parse(raw, key) {
      const fix = `write ${key} = ["${sample}"]`;
      if (!Array.isArray(raw)) {
        const meant = `write ${key} = ["${suggestAddress(raw, sample)}"]`;
        return wrongType("a list of addresses in brackets", meant);
      }
      if (raw.length > countMax) return tooMany(raw.length, countMax, fix);
      const parsed = raw.map((item: unknown) => one.parse(item, key));
      const at = parsed.findIndex((item) => "problem" in item);
      const bad = parsed[at];
      if (bad !== undefined && "problem" in bad) return inList(bad, raw, at);
      const value = parsed.flatMap((item) => ("value" in item ? [item.value] : []));
      const texts = value.map(({ text }) => text);
      return allDifferent(value, texts, key);
    },
  };
}

/** Turns the fix for one item into a fix for the list, with the other items unchanged. */
function inList(
  { problem }: { problem: Problem },
  raw: readonly unknown[],
  at: number,
): Parsed<never> {
  const [, before, one] = /^(write .+ = )("[^"]*")$/.exec(problem.fix) ?? [];
  if (before === undefined || raw.length > LIST_SHOWN_MAX) return { problem };
  const items = raw.map((item, place) => (place === at ? one : showValue(item)));
  return { problem: { ...problem, fix: `${before}[${items.join(", ")}]` } };
}

const LIST_SHOWN_MAX = 8;

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

/** Memory that the sidecars of this machine share. */
function sharedAddress(file: string, key: string): Parsed<Address> {
  const bytesMax = SHARED_PATH_BYTES_MAX;
  if (process.platform !== "linux") {
    return badValue("shared memory needs Linux", `write ${key} = "${CONNECT_SAMPLE}"`);
  }
  if (!/^\/[^\0]+$/.test(file) || Buffer.byteLength(file) > bytesMax) {
    const fix = `write ${key} = "shm:/dev/shm/tierkv"`;
    return badValue(`not an absolute path of at most ${bytesMax} bytes behind shm:`, fix);
  }
  return { value: { host: "", port: 0, text: `shm:${file}` } };
}

/** `valkey://host:port[,host:port...][/database]`, the same with `valkeys://`, or `s3://bucket[/prefix]`. */
function storeAddress(text: string, key: string): Parsed<Address> {
  const fix = `write ${key} = "valkey://host:6379", "valkeys://host:6379" for TLS, or "s3://bucket/prefix"`;
  if (text.length > STORE_ADDRESS_MAX) {
    return badValue(`more than ${STORE_ADDRESS_MAX} characters`, fix);
  }
  return storeKind(text) === "s3" ? bucketAddress(text, fix) : valkeyAddress(text, fix);
}

function bucketAddress(text: string, fix: string): Parsed<Address> {
  const isBucket = /^s3:\/\/[a-z0-9][a-z0-9.-]*(\/[\w!.*'()/-]*)?$/.test(text);
  return isBucket ? { value: { host: "", port: 0, text } } : badValue("no bucket and prefix", fix);
}

function valkeyAddress(text: string, fix: string): Parsed<Address> {
  const place = text.slice(text.indexOf("://") + "://".length);
  if (place.includes("@")) {
    const reason = "user and password stand in store_user and store_password";
    return badValue(`${reason}, or in VALKEY_USERNAME and VALKEY_PASSWORD`, fix);
  }
  const [, database = "0", ...rest] = place.split("/");
  if (rest.length > 0 || !/^\d*$/.test(database)) return badValue("no number of a database", fix);
  const hosts = valkeyHosts(text).map((host) => tcpAddress(host, 1, fix));
  const bad = hosts.find((parsed) => !("value" in parsed));
  if (bad !== undefined) return bad;
  const [first] = hosts;
  return first !== undefined && "value" in first
    ? { value: { ...first.value, text } }
    : badValue("no host", fix);
}

function unixAddress(file: string, key: string): Parsed<Address> {
  const bytesMax = VAULT_SOCKET_BYTES_MAX;
  if (!/^\/[^\0]+$/.test(file)) {
    return badValue("not an absolute path behind unix:", `write ${key} = "unix:/absolute/path"`);
  }
  const size = Buffer.byteLength(file);
  if (size > bytesMax) {
    return badValue(`a path of ${size} bytes, the limit is ${bytesMax}`, "choose a shorter path");
  }
  return { value: { host: "", port: 0, text: `unix:${file}` } };
}

function isHost(host: string): boolean {
  if (/^[\d.]+$/.test(host)) return isIPv4(host);
  return host.length <= 253 && /^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$/.test(host);
}

/** The likely meaning: the given host with the given or a usual port. */
function suggestAddress(raw: unknown, sample: string): string {
  const port = sample.slice(sample.lastIndexOf(":") + 1);
  if (typeof raw === "object" && raw !== null && "host" in raw && typeof raw.host === "string") {
    return "port" in raw && typeof raw.port === "bigint"
      ? `${raw.host}:${raw.port}`
      : `${raw.host}:${port}`;
  }
  return typeof raw === "string" ? (suggestFor(raw, port) ?? sample) : sample;
}

function suggestFor(raw: string, port: string): string | null {
  const plain = raw
    .trim()
    .replace(/^\w+:\/\//, "")
    .replace(/\/.*$/, "");
  if (isIPv6(plain)) return `[${plain}]:${port}`;
  const [, host = "", given = port] = /^([^:]*)(?::(.*))?$/.exec(plain) ?? [];
  return isHost(host) ? `${host}:${isPort(given) ? given : port}` : null;
}

function isPort(text: string): boolean {
  return /^[1-9]\d{0,4}$/.test(text) && Number(text) <= 65_535;
}
