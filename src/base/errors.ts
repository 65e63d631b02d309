// Owns the catalogue of errors: every code with its text, exit code, retry rule and gRPC status; and the conversion of unknown throws.
import { inspect } from "node:util";
import { printable } from "./printable.ts";

/** Names of gRPC status codes, as in the gRPC specification; src/wire turns them into numbers. */
export type GrpcStatusName =
  | "CANCELLED"
  | "UNKNOWN"
  | "INVALID_ARGUMENT"
  | "DEADLINE_EXCEEDED"
  | "NOT_FOUND"
  | "PERMISSION_DENIED"
  | "UNAUTHENTICATED"
  | "RESOURCE_EXHAUSTED"
  | "FAILED_PRECONDITION"
  | "ABORTED"
  | "UNIMPLEMENTED"
  | "INTERNAL"
  | "UNAVAILABLE"
  | "DATA_LOSS";

/** The kind of a failure decides how programs treat it. */
export interface ErrorKind {
  /** Exit code of a command that ends with it: 1 = failed while running, 2 = wrong arguments or configuration. */
  exitCode: 1 | 2;
  /** Whether the same call may succeed later without any change. */
  retryable: boolean;
  grpcStatus: GrpcStatusName;
}

export type ErrorKindName =
  | "user"
  | "setup"
  | "stranger"
  | "denied"
  | "data"
  | "busy"
  | "down"
  | "late"
  | "cancelled"
  | "bug";

const KINDS: Readonly<Record<ErrorKindName, ErrorKind>> = {
  user: { exitCode: 2, retryable: false, grpcStatus: "INVALID_ARGUMENT" },
  setup: { exitCode: 1, retryable: false, grpcStatus: "FAILED_PRECONDITION" },
  stranger: { exitCode: 1, retryable: false, grpcStatus: "UNAUTHENTICATED" },
  denied: { exitCode: 1, retryable: false, grpcStatus: "PERMISSION_DENIED" },
  data: { exitCode: 1, retryable: false, grpcStatus: "DATA_LOSS" },
  busy: { exitCode: 1, retryable: true, grpcStatus: "RESOURCE_EXHAUSTED" },
  down: { exitCode: 1, retryable: true, grpcStatus: "UNAVAILABLE" },
  late: { exitCode: 1, retryable: true, grpcStatus: "DEADLINE_EXCEEDED" },
  cancelled: { exitCode: 1, retryable: true, grpcStatus: "CANCELLED" },
  bug: { exitCode: 1, retryable: false, grpcStatus: "INTERNAL" },
};

