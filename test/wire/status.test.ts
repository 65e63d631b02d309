// Owns the tests of the mapping between our errors and gRPC statuses.
import { status as GrpcStatus } from "@grpc/grpc-js";
import { describe, expect, test } from "vitest";
import { ERRORS, TierkvError, toTierkvError } from "../../src/base/errors.ts";
import { fromGrpcError, grpcReason, toGrpcStatus } from "../../src/wire/status.ts";

const CONTEXT = { name: "kv", address: "10.0.0.2:50051", call: "Lookup", timeoutMs: 250 };

function grpcError(code: number, details: string): Error {
  return Object.assign(new Error(`${code}: ${details}`), { code, details });
}

describe("toGrpcStatus", () => {
  test("every code of the catalogue has a gRPC status", () => {
    for (const [code, row] of Object.entries(ERRORS)) {
      expect(GrpcStatus[row.grpcStatus], code).toBeTypeOf("number");
    }
  });

  test("answers one line and never a stack", () => {
    const { code, details } = toGrpcStatus(new Error("first line\n    at somewhere:1:2"));
    expect(code).toBe(GrpcStatus.INTERNAL);
    expect(details).not.toContain("\n");
  });
});

describe("fromGrpcError", () => {
  test.each([
    [GrpcStatus.UNAVAILABLE, "VAULT_DOWN"],
    [GrpcStatus.CANCELLED, "VAULT_DOWN"],
    [GrpcStatus.DEADLINE_EXCEEDED, "VAULT_DEADLINE"],
    [GrpcStatus.RESOURCE_EXHAUSTED, "VAULT_BUSY"],
    [GrpcStatus.INVALID_ARGUMENT, "VAULT_REFUSED"],
    [GrpcStatus.FAILED_PRECONDITION, "VAULT_REFUSED"],
    [GrpcStatus.UNIMPLEMENTED, "VAULT_REFUSED"],
    [GrpcStatus.INTERNAL, "VAULT_BROKEN"],
    [GrpcStatus.DATA_LOSS, "VAULT_BROKEN"],
  ])("status %i becomes %s and names the vault", (status, code) => {
    const error = fromGrpcError(grpcError(status, "why\nso"), CONTEXT);
    expect(error.code).toBe(code);
    expect(error.message).toContain("kv vault at 10.0.0.2:50051");
    expect(error.message).not.toContain("\n");
  });

  test("a deadline names the call and its time", () => {
    const error = fromGrpcError(grpcError(GrpcStatus.DEADLINE_EXCEEDED, "late"), CONTEXT);
    expect(error.message).toBe("kv vault at 10.0.0.2:50051 did not answer Lookup within 250 ms");
  });

  test.each([
    ["connect ECONNREFUSED 10.0.0.2:50051", "nobody listens on port 50051 (ECONNREFUSED)"],
    ["connect EHOSTUNREACH fd00::2:50051", "the network has no way to its host (EHOSTUNREACH)"],
    ["connect EPIPE 10.0.0.2:50051", "connect EPIPE 10.0.0.2:50051"],
    [
      "800C:error:0A00010B:SSL routines:ssl3_get_record:wrong version number:../ssl3_record.c:350: ",
      "what listens there speaks no TLS: it is another program, or a vault with insecure_lan",
    ],
    [
      "Client network socket disconnected before secure TLS connection was established",
      "the connection was closed before TLS began",
    ],
    ["read ECONNRESET", "the connection was reset"],
  ])("%s is said in words", (text, words) => {
    const thrown = grpcError(
      GrpcStatus.UNAVAILABLE,
      `No connection established. Last error: Error: ${text}. Resolution note: `,
    );
    expect(fromGrpcError(thrown, CONTEXT).details["reason"]).toBe(words);
    expect([grpcReason(thrown), grpcReason(toTierkvError(thrown))]).toEqual([words, words]);
  });

  test("our own errors pass, an abort is no vault's fault", () => {
    const own = new TierkvError("BAD_RECORD", { reason: "checksum" });
    expect(fromGrpcError(own, CONTEXT)).toBe(own);
    expect(fromGrpcError(new DOMException("stop", "AbortError"), CONTEXT).code).toBe("CANCELLED");
  });
});
