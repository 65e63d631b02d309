// Owns the diagnosis of an unreachable vault, port by port: no listener, no answer, mismatched TLS, or no vault.
import { connect } from "node:net";
import type { Socket } from "node:net";
import { connect as connectTls } from "node:tls";
import { TierkvError, toTierkvError } from "../base/errors.ts";
import { connectionTo, splitAddress, storeKind, unixPath, valkeyHosts } from "../base/hosts.ts";
import {
  REACH_ANSWER_MS,
  REACH_BYTES_MAX,
  REACH_CONNECT_MS,
  REACH_HELLO_MS,
} from "../base/limits/tools.ts";
import { SILENT_FIX } from "../base/text.ts";
import { becomes } from "../base/time.ts";
import type { LanesState } from "../client/vault/lane-phase.ts";
import { isLocalVault } from "../cluster/targets.ts";
import { STARTS_IT } from "../control/sidecar-link.ts";

export type Verdict = "refused" | "no answer" | "not joined" | "no TLS" | "not a vault";

export interface Diagnosis {
  verdict: Verdict;
  reason: string;
  fix: string;
}

/** The part of a vault's client that the diagnosis needs. */
interface HelloTarget {
  readonly name: string;
  readonly address: string;
  /** Left out: no connection carries its records. */
  readonly lanes?: LanesState;
  hello(deadlineMs: number): Promise<unknown>;
}

/** First bytes of a gRPC client (RFC 9113, 3.4), with empty settings. */
const PREFACE = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", "latin1");
const FRAME_HEAD_BYTES = 9;
const SETTINGS_FRAME = 4;
const TLS_ALERT = 0x15;
const UNIMPLEMENTED = 12;

/** Sends a hello, for 5 s at most. Throws VAULT_UNREACHED with the diagnosis, or the vault's own error if one answered. */
export async function sayHello(client: HelloTarget, isTls: boolean): Promise<void> {
  try {
    await client.hello(REACH_HELLO_MS);
  } catch (error) {
    throw await diagnosed(error, client, isTls);
  }
}

/** Returns VAULT_UNREACHED with the diagnosis in place of a call's error; the error itself if the vault answered. */
export async function diagnosed(
  error: unknown,
  { name, address }: Pick<HelloTarget, "name" | "address">,
  isTls: boolean,
): Promise<TierkvError> {
  const known = toTierkvError(error);
  const found = await explain(known, address, isTls);
  if (found === null) return known;
  return new TierkvError("VAULT_UNREACHED", { name, address, ...found }, { cause: known });
}

/** Returns why records cannot travel on a vault's lanes; null: they can. */
export async function laneTrouble(
  client: Pick<HelloTarget, "address" | "lanes">,
): Promise<string | null> {
  const { address } = client;
  await becomes(() => client.lanes !== "opening", REACH_CONNECT_MS, POLL_MS);
  if (client.lanes === undefined || client.lanes === "up" || client.lanes === "none") return null;
  const { socket, found } = await reach(address);
  socket?.destroy();
  const { verdict, reason, fix } = found ?? SILENT;
  return `${address}: ${verdict}: ${reason}; ${fix}`;
}

const POLL_MS = 20;

const SILENT: Diagnosis = {
  verdict: "no answer",
  reason: "the connection opens, and then no answer comes",
  fix: SILENT_FIX,
};

const NO_VAULT: Omit<Diagnosis, "reason"> = {
  verdict: "not a vault",
  fix: "correct the address, or start `tierkv vault` there",
};

async function explain(
  error: TierkvError,
  address: string,
  isTls: boolean,
): Promise<Diagnosis | null> {
  switch (error.code) {
    case "VAULT_DOWN":
    case "VAULT_DEADLINE":
    case "VAULT_BROKEN":
    case "DEADLINE":
      break;
    case "VAULT_REFUSED":
      if (!isUnimplemented(error)) return null;
      return { ...NO_VAULT, reason: "it speaks gRPC and knows no vault" };
    default:
      return null;
  }
  if (storeKind(address) !== null) return await explainStore(address, error.code);
  const found = isTls ? await overTls(address) : await inClear(address);
  if (found !== null || error.code !== "VAULT_BROKEN") return found;
  return { ...NO_VAULT, reason: String(error.details["reason"]) };
}

/** Diagnoses the first server of a Valkey that does not answer; null: its own error says more, or it is a bucket. */
async function explainStore(address: string, code: string): Promise<Diagnosis | null> {
  if (storeKind(address) !== "valkey") return null;
  const [host = ""] = valkeyHosts(address);
  const { socket, found } = await reach(host);
  socket?.destroy();
  if (found === null && code === "VAULT_DEADLINE") return SILENT;
  if (found?.verdict !== "refused") return found;
  return { ...found, fix: "start the server there, or correct the address" };
}

function isUnimplemented({ cause }: TierkvError): boolean {
  return cause instanceof Error && "code" in cause && cause.code === UNIMPLEMENTED;
}

