// Owns the calls of the OCI distribution API that move a bundle: blobs and manifests, with a token where one is required.
import { NO_TLS, TierkvError, toTierkvError } from "../../base/errors.ts";
import {
  BUNDLE_JSON_BYTES_MAX,
  REGISTRY_REQUEST_MS,
  REGISTRY_TEXT_CHARS,
} from "../../base/limits/tools.ts";
import { digestOf, MANIFEST_TYPE } from "./manifest.ts";
import type { Descriptor } from "./manifest.ts";

/** `oci://host[:port]/repository[:tag][@digest]`. */
export interface Reference {
  registry: string;
  repository: string;
  /** A tag, or a digest. */
  name: string;
}

const REFERENCE =
  /^(?:oci:\/\/)?([\w.-]+(?::\d+)?|\[[\da-f:]+\](?::\d+)?)\/([a-z\d]+(?:[._\-/]+[a-z\d]+)*)(?::([\w][\w.-]{0,127}))?(?:@(sha256:[\da-f]{64}))?$/;
const [OK, CREATED, ACCEPTED, UNAUTHORIZED, NOT_FOUND] = [200, 201, 202, 401, 404];

/** Throws USAGE. */
export function parseReference(text: string): Reference {
  const [, registry, repository, tag = "latest", digest] = REFERENCE.exec(text) ?? [];
  if (registry !== undefined && repository !== undefined) {
    return { registry, repository, name: digest ?? tag };
  }
  const reason = `${text.slice(0, 200)} names no repository: expected oci://HOST[:PORT]/NAME[:TAG]`;
  throw new TierkvError("USAGE", { reason });
}

export interface RegistryOptions {
  reference: Reference;
  /** Uses plain HTTP. */
  isPlain: boolean;
  /** `user:password`. */
  login: string | null;
}

export class Registry {
  readonly #options: RegistryOptions;
  readonly #base: string;
  #authorization: string | null = null;

  constructor(options: RegistryOptions) {
    this.#options = options;
    const { registry, repository } = options.reference;
    this.#base = `${options.isPlain ? "http" : "https"}://${registry}/v2/${repository}/`;
  }

  async hasBlob(digest: string): Promise<boolean> {
    const { status } = await this.#call(`blobs/${digest}`, { method: "HEAD" }, [OK, NOT_FOUND]);
    return status === OK;
  }

  async putBlob(digest: string, bytes: Buffer): Promise<void> {
    const begun = await this.#call("blobs/uploads/", { method: "POST" }, [ACCEPTED]);
    const location = begun.headers.get("location");
    if (location === null) throw this.#failed("it says nowhere to upload to");
    const to = new URL(location, this.#base);
    to.searchParams.set("digest", digest);
    const headers = { "content-type": "application/octet-stream" };
    await this.#call(to.href, { method: "PUT", headers, body: bytes }, [CREATED]);
  }

  async blob({ digest, size }: Pick<Descriptor, "digest" | "size">): Promise<Buffer> {
    const bytes = await this.#bytes(await this.#call(`blobs/${digest}`, {}, [OK]), size);
    if (digestOf(bytes) !== digest) throw this.#failed(`${digest} came with other bytes`);
    return bytes;
  }

  /** Returns the manifest, which is checked where the reference has a digest. */
  async manifest(bytesMax: number): Promise<Buffer> {
    const { name } = this.#options.reference;
    const headers = { accept: MANIFEST_TYPE };
    const bytes = await this.#bytes(
      await this.#call(`manifests/${name}`, { headers }, [OK]),
      bytesMax,
    );
    const isOther = name.startsWith("sha256:") && digestOf(bytes) !== name;
    if (isOther) throw this.#failed(`${name} came with other bytes`);
    return bytes;
  }

  async putManifest(bytes: Buffer): Promise<void> {
    const { name } = this.#options.reference;
    const headers = { "content-type": MANIFEST_TYPE };
    await this.#call(`manifests/${name}`, { method: "PUT", headers, body: bytes }, [CREATED]);
  }

