// Owns the text of docs/limits.md: limits that an operator can meet, from the limits files.
import { readFileSync } from "node:fs";

interface Limit {
  name: string;
  value: string;
  why: string;
}

interface Origin {
  title: string;
  path: string;
  /** Matches one limit: groups `why` (may be absent), `name`, `value`. */
  pattern: RegExp;
  /** Names of the listed limits, separated by white space. */
  met: string;
}

const TYPESCRIPT =
  /(?:^\/\*\* (?<why>.+) \*\/\n)?^export const (?<name>\w+)(?:: \w+)? = (?<value>[^;]+);/gm;

const SHIM = /(?:^#: (?<why>.+)\n)?^(?<name>[A-Z]+_\w+): Final = (?<value>.+)$/gm;
const CORE = /(?:^\/\/\/ (?<why>.+)\n)?^pub const (?<name>\w+): \w+ = (?<value>[^;]+);/gm;

/** Limits that an operator can meet: named in an error or status line, or used to size a machine. */
const ORIGINS: readonly Origin[] = [
  {
    title: "Sidecar, vault and commands",
    path: "src/base/limits/general.ts",
    pattern: TYPESCRIPT,
    met: `RECORD_BYTES_MAX SHIM_CONNECTIONS_MAX VAULT_CONNECTIONS_MAX VAULT_PEER_CONNECTIONS_MAX
      VAULT_STREAMS_MAX VAULT_MODELS_MAX GROUPS_MAX WORLD_MAX BREAKER_FAILURES
      VAULT_DRAIN_MS DRAIN_TIMEOUT_MS FLUSHES_KEPT_MAX WATCHERS_MAX CONFIG_FILE_BYTES_MAX DISK_FREE_SHARE
      ARENA_BYTES_DEFAULT ARENA_FREE_SHARE SOCKET_PATH_BYTES_MAX SIDECAR_SOCKET_BYTES_MAX VAULT_FREE_SHARE
      LOCAL_VAULT_FREE_SHARE OPEN_FILES_MIN ARENA_SLOTS_MIN SAVE_QUEUE_BYTES_MAX PLANS_MAX PLAN_KEYS_MAX
      SCRAPE_CONNECTIONS_MAX SCRAPE_ADDRESS_CONNECTIONS_MAX`,
  },
  {
    title: "Sessions",
    path: "src/base/limits/sessions.ts",
    pattern: TYPESCRIPT,
    met: "SESSIONS_MAX SESSION_NAME_BYTES_MAX KEEP_S_MAX",
  },
  {
    title: "Gateway",
    path: "src/base/limits/gateway.ts",
    pattern: TYPESCRIPT,
    met: `GATEWAY_ENGINES_MAX GATEWAY_CONNECTIONS_MAX GATEWAY_HEADER_BYTES_MAX GATEWAY_BODY_BYTES_MAX
      GATEWAY_BODY_PARTS_MAX GATEWAY_BODIES_BYTES_MAX GATEWAY_BODIES_SHARE GATEWAY_REQUEST_MS GATEWAY_COMMENT_MS
      GATEWAY_RESPONSES_KEPT_MAX GATEWAY_CLIENT_STALL_MS GATEWAY_CONNECT_MS GATEWAY_WAITING_MAX GATEWAY_TRIES_MAX
      GATEWAY_LOSSES_MAX GATEWAY_HEALTH_FAILURES GATEWAY_STALL_MS GATEWAY_MODELS_MAX GATEWAY_DRAIN_MS_DEFAULT
      GATEWAY_INDEX_BLOCKS_MAX GATEWAY_TOKENIZE_CHARS_MIN GATEWAY_ENCODE_CHARS_MAX GATEWAY_KEYS_MAX`,
  },
  {
    title: "Shim",
    path: "python-shim/tierkv/connectors/vllm/limits.py",
    pattern: SHIM,
    met: "SAVE_BYTES_PER_STEP_MAX LOAD_BYTES_PER_STEP_MAX REQUESTS_MAX WEIGHT_FILES_MAX AMX_FIRST_TOKENS AUTOSTART_EVERY_S",
  },
  {
    title: "Native core",
    path: "crates/core/src/limits.rs",
    pattern: CORE,
    met: `PAGE_BYTES_MAX OUTBOX_BYTES_MAX INBOX_BYTES_MAX STORE_TENANTS_MAX LANE_CONNECTIONS_MAX
      LISTENER_SETTLED_MAX LISTENER_SETTLED_EACH_MAX LISTENER_WAITING_MAX LISTENER_DEADLINE_MS SEAL_KEYS_MAX
      DISK_QUEUE_BYTES_MAX DISK_NAMESPACES_MAX DISK_FULL_PATIENCE_MS DISK_STALL_MS`,
  },
];

/** Throws for a name that the file lacks. */
function limitsOf({ path, pattern, met }: Origin): Limit[] {
  const text = readFileSync(new URL(`../../${path}`, import.meta.url), "utf8");
  const all = new Map<string, Limit>();
  for (const { groups } of text.matchAll(pattern)) {
    const name = groups?.["name"] ?? "";
    all.set(name, { name, value: plain(groups?.["value"] ?? ""), why: groups?.["why"] ?? "" });
  }
  return met.split(/\s+/).map((name) => {
    const limit = all.get(name);
    if (limit === undefined) throw new Error(`${path} has no limit ${name}`);
    return limit;
  });
}

/** Returns `4 * MIB`, `64 << 10` and `2_000` in readable form. */
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

/** Returns the whole docs/limits.md. */
export function renderLimitsPage(): string {
  const sections = ORIGINS.map((origin) => {
    const rows = limitsOf(origin).map(
      ({ name, value, why }) => `| \`${name}\` | ${value} | ${why} |`,
    );
    return `## ${origin.title}\n\n\`${origin.path}\`\n\n| limit | value | why |\n|---|---|---|\n${rows.join("\n")}`;
  });
  const head = `# Limits

<!-- Made from the files named below by test/base/limits/general.test.ts, which also says how to renew it. -->

Everything that could grow or wait has a ceiling with a name, a constant in the files below; here are those that an operator can meet.
The unit is the last part of the name but for \`MAX\`, \`MIN\` and \`DEFAULT\`; a bare number is a count. Settings stand in [config.md](config.md).`;
  return `${[head, ...sections].join("\n\n")}\n`;
}
