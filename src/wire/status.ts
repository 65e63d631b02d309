// Owns the two-way mapping between our errors and gRPC statuses; no raw gRPC error leaves this room.
import { status as GrpcStatus } from "@grpc/grpc-js";
import type { StatusObject } from "@grpc/grpc-js";
import { isTierkvError, TierkvError, toTierkvError } from "../errors.ts";

/** Which call to which vault; fills the texts of client errors. */
export interface CallContext {
  /** The vault's name in the config: kv or ssm. */
  name: string;
  address: string;
  call: string;
  timeoutMs: number;
}

/** What a server answers for a thrown error: code and one line; never a stack. */
export function toGrpcStatus(error: unknown): Pick<StatusObject, "code" | "details"> {
  const known = toTierkvError(error);
  return { code: GrpcStatus[known.grpcStatus], details: known.message };
}

/** A coded error for whatever a gRPC call ended with. Our own errors pass unchanged. */
export function fromGrpcError(error: unknown, context: CallContext): TierkvError {
  if (isTierkvError(error)) return error;
  const options = { cause: error };
  const code = grpcCode(error);
  const reason = grpcDetails(error);
  switch (code) {
    case null:
      return toTierkvError(error);
    case GrpcStatus.UNAVAILABLE:
      return new TierkvError("VAULT_DOWN", { ...context, reason }, options);
    case GrpcStatus.DEADLINE_EXCEEDED:
      return new TierkvError("VAULT_DEADLINE", { ...context }, options);
    case GrpcStatus.CANCELLED:
      return new TierkvError("VAULT_DOWN", { ...context, reason: `${context.call} was cut off` });
    case GrpcStatus.RESOURCE_EXHAUSTED:
      return new TierkvError("VAULT_BUSY", { ...context, reason }, options);
    case GrpcStatus.INVALID_ARGUMENT:
    case GrpcStatus.FAILED_PRECONDITION:
    case GrpcStatus.OUT_OF_RANGE:
    case GrpcStatus.PERMISSION_DENIED:
    case GrpcStatus.UNAUTHENTICATED:
    case GrpcStatus.UNIMPLEMENTED:
      return new TierkvError("VAULT_REFUSED", { ...context, reason }, options);
    default:
      return new TierkvError("VAULT_BROKEN", { ...context, reason }, options);
  }
}

function grpcCode(error: unknown): GrpcStatus | null {
  if (!(error instanceof Error) || !("code" in error) || !("details" in error)) return null;
  return typeof error.code === "number" ? error.code : null;
}

function grpcDetails(error: unknown): string {
  const details =
    error instanceof Error && "details" in error && typeof error.details === "string"
      ? error.details
      : String(error);
  return details.replace(/\s*\n\s*/g, " ");
}