  async #bytes(response: Response, most: number): Promise<Buffer> {
    const parts: Uint8Array[] = [];
    let size = 0;
    try {
      for await (const part of (response.body ?? []) as AsyncIterable<Uint8Array>) {
        size += part.length;
        if (size > most) throw new Error(`more than ${most} bytes arrive`);
        parts.push(part);
      }
    } catch (error) {
      throw this.#failed(reasonOf(error));
    }
    return Buffer.concat(parts);
  }

  /** Calls the registry; after a challenge, gets a token and retries once. */
  async #call(path: string, init: RequestInit, expected: readonly number[]): Promise<Response> {
    const url = new URL(path, this.#base);
    let response = await this.#fetch(url, init);
    if (response.status === UNAUTHORIZED) {
      await response.body?.cancel();
      this.#authorization = await this.#answer(response.headers.get("www-authenticate") ?? "");
      response = await this.#fetch(url, init);
    }
    if (expected.includes(response.status)) return response;
    const text = (await this.#bytes(response, BUNDLE_JSON_BYTES_MAX)).toString();
    const said = text.slice(0, REGISTRY_TEXT_CHARS);
    const fix = response.status === UNAUTHORIZED ? "; `docker login` it first" : "";
    throw this.#failed(`${init.method ?? "GET"} ${url.pathname}: ${response.status} ${said}${fix}`);
  }

  async #fetch(url: URL, init: RequestInit): Promise<Response> {
    const headers = new Headers(init.headers);
    // Only the registry's own origin gets the credentials.
    const isIts = url.origin === new URL(this.#base).origin;
    if (this.#authorization !== null && isIts) headers.set("authorization", this.#authorization);
    try {
      const signal = AbortSignal.timeout(REGISTRY_REQUEST_MS);
      return await fetch(url, { ...init, headers, signal });
    } catch (error) {
      throw this.#failed(reasonOf(error));
    }
  }

  /** Returns the authorization that a challenge asks for. */
  async #answer(challenge: string): Promise<string> {
    const basic = this.#basic;
    if (/^basic\b/i.test(challenge) && basic !== null) return basic;
    const said = Object.fromEntries(
      [...challenge.matchAll(/(\w+)="([^"]*)"/g)].map(([, name, value]) => [name, value]),
    ) as { realm?: string; service?: string; scope?: string };
    const isBearer = /^bearer\b/i.test(challenge);
    if (!isBearer || said.realm === undefined || !URL.canParse(said.realm)) {
      throw this.#failed("it asks who this is; `docker login` it first");
    }
    const url = new URL(said.realm);
    const isOpen = url.protocol !== "https:" && this.#base.startsWith("https:");
    if (isOpen) throw this.#failed(`its tokens come in the clear, from ${url.host}`);
    for (const name of ["service", "scope"] as const) {
      const value = said[name];
      if (value !== undefined) url.searchParams.set(name, value);
    }
    return await this.#tokenOf(url);
  }

  get #basic(): string | null {
    const { login } = this.#options;
    return login === null ? null : `Basic ${Buffer.from(login).toString("base64")}`;
  }

  async #tokenOf(url: URL): Promise<string> {
    const basic = this.#basic;
    const headers = basic === null ? {} : { authorization: basic };
    try {
      const signal = AbortSignal.timeout(REGISTRY_REQUEST_MS);
      const response = await fetch(url, { headers, signal });
      const text = (await this.#bytes(response, BUNDLE_JSON_BYTES_MAX)).toString();
      if (!response.ok) throw new Error(`status ${response.status}`);
      const { token, access_token: access = token } = JSON.parse(text) as Record<string, string>;
      return `Bearer ${access ?? ""}`;
    } catch (error) {
      throw this.#failed(`${url.host} gives no token: ${reasonOf(error)}`);
    }
  }

  #failed(reason: string): TierkvError {
    return new TierkvError("REGISTRY_FAILED", {
      registry: this.#options.reference.registry,
      reason,
    });
  }
}

function reasonOf(error: unknown): string {
  const { cause } = error as Error;
  if (!(cause instanceof Error)) return toTierkvError(error).message;
  const isPlain = NO_TLS.test(cause.message);
  return isPlain ? "it speaks no TLS: give --plain-http where that is meant" : cause.message;
}
