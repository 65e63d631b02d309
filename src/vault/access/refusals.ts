// Owns how a call is refused before its body is read, and calls of methods that no service has.
import { ServerInterceptingCall, status as GrpcStatus } from "@grpc/grpc-js";
import type { Server, ServerInterceptingCallInterface, ServerInterceptor } from "@grpc/grpc-js";
import { GOSSIP_PATH, REDEEM_PATH, roleNeeded } from "../../wire/roles.ts";

/** HTTP/2's own codes. */
const NO_ERROR = 0;
const REFUSED_STREAM = 7;
/** Of the path of a call that is told back. */
const PATH_CHARS_MAX = 100;

type Refusal = Parameters<ServerInterceptingCallInterface["sendStatus"]>[0];

interface Http2Call {
  stream?: { close(code: number): void };
  /** Of a call that an interceptor has wrapped: the one inside. */
  nextCall?: Http2Call;
}

function streamOf(call: ServerInterceptingCallInterface): Http2Call["stream"] {
  let inner = call as Http2Call;
  while (inner.stream === undefined && inner.nextCall !== undefined) inner = inner.nextCall;
  return inner.stream;
}

/** Answers, and resets the stream: what its peer goes on to send is not even counted against our window. */
export function refuse(call: ServerInterceptingCallInterface, refusal: Refusal): void {
  call.sendStatus(refusal);
  streamOf(call)?.close(NO_ERROR);
}

/** Without an answer. */
export function reset(call: ServerInterceptingCallInterface): void {
  streamOf(call)?.close(REFUSED_STREAM);
}

/** Stands last: who may not call a method that exists does not hear which ones do. */
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

/** gRPC answers calls of unknown methods by itself, before any interceptor; now they pass the gate like known ones. */
export function passUnknown(server: Server): void {
  const { handlers } = server as unknown as { handlers: Map<string, object> };
  const known = handlers.get.bind(handlers);
  const func = (): void => {};
  handlers.get = (path) =>
    known(path) ?? { path, func, serialize: pass, deserialize: pass, type: "unary" };
}