/** Diagnoses a plaintext address; null: the peer speaks HTTP/2. */
async function inClear(address: string): Promise<Diagnosis | null> {
  const { socket, found } = await reach(address);
  if (socket === null) return found;
  const answer = await firstBytes(socket);
  if (answer === "nothing") return SILENT;
  if (answer === "closed" || answer[0] === TLS_ALERT || /HTTPS/.test(answer.toString("latin1"))) {
    return (await shakesHands(address)) ? WANTS_TLS : { ...NO_VAULT, reason: CLOSES };
  }
  if (answer.length >= FRAME_HEAD_BYTES && answer[3] === SETTINGS_FRAME) return null;
  const start = answer.toString("latin1", 0, 32).replace(/[^ -~].*/s, "");
  return { ...NO_VAULT, reason: start === "" ? "it speaks no HTTP/2" : `it answers "${start}"` };
}

const CLOSES = "it closes the connection without a word";

const WANTS_TLS: Diagnosis = {
  verdict: "not joined",
  reason: "it speaks TLS, and this machine has no credentials for it",
  fix: "run here the line that `tierkv invite` prints there",
};

/** Diagnoses a TLS address; null: the peer speaks TLS, trusted or not. */
async function overTls(address: string): Promise<Diagnosis | null> {
  const { socket, found } = await reach(address);
  if (socket === null) return found;
  const answer = await firstBytes(socket);
  if (await shakesHands(address)) return null;
  if (answer === "nothing") return SILENT;
  if (answer === "closed") return { verdict: "no answer", reason: CLOSES, fix: SILENT_FIX };
  const reason = "it speaks in the clear, where this machine sends nothing";
  const fix = "start that vault without insecure_lan, or correct the address";
  return { verdict: "no TLS", reason, fix };
}

/** Whether the peer speaks TLS, trusted or not; never on a Unix socket. */
async function shakesHands(address: string): Promise<boolean> {
  if (unixPath(address) !== null) return false;
  const { host, port } = splitAddress(address);
  // Certificates are not checked, because only the handshake matters and no data is sent.
  const socket = connectTls({ host, port, rejectUnauthorized: false, ALPNProtocols: ["h2"] });
  return (await settled(socket, "secureConnect", REACH_ANSWER_MS)) === null;
}

interface Reached {
  /** Connected socket; null: `found` has the reason. */
  socket: Socket | null;
  found: Diagnosis | null;
}

async function reach(address: string): Promise<Reached> {
  const socket = connect(connectionTo(address));
  const failure = await settled(socket, "connect", REACH_CONNECT_MS);
  if (failure === null) return { socket, found: null };
  socket.destroy();
  return { socket: null, found: unreached(failure, address) };
}

function unreached(code: string, address: string): Diagnosis {
  if (code === "ECONNREFUSED" || code === "ENOENT") {
    const place =
      unixPath(address) === null ? `on port ${splitAddress(address).port}` : "on that socket";
    const fix = isLocalVault(address) ? STARTS_IT : "start the vault there, or correct the address";
    return { verdict: "refused", reason: `nobody listens ${place}`, fix };
  }
  if (code === "ENOTFOUND" || code === "EAI_AGAIN") {
    const reason = `the name ${splitAddress(address).host} is not known (${code})`;
    return {
      verdict: "no answer",
      reason,
      fix: "correct the name, or write the address in numbers",
    };
  }
  const { port } = splitAddress(address);
  const fix = `open TCP port ${port} in the firewalls on the way, or start that machine`;
  return { verdict: "no answer", reason: `no connection to port ${port} (${code})`, fix };
}

/** Resolves to null once `event` fires, else to the error's code, or ETIMEDOUT. */
function settled(socket: Socket, event: string, timeoutMs: number): Promise<string | null> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve("ETIMEDOUT"), timeoutMs);
    const end = (code: string | null): void => {
      clearTimeout(timer);
      resolve(code);
    };
    socket.once(event, () => end(null));
    socket.once("error", (error: NodeJS.ErrnoException) => end(error.code ?? "ECONNRESET"));
    socket.once("close", () => end("ECONNRESET"));
  }).finally(() => {
    if (event === "secureConnect") socket.destroy();
  }) as Promise<string | null>;
}

/** Returns the first bytes that the peer sends after the HTTP/2 preface. Ends the connection. */
async function firstBytes(socket: Socket): Promise<Buffer | "nothing" | "closed"> {
  const chunks: Buffer[] = [];
  const size = (): number => chunks.reduce((sum, { length }) => sum + length, 0);
  const answer = new Promise<boolean>((resolve) => {
    const timer = setTimeout(() => resolve(true), REACH_ANSWER_MS);
    const end = (): void => {
      clearTimeout(timer);
      resolve(false);
    };
    socket.on("error", end).once("close", end).once("end", end);
    socket.on("data", (chunk: Buffer) => {
      if (size() < REACH_BYTES_MAX) chunks.push(chunk);
      if (size() >= FRAME_HEAD_BYTES) end();
    });
  });
  socket.write(PREFACE);
  const isLate = await answer;
  socket.destroy();
  if (chunks.length > 0) return Buffer.concat(chunks);
  return isLate ? "nothing" : "closed";
}