/** code: [kind, text]. `{name}` in the text is filled from the error's details. */
const CATALOGUE = {
  // Wrong arguments or configuration.
  USAGE: ["user", "{reason}"],
  NAMES_UNRESOLVED: ["down", "no vault is known of {address}: {reason}; {fix}"],
  CONFIG_UNREADABLE: ["user", "{path}: cannot be read: {reason}; {fix}"],
  CONFIG_SYNTAX: ["user", "{where}: not valid TOML: {reason}"],
  CONFIG_UNKNOWN_KEY: ["user", "{where}: {key} = {value}: unknown key; {fix}"],
  CONFIG_WRONG_TYPE: ["user", "{where}: {key} = {value}: expected {expected}; {fix}"],
  CONFIG_BAD_VALUE: ["user", "{where}: {key} = {value}: {reason}; {fix}"],
  CONFIG_CONFLICT: ["user", "{where}: {key} = {value}: {reason}; {fix}"],
  INSECURE_LISTEN: ["user", "{key} = {value}: {reason}; {fix}"],
  INSECURE_VAULT: ["user", "{key} = {value}: {reason}; {fix}"],
  CREDENTIALS: ["user", "{path}: {reason}; {fix}"],
  FAILPOINTS: ["user", "{key} = {value}: {reason}; {fix}"],
  JOIN_CODE: ["user", "this is no join code: {reason}; {fix}"],

  // A machine that is not set up.
  CORE_MISSING: [
    "setup",
    "the native core cannot be loaded: {reason}; run `npm run setup` in a checkout, or install the package for this platform again",
  ],
  ADDRESS_IN_USE: ["setup", "{address} is in use by another process; {fix}"],
  LISTEN_FAILED: ["setup", "cannot listen on {address}: {reason}; {fix}"],
  START_TIMEOUT: ["setup", "start step `{step}` did not end within {timeoutMs} ms"],
  OPEN_FILES: ["setup", "open files: the limit is {limit}, at least {needed} are needed; {fix}"],
  LOCAL_VAULT: ["setup", "the vault of this machine did not start: {reason}"],
  SHARED_REGION: ["setup", "{key} = {value}: {reason}"],
  ARENA_FAILED: ["setup", "shared memory: {reason}"],
  DISK_FAILED: ["setup", "the vault's disk: {reason}"],
  STORE_FAILED: ["setup", "{reason}"],
  SYSTEM: ["setup", "{reason}"],
  DEMO_FAILED: ["setup", "{reason}"],
  ENGINE_MISSING: ["setup", "an engine needs a Python with vLLM and tierKV, and {reason}; {fix}"],
  ENGINE_ANSWER: ["setup", "{reason}"],
  ENGINE_UNANSWERED: [
    "setup",
    "no vLLM answers at {url}: {reason}; start it there, or correct the address",
  ],

  // The other side.
  VAULT_DOWN: ["down", "{name} vault at {address} does not answer: {reason}"],
  VAULT_UNREACHED: [
    "down",
    "{name} vault at {address} does not answer: {verdict}: {reason}; {fix}",
  ],
  VAULT_DEADLINE: ["late", "{name} vault at {address} did not answer {call} within {timeoutMs} ms"],
  FETCH_STALLED: ["late", "the fetch has stalled: {reason}"],
  VAULT_REFUSED: ["setup", "{name} vault at {address} refused {call}: {reason}"],
  VAULT_LOCKED: [
    "stranger",
    "{name} vault at {address} does not let this machine in: {reason}; run the `tierkv join` line that `tierkv invite` prints on its machine, or, with a CA of your own, set [cluster] tls_cert and tls_key",
  ],
  VAULT_DENIED: ["denied", "{name} vault at {address} denied {call}: {reason}"],
  VAULT_CERTIFICATE: [
    "setup",
    "{name} vault at {address}: TLS: no trust in its certificate: {reason}; {fix}",
  ],
  FINGERPRINT: [
    "setup",
    "{address} shows another certificate than the code says ({seen}, not {wanted}): this is not that vault, or its certificate is new; ask it for a code with `tierkv invite`",
  ],
  STRANGER: ["stranger", "no valid token or client certificate came with the call"],
  ROLE_MISSING: [
    "denied",
    "this machine has role {role}, and {call} needs {needed}; join anew with the line that `tierkv invite` prints there with --role {needed}, or, with a CA of your own, show a certificate that was made with --role {needed}",
  ],
  VAULT_BUSY: ["busy", "{name} vault at {address} is busy: {reason}"],
  VAULT_CLASS: [
    "setup",
    "vault at {address} is configured as the {name} vault but holds {actual} records; {fix}",
  ],
  VAULT_BROKEN: ["data", "{name} vault at {address}: {call} broke off: {reason}"],
  VERSION_MISMATCH: [
    "setup",
    "no common protocol: {peer} speaks {theirs}, this side speaks {ours}; install the same release on both",
  ],
  SIDECAR_DOWN: ["down", "sidecar at {path} does not answer: {reason}; {fix}"],
  GATEWAY_DOWN: ["down", "gateway at {path} does not answer: {reason}; {fix}"],
  REGISTRY_FAILED: ["down", "registry {registry}: {reason}"],
  BAD_FRAME: ["user", "bad frame from {peer}: {reason}"],
  ENGINE_REFUSED: ["setup", "engine {engine}: {reason}; {fix}"],

  // Bytes and memory.
  BAD_ARGUMENT: ["user", "{reason}"],
  BAD_RECORD: ["data", "{reason}"],
  RECORD_UNOPENED: ["data", "{reason}"],
  BUNDLE_REFUSED: ["data", "bundle {where}: {reason}"],
  RECEIPT_REFUSED: ["data", "receipt {where}: {reason}"],
  NO_MEMORY: ["busy", "{reason}"],
  LANE_FAILED: ["down", "{reason}"],
  LANES_UNREACHABLE: [
    "down",
    "{name} vault at {address}: no record gets there, because no lane can be opened: {reason}; run `tierkv doctor` for the cause",
  ],

  // Time, load and the rest.
  DEADLINE: ["late", "{what} took longer than {timeoutMs} ms"],
  CANCELLED: ["cancelled", "{what} was cancelled"],
  OVERLOAD: ["busy", "{what}: {count} reached, the limit is {limit}"],
  CLOSED: ["down", "{what} is closed"],
  FAILPOINT: ["bug", "failpoint {name}: this step is made to fail"],
  UNKNOWN_ID: ["bug", "{reason}"],
  INTERNAL: ["bug", "{reason}"],
} as const;

export type ErrorCode = keyof typeof CATALOGUE;

export interface ErrorRow extends ErrorKind {
  kind: ErrorKindName;
  template: string;
}

