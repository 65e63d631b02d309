// Owns the texts of services: systemd units and launchd property lists, including the ones in deploy/.
import { realpathSync } from "node:fs";
import { join } from "node:path";

export const SERVICES = ["vault", "sidecar"] as const;
export type ServiceName = (typeof SERVICES)[number];
export type Scope = "system" | "user";
export type Manager = "systemd" | "launchd";

export interface Service {
  name: ServiceName;
  scope: Scope;
  manager: Manager;
  /** Absolute paths of the command that runs `tierkv`. */
  command: readonly string[];
  /** Absolute path of the configuration; null: the program's default places. */
  config: string | null;
  /** User of the process; null: the owner in scope `user`, a dynamic user of systemd in scope `system`. */
  runAs: string | null;
  home: string;
}

type Lines = readonly string[];

const SUMMARY: Readonly<Record<ServiceName, string>> = {
  vault: "tierKV vault: keeps KV-cache records for vLLM engines",
  sidecar: "tierKV sidecar: hands KV-cache blocks of the local vLLM engines to the vaults",
};

/** Hardening that a user's systemd can apply without privileges. */
const HARDENED: Lines = [
  "UMask=0077",
  "LimitCORE=0",
  "LockPersonality=yes",
  "NoNewPrivileges=yes",
  "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
  "RestrictRealtime=yes",
  "RestrictSUIDSGID=yes",
  "SystemCallArchitectures=native",
];

/** Hardening for the system's systemd, with any user; no MemoryDenyWriteExecute, because V8 compiles code at run time. */
const HARDENED_SYSTEM: Lines = [
  ...HARDENED,
  "CapabilityBoundingSet=",
  "PrivateDevices=yes",
  "ProtectClock=yes",
  "ProtectControlGroups=yes",
  "ProtectHostname=yes",
  "ProtectKernelLogs=yes",
  "ProtectKernelModules=yes",
  "ProtectKernelTunables=yes",
  "RestrictNamespaces=yes",
  "SystemCallFilter=@system-service",
  "SystemCallErrorNumber=EPERM",
];

/** Hardening for a system vault, which needs only its state, its port and its data. */
const VAULT_SYSTEM: Lines = [
  "DynamicUser=yes",
  '# For [vault] data_dir = "/var/lib/tierkv", and what the vault keeps secret (state_dir).',
  "StateDirectory=tierkv",
  "StateDirectoryMode=0700",
  "LimitNOFILE=65536",
  "PrivateTmp=yes",
  "ProtectHome=yes",
  "ProtectProc=invisible",
  "ProtectSystem=strict",
  ...HARDENED_SYSTEM,
];

export const unitName = (name: ServiceName): string => `tierkv-${name}.service`;
export const label = (name: ServiceName): string => `tierkv.${name}`;

/** Returns the command line of this program, without links, which a service starts. */
export const ownProgram = (): string[] => [process.execPath, realpathSync(process.argv[1] ?? "")];

/** Returns the first path in a home folder or /tmp, neither of which a service of the machine sees. */
export function hiddenOf(paths: readonly string[]): string | undefined {
  return paths.find((path) => /^\/(?:home|root|run\/user|tmp|var\/tmp)\//.test(path));
}

/** Path where the manager reads the service's file. */
export function servicePath(
  { name, scope, manager, home }: Pick<Service, "name" | "scope" | "manager" | "home">,
  configHome: string,
): string {
  if (manager === "launchd") {
    const folder =
      scope === "system" ? "/Library/LaunchDaemons" : join(home, "Library/LaunchAgents");
    return join(folder, `${label(name)}.plist`);
  }
  const folder = scope === "system" ? "/etc/systemd/system" : join(configHome, "systemd", "user");
  return join(folder, unitName(name));
}

export function serviceText(service: Service): string {
  return service.manager === "systemd" ? unitOf(service) : propertyList(service);
}

function words({ command, name, config }: Service): string[] {
  return [...command, name, ...(config === null ? [] : ["--config", config])];
}

function unitOf(service: Service): string {
  const { name, scope, runAs, home } = service;
  const isSystem = scope === "system";
  const start = words(service).map((word) => unitWord(word, isSystem ? null : home));
  const network = ["Wants=network-online.target", "After=network-online.target"];
  const user = runAs === null ? [] : [`User=${runAs}`];
  const own = !isSystem
    ? HARDENED
    : name === "vault" && runAs === null
      ? VAULT_SYSTEM
      : HARDENED_SYSTEM;
  const lines = [
    "# Made by `tierkv service install`.",
    "[Unit]",
    `Description=${SUMMARY[name]}`,
    ...(isSystem ? network : []),
    "",
    "[Service]",
    `ExecStart=${start.join(" ")}`,
    "Restart=on-failure",
    "RestartSec=2",
    "# SIGTERM drains and exits 0.",
    "TimeoutStopSec=30",
    ...user,
    ...own,
    "",
    "[Install]",
    `WantedBy=${isSystem ? "multi-user.target" : "default.target"}`,
  ];
  return `${lines.join("\n")}\n`;
}

/** Escapes a word for systemd: doubles % and $, quotes white space, and writes the home as %h. */
function unitWord(word: string, home: string | null): string {
  const isAtHome = home !== null && word.startsWith(`${home}/`);
  const rest = isAtHome ? word.slice(home.length) : word;
  const plain = rest.replaceAll("%", "%%").replaceAll("$", "$$$$").replaceAll(/["\\]/g, "\\$&");
  const whole = isAtHome ? `%h${plain}` : plain;
  return /[\s"'\\;]/.test(whole) ? `"${whole}"` : whole;
}

function propertyList(service: Service): string {
  const { name, scope, runAs, home } = service;
  const log = join(
    scope === "system" ? "/Library/Logs" : join(home, "Library/Logs"),
    `tierkv-${name}.log`,
  );
  const strings = words(service).map((word) => `    ${string(word)}`);
  const user = runAs === null ? [] : ["  <key>UserName</key>", `  ${string(runAs)}`];
  const lines = [
    '<?xml version="1.0" encoding="UTF-8"?>',
    "<!-- Made by `tierkv service install`. -->",
    '<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">',
    '<plist version="1.0">',
    "<dict>",
    "  <key>Label</key>",
    `  ${string(label(name))}`,
    "  <key>ProgramArguments</key>",
    "  <array>",
    ...strings,
    "  </array>",
    ...user,
    "  <key>RunAtLoad</key>",
    "  <true/>",
    "  <key>KeepAlive</key>",
    "  <dict>",
    "    <key>SuccessfulExit</key>",
    "    <false/>",
    "  </dict>",
    "  <key>Umask</key>",
    "  <integer>63</integer>",
    "  <key>ExitTimeOut</key>",
    "  <integer>30</integer>",
    "  <key>StandardErrorPath</key>",
    `  ${string(log)}`,
    "</dict>",
    "</plist>",
  ];
  return `${lines.join("\n")}\n`;
}

const ENTITIES: Readonly<Record<string, string>> = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

function string(text: string): string {
  return `<string>${text.replaceAll(/[&<>]/g, (sign) => ENTITIES[sign] ?? sign)}</string>`;
}
