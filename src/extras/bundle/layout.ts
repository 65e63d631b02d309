// Owns a bundle in a directory: an OCI image layout with one manifest, whose blobs are checked against their digests.
import {
  closeSync,
  existsSync,
  fstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { makeDirectory } from "../../base/directory.ts";
import { isTierkvError, TierkvError, toTierkvError } from "../../base/errors.ts";
import { BUNDLE_JSON_BYTES_MAX } from "../../base/limits/tools.ts";
import { ARTIFACT_TYPE, digestOf, MANIFEST_TYPE, parsed, refusedAt } from "./manifest.ts";
import type { Descriptor } from "./manifest.ts";

const INDEX_TYPE = "application/vnd.oci.image.index.v1+json";
/** Keys in the specification; a damaged key is none of these. */
const INDEX_KEYS = ["schemaVersion", "mediaType", "manifests", "annotations"];
const NAMED_KEYS = ["mediaType", "digest", "size", "artifactType", "annotations"];
const LAYOUT = '{"imageLayoutVersion":"1.0.0"}';
/** Entries of an unfinished bundle. */
const BEGUN = ["oci-layout", "blobs"];
const BLOBS = ["blobs", "sha256"] as const;

type Named = Partial<Descriptor & { artifactType: string }>;

export class Layout {
  readonly path: string;

  constructor(path: string) {
    this.path = path;
  }

  /** Makes a new layout that only this user can read; `isAgain` resumes an unfinished one. Throws USAGE where other files are. */
  static create(path: string, isAgain = false): Layout {
    const layout = new Layout(path);
    makeDirectory(path);
    const isDirectory = statSync(path).isDirectory();
    const names = isDirectory ? readdirSync(path) : [];
    const strange = names.filter((name) => !isAgain || !BEGUN.includes(name));
    if (!isDirectory || strange.length > 0) {
      const reason = `${path} is ${isDirectory ? "not empty" : "no directory"}: name one that is to be made`;
      throw new TierkvError("USAGE", { reason });
    }
    mkdirSync(join(path, ...BLOBS), { recursive: true, mode: 0o700 });
    layout.#write("oci-layout", Buffer.from(LAYOUT));
    return layout;
  }

  has(digest: string): boolean {
    return existsSync(this.#blob(digest));
  }

  /** Writes a blob and returns its digest. */
  write(bytes: Buffer): string {
    const digest = digestOf(bytes);
    this.#write(join(...BLOBS, digest.replace("sha256:", "")), bytes);
    return digest;
  }

  /** Writes the manifest and the index, which complete the bundle. */
  finish(manifest: Buffer): string {
    const digest = this.write(manifest);
    const named = {
      mediaType: MANIFEST_TYPE,
      digest,
      size: manifest.length,
      artifactType: ARTIFACT_TYPE,
    };
    const index = { schemaVersion: 2, mediaType: INDEX_TYPE, manifests: [named] };
    this.#write("index.json", Buffer.from(JSON.stringify(index)));
    return digest;
  }

  remove(): void {
    for (const name of BEGUN) rmSync(join(this.path, name), { recursive: true, force: true });
    rmdirSync(this.path);
  }

  /** Throws BUNDLE_REFUSED, or USAGE where there is no directory. */
  manifest(): Buffer {
    this.#checkThere();
    const layout = this.#read("oci-layout", BUNDLE_JSON_BYTES_MAX);
    const { imageLayoutVersion } = parsed(layout, this.path) as Record<string, unknown>;
    if (imageLayoutVersion !== "1.0.0") throw this.refused("oci-layout is of another version");
    const manifests = this.#listed();
    const [named] = manifests;
    if (named === undefined || manifests.length > 1) {
      throw this.refused(`its index names ${manifests.length} manifests: expected one`);
    }
    const { mediaType, digest, size, artifactType = ARTIFACT_TYPE } = named;
    const isOurs = mediaType === MANIFEST_TYPE && artifactType === ARTIFACT_TYPE;
    const isNamed = /^sha256:[\da-f]{64}$/.test(String(digest));
    const isSmall = Number(size) <= BUNDLE_JSON_BYTES_MAX;
    if (!isOurs || !isNamed || !isSmall || !isKnown(named, NAMED_KEYS)) {
      throw this.refused("its index names no manifest of a bundle");
    }
    return this.read({ digest: String(digest), size: Number(size) });
  }

  #checkThere(): void {
    if (statSync(this.path, { throwIfNoEntry: false })?.isDirectory() !== true) {
      const reason = `bundle ${this.path}: there is no such directory`;
      throw new TierkvError("USAGE", { reason });
    }
    if (!existsSync(join(this.path, "index.json"))) {
      throw this.refused("there is no index.json: this is no bundle, or one that was not finished");
    }
  }

  #listed(): Named[] {
    const index = parsed(this.#read("index.json", BUNDLE_JSON_BYTES_MAX), this.path);
    const { schemaVersion, mediaType = INDEX_TYPE, manifests } = index as Record<string, unknown>;
    const isSound = schemaVersion === 2 && mediaType === INDEX_TYPE && isKnown(index, INDEX_KEYS);
    if (isSound && Array.isArray(manifests)) return manifests as Named[];
    throw this.refused("its index is damaged");
  }

  /** Throws BUNDLE_REFUSED where the bytes do not match the digest. */
  read({ digest, size }: Pick<Descriptor, "digest" | "size">): Buffer {
    const bytes = this.#read(join(...BLOBS, digest.replace("sha256:", "")), size);
    if (bytes.length === size && digestOf(bytes) === digest) return bytes;
    throw this.refused(`${digest} has other bytes: it was damaged, or cut off`);
  }

  refused(reason: string): TierkvError {
    return refusedAt(this.path, reason);
  }

  #blob(digest: string): string {
    return join(this.path, ...BLOBS, digest.replace("sha256:", ""));
  }

  /** Writes in one step, because an interrupted write has another name. */
  #write(name: string, bytes: Buffer): void {
    const path = join(this.path, name);
    writeFileSync(`${path}.part`, bytes, { mode: 0o600 });
    renameSync(`${path}.part`, path);
  }

  #read(name: string, most: number): Buffer {
    try {
      const handle = openSync(join(this.path, name), "r");
      try {
        const { size } = fstatSync(handle);
        if (size <= most) return readFileSync(handle);
        throw this.refused(`${name} has ${size} bytes, the limit is ${most}`);
      } finally {
        closeSync(handle);
      }
    } catch (error) {
      if (isTierkvError(error)) throw error;
      throw this.refused(`${name} cannot be read: ${toTierkvError(error).message}`);
    }
  }
}

function isKnown(object: object, keys: readonly string[]): boolean {
  return Object.keys(object).every((key) => keys.includes(key));
}
