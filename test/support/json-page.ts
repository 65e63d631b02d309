// Owns the text of docs/json.md: the fields that commands print with --json, from the interfaces in the source.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { JSON_SCHEMA } from "../../src/cli/shell/call.ts";

interface Field {
  name: string;
  type: string;
  /** Its comment in the source; empty: it has none. */
  meaning: string;
}

/** Headings of the page, each with the file of its interface, and behind a colon its name where that is not the heading. */
const INTERFACES: Readonly<Record<string, string>> = {
  Finding: "diagnosis/findings",
  TargetStatus: "diagnosis/inspect",
  Pooled: "diagnosis/inspect",
  Travel: "diagnosis/inspect",
  SidecarStatus: "sidecar/status",
  VaultStatus: "sidecar/status",
  VaultSeen: "sidecar/vaults/vault-watch",
  DiskSeen: "sidecar/vaults/vault-watch",
  StoreNode: "client/source",
  EngineStatus: "sidecar/engine/engine-status",
  Forecast: "sidecar/restore/forecast",
  Footprint: "sidecar/restore/forecast",
  LedgerStatus: "sidecar/trace/ledger",
  ReuseStatus: "sidecar/trace/reuse",
  Account: "sidecar/trace/decisions",
  Times: "sidecar/trace/decisions",
  Divergence: "sidecar/socket/divergence",
  Form: "sidecar/save/codec-choice",
  Outlook: "cli/commands/doctor",
  Allowance: "cli/doctor/allowance",
  RailBench: "cli/doctor/rails",
  VaultBench: "cli/bench/bench-vault",
  RecordRate: "cli/bench/bench-vault",
  PromptCost: "cli/bench/bench-vault",
  Spread: "cli/bench/bench-vault",
  FarEngine: "cli/doctor/far-engine",
  Pace: "cli/doctor/far-engine",
  FarOutlook: "cli/doctor/far-advice",
  FlushReply: "wire/messages",
  FlushedSidecar: "wire/messages",
  DiskStats: "wire/messages",
  ArchiveStats: "wire/messages",
  ShownFleet: "gateway/control",
  ShownEngine: "gateway/control",
  GatewayEngine: "gateway/engines/engine:EngineStatus",
  Recent: "gateway/score/decisions",
};

/** Fields of each command's result beside `schema`. */
const COMMANDS: readonly [command: string, fields: string][] = [
  [
    "status",
    "`ok`, `config` (path of the file, or null), `findings` (Finding[]), `targets` (TargetStatus[]; their `pools` also have `address`, `share`, `holes` and `moved` of VaultStatus)",
  ],
  ["top", "`ok`, `findings`, `status` (SidecarStatus, or null), `fleet` (ShownFleet, or null)"],
  [
    "explain",
    "`requests`: Account[], each with `forms` (Form[], with `address`) and `fidelity`; its `divergence` also has `cause`, `role` and `text`",
  ],
  ["vaults ls", "`vaults`: VaultStatus[], each with `class`"],
  [
    "vaults drain",
    "`address`, `drained`: for each class `moved`, `present` and, by reason, `left` (each `records` and `bytes`), `evicted`",
  ],
  [
    "doctor",
    "`helps`, `next` (what to do), `findings`, `vaults` (VaultBench[], each with `rails`: RailBench[]), `engines`: `engine`, `model`, `prompts` (Outlook[]), `allows` (Allowance, or null)",
  ],
  [
    "doctor --engine",
    "`helps`, `change`, `engine` (FarEngine), `prompts` (FarOutlook[], each with the fields of Pace)",
  ],
  ["bench", "`ok`, `config`, `targets` (VaultBench[])"],
  [
    "flush",
    "`flushed`: FlushReply[], each with `target`, `address`, `byHand` (command that removes a bucket's objects, or null) `error` (null: none) and `later` (true: it was away, and its pool tells it)",
  ],
  [
    "config check",
    "`ok`, `path`, `problems`, `notes`, `folders`, `config` (null where it is refused)",
  ],
  ["gateway status", "the fields of ShownFleet; each engine also has the fields of GatewayEngine"],
  ["peers", "`peers`: `name`, `role`, `joined`, `seen`, `address`"],
  ["vault, sidecar, gateway, top --web", "one object when it is ready: `event` is `ready`"],
];

/** Returns the whole docs/json.md. */
export function renderJsonPage(): string {
  const sections = Object.entries(INTERFACES).map(([name, file]) => {
    const rows = fieldsOf(name, file).map(
      ({ name: field, type, meaning }) => `| \`${field}\` | \`${cell(type)}\` | ${cell(meaning)} |`,
    );
    return [`## ${name}`, ["| field | type | meaning |", "|---|---|---|", ...rows].join("\n")].join(
      "\n\n",
    );
  });
  return [
    "# Results as JSON",
    "<!-- Made from the interfaces in src/ by test/cli/shell/call.json.test.ts, which also says how to renew it. -->",
    `With \`--json\` a command prints one JSON object, and a program that runs on prints one when it is ready. Every object has \`schema\`, now ${JSON_SCHEMA}: it rises when a field changes
its meaning or goes; new fields do not change it. A failed command prints \`error\` with \`code\`, \`message\` and what the message names ([errors](errors.md)). Exit codes are those without \`--json\`.
Bytes are whole numbers; \`Ms\` and \`S\` end names of milliseconds and seconds; \`null\` means not known, or not there, unless the field says otherwise.`,
    [
      "| command | fields |",
      "|---|---|",
      ...COMMANDS.map(([command, fields]) => `| ${command} | ${fields} |`),
    ].join("\n"),
    ...sections,
    "",
  ]
    .join("\n\n")
    .replace(/\n+$/, "\n");
}

const cell = (text: string): string => text.replaceAll("|", "\\|");

/** Returns the fields of the interface of a heading; a comment holds for the next field. Throws where there is none of that name. */
function fieldsOf(heading: string, place: string): Field[] {
  const [file = "", name = heading] = place.split(":");
  const path = fileURLToPath(new URL(`../../src/${file}.ts`, import.meta.url));
  const source = readFileSync(path, "utf8");
  const [, body] =
    new RegExp(`^export interface ${name}\\b[^{]*\\{\\n(.*?)^\\}`, "ms").exec(source) ?? [];
  if (body === undefined) throw new Error(`${file} has no interface ${name}`);
  // A type of several lines ends with a brace in the column of its field.
  const member = /(?:^ {2}\/\*\*(.*?)\*\/\n)?^ {2}(\w+)\??: (\{\n.*?^ {2}\}[^\n]*?|.*?);$/gms;
  return [...body.matchAll(member)].map(([, comment = "", field = "", type = ""]) => ({
    name: field,
    type: type.replaceAll(/\s*\/\*\*.*?\*\//gs, "").replaceAll(/\s+/g, " "),
    meaning: comment.replaceAll(/\s*\n\s*\* ?/g, " ").trim(),
  }));
}
