// Owns the connection of commands to a sidecar: role status, on its local socket.
import { existsSync } from "node:fs";
import { connect, Socket } from "node:net";
import { isTierkvError, TierkvError, toTierkvError } from "../base/errors.ts";
import { CALL_TIMEOUT_MS, STATUS_TIMEOUT_MS } from "../base/limits/general.ts";
import { isOwnPeer, strangeSocket } from "../base/socket-file.ts";
import { deadlineSignal } from "../base/time.ts";
import type { Explained } from "../sidecar/sidecar.ts";
import { encodeFrame, FrameDecoder } from "../sidecar/socket/frames.ts";
import type { Fields, Frame } from "../sidecar/socket/frames.ts";
import { LOCAL_PROTOCOL } from "../sidecar/socket/hello.ts";
import type { SidecarStatus } from "../sidecar/status.ts";
import type { SessionsSeen } from "../sidecar/vaults/sessions.ts";

export interface SessionUpdate {
  /** Session's name; empty: all. */
  name: string;
  keepS: number;
  isReleased: boolean;
}

/** Sends one request at a time over one connection. Every method throws SIDECAR_DOWN without an answer. */
export class SidecarLink {
  readonly #path: string;
  readonly #elsewhere: readonly string[];
  readonly #socket: Socket;
  readonly #decoder = new FrameDecoder("sidecar");
  #wake: () => void = () => {};
  #failure: Error | null = null;

  /** `elsewhere`: sockets of this user's sidecar under another XDG_RUNTIME_DIR. */
  constructor(path: string, elsewhere: readonly string[] = usualSockets()) {
    this.#path = path;
    this.#elsewhere = elsewhere;
    const strange = strangeSocket(path);
    this.#socket = strange === null ? connect(path) : new Socket();
    // Checked on connect, before buffered requests are sent.
    this.#socket.on("connect", () => {
      if (isOwnPeer(this.#socket)) return;
      this.#fail(new Error("another user listens on its socket"));
      this.#socket.destroy();
    });
    this.#socket.on("data", (chunk) => {
      this.#decoder.push(chunk);
      this.#wake();
    });
    this.#socket.on("error", (error) => this.#fail(error));
    this.#socket.on("close", () => this.#fail(new Error("it closed the connection")));
    if (strange !== null) this.#fail(new Error(strange));
  }

  /** Returns the sidecar's version. Throws VERSION_MISMATCH for another protocol. */
  async hello(timeoutMs: number = STATUS_TIMEOUT_MS): Promise<string> {
    const hello = { t: "hello", protocol: LOCAL_PROTOCOL, role: "status" };
    const { sidecar, protocol } = await this.#ask(hello, "welcome", timeoutMs);
    const version = typeof sidecar === "string" ? sidecar : "";
    if (protocol === LOCAL_PROTOCOL) return version;
    throw new TierkvError("VERSION_MISMATCH", {
      peer: `the sidecar at ${this.#path} (version ${version})`,
      theirs: `local protocol ${String(protocol)}`,
      ours: `local protocol ${LOCAL_PROTOCOL}`,
    });
  }

  async ping(timeoutMs: number = STATUS_TIMEOUT_MS): Promise<void> {
    await this.#ask({ t: "ping", n: 0 }, "pong", timeoutMs);
  }

  /** Returns the sidecar's status. */
  async status(timeoutMs: number = STATUS_TIMEOUT_MS): Promise<SidecarStatus> {
    const { status } = await this.#ask({ t: "status" }, "status_reply", timeoutMs);
    return status as SidecarStatus;
  }

  /** Returns accounts of the latest requests whose id starts with `req`, at most `most`. */
  async explain(
    req: string,
    most: number,
    timeoutMs: number = STATUS_TIMEOUT_MS,
  ): Promise<Explained[]> {
    const question = { t: "explain", req, most };
    const { accounts } = await this.#ask(question, "explain_reply", timeoutMs);
    return accounts as Explained[];
  }

  /** Applies the update, if it changes anything, and returns the sessions of that name, or all. */
  async sessions({ name, keepS, isReleased }: SessionUpdate): Promise<SessionsSeen> {
    const said = { session: name, keep_s: keepS, release: Number(isReleased) };
    // The sidecar asks its vaults twice at most.
    const answer = await this.#ask(
      { t: "sessions", ...said },
      "sessions_reply",
      3 * CALL_TIMEOUT_MS,
    );
    const { sessions, failed } = answer as unknown as SessionsSeen;
    return { sessions, failed };
  }

  close(): void {
    this.#socket.destroy();
  }

  async #ask(question: Frame, wanted: string, timeoutMs: number): Promise<Fields> {
    if (this.#failure === null) this.#socket.write(encodeFrame(question));
    const deadline = deadlineSignal(timeoutMs, undefined, `an answer to ${String(question["t"])}`);
    deadline.signal.addEventListener("abort", () => this.#fail(deadline.signal.reason as Error), {
      once: true,
    });
    try {
      for (;;) {
        const answer = this.#decoder.next();
        if (answer?.["t"] === wanted) return answer;
        if (answer?.["t"] === "refuse") this.#fail(new Error(String(answer["message"])));
        if (this.#failure !== null) throw this.#failure;
        if (answer === null) await this.#more();
      }
    } catch (error) {
      const reason = reasonOf(error, this.#path, this.#elsewhere);
      const fix = isTierkvError(error) && error.code === "DEADLINE" ? STUCK : STARTS_IT;
      throw new TierkvError("SIDECAR_DOWN", { path: this.#path, reason, fix }, { cause: error });
    } finally {
      deadline.clear();
    }
  }

  #more(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  /** Keeps the first failure, because a close follows every error. */
  #fail(error: Error): void {
    this.#failure ??= error;
    this.#wake();
  }
}

/** Remedy where no sidecar runs. */
export const STARTS_IT = "an engine with tierKV starts it, or start it with `tierkv sidecar`";
export const STUCK =
  "it runs, and is busy or stuck: try again, and if that lasts, end its process and start it again";

function usualSockets(): string[] {
  const uid = process.getuid?.() ?? 0;
  const folders = [`/run/user/${uid}/tierkv`, `/tmp/tierkv-${uid}`];
  return folders.map((folder) => `${folder}/sidecar.sock`);
}

function reasonOf(error: unknown, path: string, elsewhere: readonly string[]): string {
  const code = error instanceof Error && "code" in error ? error.code : "";
  if (code === "ENOENT") {
    const other = elsewhere.find((one) => one !== path && existsSync(one));
    if (other === undefined) return "there is no socket";
    return `there is no socket, but there is one at ${other}: to ask that sidecar, write [sidecar] socket = "${other}", or set XDG_RUNTIME_DIR as it was for it`;
  }
  if (code === "ECONNREFUSED") return "nobody listens on its socket";
  return toTierkvError(error).message;
}