/** The catalogue, keyed by code. docs/errors.md is generated from it. */
export const ERRORS: Readonly<Record<ErrorCode, ErrorRow>> = Object.fromEntries(
  Object.entries(CATALOGUE).map(([code, [kind, template]]) => [
    code,
    { kind, template, ...KINDS[kind] },
  ]),
) as Record<ErrorCode, ErrorRow>;

type Holes<T extends string> = T extends `${string}{${infer Name}}${infer Rest}`
  ? Name | Holes<Rest>
  : never;

/** The details a code's template needs; every hole must be filled, more may be given. */
export type ErrorDetails<C extends ErrorCode> = Record<
  Holes<(typeof CATALOGUE)[C][1]>,
  string | number
> &
  AnyDetails;

type AnyDetails = Readonly<Record<string, string | number>>;

function fill(template: string, details: AnyDetails): string {
  return template.replace(/\{(\w+)\}/g, (hole, name: string) => String(details[name] ?? hole));
}

function oneLine(text: string): string {
  return printable(text.replace(/\s*\n\s*/g, " "));
}

/** The only error this program throws on purpose. `message` is one line fit for a user. */
export class TierkvError<C extends ErrorCode = ErrorCode> extends Error {
  override readonly name = "TierkvError";
  readonly code: C;
  readonly details: AnyDetails;

  constructor(code: C, details: ErrorDetails<C>, options: { cause?: unknown } = {}) {
    super(oneLine(fill(ERRORS[code].template, details)), options);
    this.code = code;
    this.details = details;
  }

  get exitCode(): 1 | 2 {
    return ERRORS[this.code].exitCode;
  }

  get retryable(): boolean {
    return ERRORS[this.code].retryable;
  }

  get grpcStatus(): GrpcStatusName {
    return ERRORS[this.code].grpcStatus;
  }
}

/** Whether the error is ours, also from another copy of this module, because it is matched by code. */
export function isTierkvError(error: unknown): error is TierkvError {
  return (
    error instanceof Error &&
    error.name === "TierkvError" &&
    "code" in error &&
    typeof error.code === "string" &&
    Object.hasOwn(ERRORS, error.code)
  );
}

/** Codes whose text is one free reason: the native core throws `CODE: reason`, and so do worker threads. */
const FREE_TEXT_CODES = [
  "BAD_ARGUMENT",
  "ARENA_FAILED",
  "DISK_FAILED",
  "STORE_FAILED",
  "UNKNOWN_ID",
  "BAD_RECORD",
  "RECORD_UNOPENED",
  "NO_MEMORY",
  "LANE_FAILED",
  "FETCH_STALLED",
  "INTERNAL",
] as const;

function fromCodedText(error: Error): TierkvError | null {
  const [, prefix, reason] = /^([A-Z_]+): (.*)$/s.exec(error.message) ?? [];
  const code = FREE_TEXT_CODES.find((name) => name === prefix);
  return code === undefined
    ? null
    : new TierkvError(code, { reason: reason ?? "" }, { cause: error });
}

/** Returns the cause of a failed `fetch`, because its own message only says that it failed. */
export function fetchReason(error: unknown): string {
  const cause = error instanceof Error ? (error.cause ?? error) : error;
  const text = cause instanceof Error ? cause.message : String(cause);
  return text === "bad port" ? BAD_PORT : text;
}

/** OpenSSL's words where the other side does not speak TLS. */
export const NO_TLS: RegExp = /wrong version number|packet length too long/i;

/** Ports that Fetch blocks (fetch.spec.whatwg.org, "port blocking"), such as 6000 and 10080. */
const BAD_PORT = "the Fetch standard blocks this port, so that another one must be used";

const FILE_REASONS: Readonly<Record<string, string>> = {
  ENOENT: "there is no such file",
  EACCES: "permission denied",
  EISDIR: "it is a folder",
};

/** Returns why a file that a person named cannot be read. */
export function fileReason(error: unknown): string {
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  return FILE_REASONS[code] ?? toTierkvError(error).message;
}

/** Converts anything caught: our own errors pass, the rest get a code. Never throws. */
export function toTierkvError(error: unknown): TierkvError {
  if (isTierkvError(error)) return error;
  if (!(error instanceof Error)) {
    return new TierkvError("INTERNAL", { reason: `thrown: ${inspect(error, { depth: 0 })}` });
  }
  if (error.name === "AbortError") {
    if (isTierkvError(error.cause)) return error.cause;
    return new TierkvError("CANCELLED", { what: "the operation" }, { cause: error });
  }
  const coded = fromCodedText(error);
  if (coded !== null) return coded;
  // Node's system errors already name operation, path and reason in one line ("EACCES: permission denied, open '/x'").
  const isSystem = "syscall" in error && "errno" in error;
  return new TierkvError(
    isSystem ? "SYSTEM" : "INTERNAL",
    { reason: error.message || error.name },
    { cause: error },
  );
}
