// Owns the first configuration of a machine: its short commented text, and the commands to run next.

/** engine: runs vLLM · vault: keeps blocks for other machines · both: an engine whose own vault also keeps blocks on a disk. */
export const MACHINES = ["engine", "vault", "both"] as const;
export type Machine = (typeof MACHINES)[number];

export interface FirstConfig {
  machine: Machine;
  /** Address that other machines reach; only a vault has one. */
  address: string | null;
  /** Folder for records on a disk; null: memory only. */
  dataDir: string | null;
  /** Bytes of memory for records, as the default would take now. */
  maxBytes: number;
}

const MORE = "# `tierkv config example` shows every key, `tierkv config check` checks this file.";

/** Returns the text of tierkv.toml. */
export function firstConfig({ machine, address, dataDir, maxBytes }: FirstConfig): string {
  const share = machine === "vault" ? "half" : "a quarter";
  const memory = [
    `# Memory for records; left out: ${share} of what is free at start.`,
    `# max_bytes = "${gigabytes(maxBytes)}"`,
  ];
  const disk =
    dataDir === null
      ? [
          "# Records also on a disk, so that a restart keeps them:",
          '# data_dir = "/var/lib/tierkv"',
        ]
      : ["# Records also lie here, so that a restart keeps them.", `data_dir = ${quoted(dataDir)}`];
  if (machine === "vault") {
    return lines([
      "# tierKV on a machine that keeps blocks for engines on other machines.",
      MORE,
      "",
      "[cluster]",
      "# cold: attention KV and recurrent states.",
      'role = "cold"',
      "",
      "[vault]",
      "# Other machines reach the vault here, over TLS and only after `tierkv join`.",
      `listen = ${quoted(address ?? "")}`,
      ...memory,
      ...disk,
    ]);
  }
  return lines([
    "# tierKV on a machine that runs vLLM.",
    MORE,
    "",
    "[cluster]",
    'role = "inference"',
    "# `tierkv join CODE` adds vaults on other machines here. Without any, the sidecar starts a vault on this machine.",
    '# kv_cold = ["192.168.1.10:50051"]',
    "",
    "[vault]",
    "# The vault on this machine:",
    ...memory,
    ...disk,
    "",
    "[sidecar]",
    "# A sidecar that an engine started ends, with the vault on this machine, so many seconds after the last engine:",
    "# idle_exit_s = 600",
  ]);
}

/** Returns the next steps, a line each; `path`: where the file was written; `tierkv`: what starts this program. */
export function nextSteps(
  machine: Machine,
  { path, tierkv, serviceFlags }: { path: string; tierkv: string; serviceFlags: string },
): string[] {
  if (machine === "vault") {
    return [
      `${tierkv} vault --config ${path}    # or as a service: ${tierkv} service install vault${serviceFlags} --config ${path}`,
      "It prints a `tierkv join` line: run that on the engine's machine.",
    ];
  }
  const extra = JSON.stringify({ config_path: path });
  return [
    "vllm serve MODEL --enable-prefix-caching --kv-transfer-config \\",
    `  '{"kv_connector": "TierKVConnector", "kv_connector_module_path": "tierkv.connectors.vllm.connector", "kv_role": "kv_both", "kv_connector_extra_config": ${extra}}'`,
    `${tierkv} top    # shows restores, and misses with their reason`,
  ];
}

const GB = 1e9;

/** Whole gigabytes, at least one. */
const gigabytes = (bytes: number): string => `${Math.max(1, Math.floor(bytes / GB))}GB`;

/** A TOML string; JSON's escapes are TOML's. */
const quoted = (text: string): string => JSON.stringify(text);

const lines = (texts: readonly string[]): string => `${texts.join("\n")}\n`;
