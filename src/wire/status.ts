// Owns the two-way mapping between our errors and gRPC statuses; no raw gRPC error leaves this room.
import { status as GrpcStatus } from "@grpc/grpc-js";
import type { StatusObject } from "@grpc/grpc-js";
import { isTierkvError, NO_TLS, TierkvError, toTierkvError } from "../base/errors.ts";

/** The call that failed; fills the texts of client errors. */
export interface CallContext {
  /** The vault's name in the config: kv or ssm. */
  name: string;
  address: string;
  call: string;
  timeoutMs: number;
  /** How the client speaks to the vault. */
  way?: "clear" | "tls" | "socket";
}

/** Any other status means that the vault or the link broke the protocol. */
const CLIENT_CODES: Partial<Record<GrpcStatus, ClientCode>> = {
  [GrpcStatus.UNAVAILABLE]: "VAULT_DOWN",
  // A cancellation of our own arrives through the signal, so this one came from the vault.
  [GrpcStatus.CANCELLED]: "VAULT_DOWN",
  [GrpcStatus.DEADLINE_EXCEEDED]: "VAULT_DEADLINE",
  [GrpcStatus.RESOURCE_EXHAUSTED]: "VAULT_BUSY",
  [GrpcStatus.INVALID_ARGUMENT]: "VAULT_REFUSED",
  [GrpcStatus.FAILED_PRECONDITION]: "VAULT_REFUSED",
  [GrpcStatus.OUT_OF_RANGE]: "VAULT_REFUSED",
  [GrpcStatus.PERMISSION_DENIED]: "VAULT_DENIED",
  [GrpcStatus.UNAUTHENTICATED]: "VAULT_LOCKED",
  [GrpcStatus.UNIMPLEMENTED]: "VAULT_REFUSED",
};
type ClientCode =
  | "VAULT_DOWN"
  | "VAULT_DEADLINE"
  | "VAULT_BUSY"
  | "VAULT_REFUSED"
  | "VAULT_DENIED"
  | "VAULT_LOCKED"
  | "VAULT_BROKEN";

/** Node's texts for an invalid certificate, each with its fix. */
const CERTIFICATE_TROUBLE: readonly (readonly [RegExp, string])[] = [
  [
    /certificate has expired|certificate is not yet valid/i,
    "renew it on the vault's machine, and set both clocks right",
  ],
  [
    /self.signed certificate|unable to (?:get|verify).*certificate|unable to get local issuer|certificate signature failure/i,
    "run the `tierkv join` line that `tierkv invite` prints there, or set [cluster] tls_ca to the certificate of its CA",
  ],
  [
    /does not match certificate|altnames/i,
    "make one for this address (`tierkv certs init --host`)",
  ],
];

/** Returns the status of a thrown error: code and one line, never a stack. */
export function toGrpcStatus(error: unknown): Pick<StatusObject, "code" | "details"> {
  const known = toTierkvError(error);
  return { code: GrpcStatus[known.grpcStatus], details: known.message };
}

/** Returns a coded error for the end of a gRPC call; our own errors pass unchanged. */
export function fromGrpcError(error: unknown, context: CallContext): TierkvError {
  if (isTierkvError(error)) return error;
  const status = grpcCode(error);
  if (status === null) return toTierkvError(error);
  const details = { ...context, reason: withHint(grpcDetails(error), status, context) };
  const trouble = CERTIFICATE_TROUBLE.find(([words]) => words.test(details.reason));
  if (status === GrpcStatus.UNAVAILABLE && trouble !== undefined) {
    const [, fix] = trouble;
    return new TierkvError("VAULT_CERTIFICATE", { ...details, fix }, { cause: error });
  }
  return new TierkvError(CLIENT_CODES[status] ?? "VAULT_BROKEN", details, { cause: error });
}

/** Adds a hint where a plaintext connection looks cut by a vault that speaks TLS. */
function withHint(reason: string, status: GrpcStatus, { way }: CallContext): string {
  const isCut =
    /Failed to connect|Connection dropped|ECONNRESET|socket hang up|connection was reset/.test(
      reason,
    );
  if (way !== "clear" || status !== GrpcStatus.UNAVAILABLE || !isCut) return reason;
  return `${reason}; if it is closed to strangers, run here the line that \`tierkv invite\` prints there`;
}

function grpcCode(error: unknown): GrpcStatus | null {
  if (!(error instanceof Error) || !("code" in error) || !("details" in error)) return null;
  return typeof error.code === "number" ? error.code : null;
}

/** Returns why a call failed, in words, without gRPC's own code. */
export function grpcReason(error: unknown): string {
  const known = toTierkvError(error);
  const raw = [error, known.cause].find((one) => grpcCode(one) !== null);
  return raw === undefined ? known.message : grpcDetails(raw);
}

function grpcDetails(error: unknown): string {
  const details =
    error instanceof Error && "details" in error && typeof error.details === "string"
      ? error.details
      : String(error);
  const words = CONNECTION_WORDS.find(([found]) => found.test(details));
  if (words !== undefined) return words[1];
  // grpc-js wraps the useful part ("connect ECONNREFUSED 10.0.0.1:50051") in its own history.
  return details
    .replace(/\s*\n\s*/g, " ")
    .replace(/^No connection established\. Last error: (?:Error: )?/, "")
    .replace(/ ?Resolution note: ?$/, "")
    .replace(/\.$/, "")
    .replace(
      /^connect (E[A-Z]+) \S+?(?::(\d+))?$/,
      (text: string, code: string, port: string | undefined) =>
        CONNECT_TROUBLE[code]?.(port ?? "") ?? text,
    );
}

/** Node's codes of a connection that does not come about, in words. */
const CONNECT_TROUBLE: Readonly<Record<string, (port: string) => string>> = {
  ECONNREFUSED: (port) => `nobody listens on port ${port} (ECONNREFUSED)`,
  EHOSTUNREACH: () => "the network has no way to its host (EHOSTUNREACH)",
  ENETUNREACH: () => "this machine has no way to its network (ENETUNREACH)",
  ETIMEDOUT: () => "its host does not answer (ETIMEDOUT)",
};

/** Texts of Node and OpenSSL about a connection that failed, in words. */
const CONNECTION_WORDS: readonly (readonly [RegExp, string])[] = [
  [NO_TLS, "what listens there speaks no TLS: it is another program, or a vault with insecure_lan"],
  [/before secure TLS connection was established/i, "the connection was closed before TLS began"],
  [/\bread ECONNRESET\b/, "the connection was reset"],
  [/^Cancelled on client$/, "the connection ended during the call"],
];
