// Owns the kinds of values a key can have: how each is read from TOML, and its errors.
import { homedir } from "node:os";
import { join } from "node:path";
import { nearest } from "./nearest.ts";

/** Why a value was refused. `expected` is the right type; `reason` tells why a value of the right type is impossible. */
export type Problem = { fix: string } & ({ expected: string } | { reason: string });

export type Parsed<T> = { value: T } | { problem: Problem };

/** One kind of value. With `key`, the fix can be copied into the file. */
export interface Kind<T> {
  /** Valid values, for the docs. */
  describe: string;
  parse(raw: unknown, key: string): Parsed<T>;
}

export const wrongType = (expected: string, fix: string): { problem: Problem } => ({
  problem: { expected, fix },
});
export const badValue = (reason: string, fix: string): { problem: Problem } => ({
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

/** The parser gives integers as bigints, so that 1.0 is not taken for 1. */
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

/** The parser gives whole numbers as bigints. */
export function decimal(min: number, max: number): Kind<number> {
  return {
    describe: `number, ${min} to ${max}`,
    parse(raw, key) {
      const fix = `write ${key} = a number from ${min} to ${max}, like 0.0001`;
      if (typeof raw !== "bigint" && typeof raw !== "number") {
        return wrongType("a number without quotes", fix);
      }
      const value = Number(raw);
      if (value >= min && value <= max) return { value };
      return badValue(`not from ${min} to ${max}`, fix);
    },
  };
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

/** Shows a count in the largest binary unit that divides it: 16 MiB. */
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

const SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400 };

/** Seconds written as `30m`, `2h`, `7d`. */
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

const NO_ARCHIVE =
  "not a bucket (a name of 3 to 63 letters, digits, dots and hyphens), and not an absolute directory";

/** The place of a vault's archive: a bucket, or a directory. */
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
      return badValue(NO_ARCHIVE, fix);
    },
  };
}

/** An absolute path; `~/` is the home directory. Relative ones are refused, because shim and sidecar run in different directories. */
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

/** A list of `NAME=VALUE`, each name once. `one` reads an item of it. */
function byName<T>(
  what: string,
  countMax: number,
  example: string,
  one: (text: string, fix: string, key: string) => Parsed<readonly [name: string, value: T]>,
): Kind<ReadonlyMap<string, T>> {
  const fix = `write a list such as ${example}`;
  return {
    describe: `list of \`${what}\`, at most ${countMax}`,
    parse(raw, key) {
      if (!Array.isArray(raw)) return wrongType("a list", fix);
      const found = new Map<string, T>();
      for (const item of raw as unknown[]) {
        const parsed = one(String(item), fix, key);
        if ("problem" in parsed) return parsed;
        found.set(...parsed.value);
      }
      if (found.size === raw.length && raw.length <= countMax) return { value: found };
      return badValue(`a name twice, or more than ${countMax}`, fix);
    },
  };
}

/** `NAME=NUMBER`. */
export function numbered(countMax: number, most: number): Kind<ReadonlyMap<string, number>> {
  return byName("NAME=NUMBER", countMax, '["chat=10", "batch=-1"]', (text, fix) => {
    const [, name = "", digits = ""] = /^([\w.-]{1,64})=(-?\d{1,9})$/.exec(text) ?? [];
    if (name !== "" && Math.abs(Number(digits)) <= most) return { value: [name, Number(digits)] };
    return badValue(`${text} is no NAME=NUMBER from -${most} to ${most}`, fix);
  });
}

/** Folders by name: a name may have slashes and colons, and ends at the first `=`. */
export function folders(countMax: number, bytesMax: number): Kind<ReadonlyMap<string, string>> {
  const folderAt = path(bytesMax);
  return byName("NAME=/FOLDER", countMax, '["MODEL=/models/its-folder"]', (text, fix, key) => {
    const [, name = "", folder = ""] = /^([^=]{1,256})=(.+)$/.exec(text) ?? [];
    if (name === "") return badValue(`${text} is no NAME=/FOLDER`, fix);
    const parsed = folderAt.parse(folder, key);
    if (!("problem" in parsed)) return { value: [name, parsed.value] };
    return badValue(`${text} has no absolute path of at most ${bytesMax} bytes`, fix);
  });
}

/** A list of origins of web pages: scheme, host and, where it is not the scheme's own, port; or "*". */
export function origins(countMax: number): Kind<readonly string[]> {
  const sample = '"https://chat.example"';
  const isOrigin = (one: string): boolean =>
    one === "*" || (URL.canParse(one) && new URL(one).origin === one);
  return {
    describe: `list of at most ${countMax} origins like \`${sample}\`, or of \`"*"\``,
    parse(raw, key) {
      const fix = `write ${key} = [${sample}]`;
      if (!Array.isArray(raw) || !raw.every((one) => typeof one === "string")) {
        return wrongType("a list of texts", fix);
      }
      if (raw.length > countMax) return badValue(`more than ${countMax} origins`, fix);
      const wrong = raw.find((one) => !isOrigin(one));
      return wrong === undefined
        ? { value: raw }
        : badValue(`${JSON.stringify(wrong)} is no origin: no path, no slash at the end`, fix);
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
