// Owns a bundle's description: an OCI image manifest, and a config, which a key signs and which names every layer.
import { createHash } from "node:crypto";
import type { RecordClass } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { parseObject } from "../../base/json.ts";
import { RECORD_BYTES_MAX } from "../../base/limits/general.ts";
import {
  BUNDLE_JSON_BYTES_MAX,
  BUNDLE_LAYER_BYTES,
  BUNDLE_LAYER_SPARE,
  BUNDLE_LAYERS_MAX,
} from "../../base/limits/tools.ts";
import { derive, isSignedBy, SigningKey } from "../../base/signing-key.ts";

export const MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json";
export const ARTIFACT_TYPE = "application/vnd.tierkv.bundle.v1";
const CONFIG_TYPE = "application/vnd.tierkv.bundle.config.v1+json";
const LAYER_TYPE = "application/vnd.tierkv.bundle.records.v1";
const SIGNATURE = "tierkv.signature";
const SIGNER = "tierkv.signer";
const CONTEXT = "tierkv bundle 1\n";
const LAYER_BYTES_MAX = Math.max(BUNDLE_LAYER_BYTES, RECORD_BYTES_MAX) + BUNDLE_LAYER_SPARE;

/** As OCI defines it. */
export interface Descriptor {
  mediaType: string;
  digest: string;
  size: number;
}

interface Manifest {
  schemaVersion: 2;
  mediaType: string;
  artifactType: string;
  config: Descriptor;
  layers: Descriptor[];
  annotations: Record<string, string>;
}

export interface Layer {
  digest: string;
  size: number;
  class: RecordClass;
}

/** How the records are encrypted: by a key of the bundle, by record keys before they reached a vault, or not at all. */
export type Seal = "bundle" | "records" | "none";

export interface BundleConfig {
  version: 1;
  /** Namespace as vaults know it, hexadecimal. */
  namespace: string;
  model: string;
  /** Session; null: the bundle is a prefix. */
  session: string | null;
  /** Tenant of the session, as vaults know it. */
  tenant: number;
  blocks: number;
  /** null, and `codecs` empty, where records are sealed. */
  tokens: number | null;
  codecs: string[];
  records: number;
  bytes: number;
  seal: Seal;
  /** Salt of the bundle's key. */
  salt: string;
  layers: Layer[];
}

/** A bundle whose signer is known, and whose layers are unread. */
export interface Opened {
  config: BundleConfig;
  /** Public key, hexadecimal. */
  signer: string;
}

export const digestOf = (bytes: Uint8Array): string =>
  `sha256:${createHash("sha256").update(bytes).digest("hex")}`;

export const bundleKey = (secret: Buffer): SigningKey =>
  new SigningKey(derive(secret, "tierkv bundle signing"));

const contextOf = (config: Buffer): Buffer => Buffer.concat([Buffer.from(CONTEXT), config]);

export const refusedAt = (where: string, reason: string): TierkvError =>
  new TierkvError("BUNDLE_REFUSED", { where, reason });

/** Returns the config, and the manifest with its signature. */
export function makeManifest(
  config: BundleConfig,
  key: SigningKey,
): { config: Buffer; manifest: Buffer } {
  const bytes = Buffer.from(JSON.stringify(config));
  const of = ({ digest, size }: Layer): Descriptor => ({ mediaType: LAYER_TYPE, digest, size });
  const manifest: Manifest = {
    schemaVersion: 2,
    mediaType: MANIFEST_TYPE,
    artifactType: ARTIFACT_TYPE,
    config: { mediaType: CONFIG_TYPE, digest: digestOf(bytes), size: bytes.length },
    layers: config.layers.map(of),
    annotations: {
      [SIGNER]: key.publicKey.toString("hex"),
      [SIGNATURE]: key.sign(contextOf(bytes)).toString("base64"),
    },
  };
  return { config: bytes, manifest: Buffer.from(JSON.stringify(manifest)) };
}

/** Reads which blobs a manifest names; its content is not trusted yet. Throws BUNDLE_REFUSED. */
export function readManifest(bytes: Buffer, where: string): Manifest {
  const refused = (reason: string): TierkvError => refusedAt(where, reason);
  const manifest = parsed(bytes, where) as Partial<Manifest>;
  const { schemaVersion, mediaType, artifactType, config, layers, annotations } = manifest;
  const isBundle =
    schemaVersion === 2 && mediaType === MANIFEST_TYPE && artifactType === ARTIFACT_TYPE;
  if (!isBundle)
    throw refused(`its manifest is not one of a bundle (artifactType ${String(artifactType)})`);
  const isWhole =
    isDescriptor(config, CONFIG_TYPE) &&
    config.size <= BUNDLE_JSON_BYTES_MAX &&
    Array.isArray(layers) &&
    layers.length <= BUNDLE_LAYERS_MAX &&
    layers.every((layer) => isDescriptor(layer, LAYER_TYPE)) &&
    typeof annotations === "object" &&
    annotations !== null;
  if (!isWhole) throw refused("its manifest is damaged");
  // Checked before a registry sends any of it.
  const large = layers.find((layer: Descriptor) => layer.size > LAYER_BYTES_MAX);
  if (large === undefined) return manifest as Manifest;
  throw refused(`layer ${large.digest} has ${large.size} bytes, which none has`);
}

/** Throws BUNDLE_REFUSED unless one of the trusted keys (32 bytes each, in hexadecimal) signed the config. */
export function openConfig(
  manifest: Manifest,
  config: Buffer,
  trusted: readonly string[],
  where: string,
): Opened {
  const refused = (reason: string): TierkvError => refusedAt(where, reason);
  const { [SIGNER]: signer = "", [SIGNATURE]: signature = "" } = manifest.annotations;
  if (!/^[\da-f]{64}$/.test(signer)) throw refused("it is not signed");
  if (!trusted.includes(signer)) {
    throw refused(
      `it is signed by ${signer}, which is no key of --trust; ask who made it for the key`,
    );
  }
  const signed = Buffer.from(signature, "base64");
  const isIts = signed.toString("base64") === signature;
  if (!isIts || !isSignedBy(Buffer.from(signer, "hex"), contextOf(config), signed)) {
    throw refused("its signature is wrong: it was changed after it was signed");
  }
  const said = parsed(config, where) as BundleConfig;
  if (said.version !== 1) throw refused("it was made by a newer release; install that one here");
  const isSame =
    said.layers.length === manifest.layers.length &&
    said.layers.every(({ digest, size }, at) => {
      const named = manifest.layers[at];
      return named?.digest === digest && named.size === size;
    });
  if (!isSame) throw refused("its manifest names other layers than were signed");
  return { config: said, signer };
}

function isDescriptor(given: unknown, mediaType: string): given is Descriptor {
  const { mediaType: type, digest, size } = (given ?? {}) as Partial<Descriptor>;
  const isNamed = typeof digest === "string" && /^sha256:[\da-f]{64}$/.test(digest);
  return type === mediaType && isNamed && Number.isSafeInteger(size) && Number(size) >= 0;
}

export function parsed(bytes: Buffer, where: string): object {
  const value = parseObject(bytes.toString());
  if (value !== null) return value;
  throw refusedAt(where, "what should be a JSON object is none");
}
