// Owns moving a bundle between a directory and a registry, blob by blob; blobs already there are skipped.
import { BUNDLE_JSON_BYTES_MAX } from "../../base/limits/tools.ts";
import { Layout } from "./layout.ts";
import { digestOf, readManifest } from "./manifest.ts";
import type { Registry } from "./registry.ts";

export interface Transferred {
  /** Digest of the manifest. */
  digest: string;
  blobs: number;
  sent: number;
  bytes: number;
}

type OnProgress = (done: number, all: number) => void;

export async function push(
  layout: Layout,
  registry: Registry,
  onProgress: OnProgress,
): Promise<Transferred> {
  const manifest = layout.manifest();
  const { config, layers } = readManifest(manifest, layout.path);
  const blobs = [config, ...layers];
  const done: Transferred = { digest: digestOf(manifest), blobs: blobs.length, sent: 0, bytes: 0 };
  for (const [at, blob] of blobs.entries()) {
    const bytes = layout.read(blob);
    if (!(await registry.hasBlob(blob.digest))) {
      await registry.putBlob(blob.digest, bytes);
      done.sent += 1;
      done.bytes += blob.size;
    }
    onProgress(at + 1, blobs.length);
  }
  // The manifest goes last, so that all blobs that it names are there when it is found.
  await registry.putManifest(manifest);
  return done;
}

export async function pull(
  registry: Registry,
  path: string,
  onProgress: OnProgress,
): Promise<Transferred> {
  const manifest = await registry.manifest(BUNDLE_JSON_BYTES_MAX);
  const { config, layers } = readManifest(manifest, path);
  const layout = Layout.create(path, true);
  const blobs = [config, ...layers];
  const done: Transferred = { digest: digestOf(manifest), blobs: blobs.length, sent: 0, bytes: 0 };
  for (const [at, blob] of blobs.entries()) {
    if (!layout.has(blob.digest)) {
      layout.write(await registry.blob(blob));
      done.sent += 1;
      done.bytes += blob.size;
    }
    onProgress(at + 1, blobs.length);
  }
  layout.finish(manifest);
  return done;
}
