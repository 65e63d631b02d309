// Owns the text of docs/limits.md, made from the files of limits.
import { readFileSync } from "node:fs";

interface Limit {
  name: string;
  value: string;
  why: string;
}

interface Origin {
  title: string;
  path: string;
  /** Finds one limit: groups `why` (may be absent), `name`, `value`. */
  pattern: RegExp;
}

const TYPESCRIPT =
  /(?:^\/\*\* (?<why>.+) \*\/\n)?^export const (?<name>\w+)(?:: \w+)? = (?<value>[^;]+);/gm;

const ORIGINS: readonly Origin[] = [
  { title: "Sidecar, vault and commands", path: "src/limits.ts", pattern: TYPESCRIPT },
  { title: "Who gets in", path: "src/limits-access.ts", pattern: TYPESCRIPT },
  { title: "Offering again", path: "src/limits-again.ts", pattern: TYPESCRIPT },
  { title: "Cost model", path: "src/limits-pace.ts", pattern: TYPESCRIPT },
  { title: "Check of truth", path: "src/limits-truth.ts", pattern: TYPESCRIPT },
  { title: "Commands", path: "src/limits-tools.ts", pattern: TYPESCRIPT },
  {
    title: "Shim",
    path: "python-shim/tierkv/connectors/vllm/limits.py",
    pattern: /(?:^#: (?<why>.+)\n)?^(?<name>[A-Z]+_\w+): Final = (?<value>.+)$/gm,
  },
  {
    title: "Native core",
    path: "crates/core/src/limits.rs",
    pattern: /(?:^\/\/\/ (?<why>.+)\n)?^pub const (?<name>\w+): \w+ = (?<value>[^;]+);/gm,
  },
];

function limitsOf({ path, pattern }: Origin): Limit[] {
  const text = readFileSync(new URL(`../../${path}`, import.meta.url), "utf8");
  return [...text.matchAll(pattern)].map(({ groups }) => ({
    name: groups?.["name"] ?? "",
    value: plain(groups?.["value"] ?? ""),
    why: groups?.["why"] ?? "",
  }));
}

/** `4 * MIB`, `64 << 10` and `2_000` as people write them. */
function plain(value: string): string {
  return value
    .replace(/ as u64$/, "")
    .replace(
      /^(\d+) << (\d+)$/,
      (_all, base: string, shift: string) => `${Number(base) * 2 ** Number(shift)}`,
    )
    .replace(/ \* ([KMG])IB$/, " $1iB")
    .replace(/^([KMG])IB$/, "1 $1iB")
    .replace(/^[\d_.]+$/, (number) => number.replaceAll("_", ""));
}

/** docs/limits.md, whole. */
export function renderLimitsPage(): string {
  const sections = ORIGINS.map((origin) => {
    const rows = limitsOf(origin).map(
      ({ name, value, why }) => `| \`${name}\` | ${value} | ${why} |`,
    );
    return `## ${origin.title}\n\n\`${origin.path}\`\n\n| limit | value | why |\n|---|---|---|\n${rows.join("\n")}`;
  });
  const head = `# Limits

<!-- Made from the files named below by test/limits.test.ts, which also says how to renew it. -->

Everything that could grow or wait has a ceiling, and every ceiling has a name. The unit is the last part of the name but for \`MAX\`, \`MIN\`
and \`DEFAULT\`; a bare number is a count. They are constants of the release, not settings; settings stand in [config.md](config.md).`;
  return `${[head, ...sections].join("\n\n")}\n`;
}
