// Owns the refusal of calls before their body is read, and of calls to unknown methods.
import { ServerInterceptingCall, status as GrpcStatus } from "@grpc/grpc-js";
import type { Server, ServerInterceptingCallInterface, ServerInterceptor } from "@grpc/grpc-js";
import { GOSSIP_PATH, REDEEM_PATH, roleNeeded } from "../../wire/roles.ts";

/** HTTP/2's own codes. */
const NO_ERROR = 0;
const REFUSED_STREAM = 7;
/** Characters of an unknown path that the answer repeats. */
const PATH_CHARS_MAX = 100;

type Refusal = Parameters<ServerInterceptingCallInterface["sendStatus"]>[0];

interface Http2Call {
  stream?: { close(code: number): void };
  /** The inner call, where an interceptor has wrapped it. */
  nextCall?: Http2Call;
}

function streamOf(call: ServerInterceptingCallInterface): Http2Call["stream"] {
  let inner = call as Http2Call;
  while (inner.stream === undefined && inner.nextCall !== undefined) inner = inner.nextCall;
  return inner.stream;
}

/** Answers, then resets the stream, so that bytes its peer still sends do not count against our window. */
export function refuse(call: ServerInterceptingCallInterface, refusal: Refusal): void {
  call.sendStatus(refusal);
  // In a later turn, because Node from 22 drops an answer that is not written yet.
  setImmediate(() => streamOf(call)?.close(NO_ERROR));
}

/** Resets the stream without an answer. */
export function reset(call: ServerInterceptingCallInterface): void {
  streamOf(call)?.close(REFUSED_STREAM);
}

/** Stands last, because a caller without access must not learn which methods exist. */
export const unknownMethods: ServerInterceptor = ({ path }, call) => {
  const isKnown = roleNeeded(path) !== null || path === REDEEM_PATH || path === GOSSIP_PATH;
  if (isKnown) return new ServerInterceptingCall(call);
  const details = `The server does not implement the method ${path.slice(0, PATH_CHARS_MAX)}`;
  return new ServerInterceptingCall(call, {
    start: (next) =>
      next({
        onReceiveMetadata: () => refuse(call, { code: GrpcStatus.UNIMPLEMENTED, details }),
      }),
  });
};

const pass = (bytes: Buffer): Buffer => bytes;

/** Sends calls of unknown methods through the gate, because gRPC would answer them before any interceptor. */
export function passUnknown(server: Server): void {
  const { handlers } = server as unknown as { handlers: Map<string, object> };
  const known = handlers.get.bind(handlers);
  const func = (): void => {};
  handlers.get = (path) =>
    known(path) ?? { path, func, serialize: pass, deserialize: pass, type: "unary" };
}
