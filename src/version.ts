// Owns the version of this release: that of package.json, which lies as far above src as above dist.
import { readFileSync } from "node:fs";

export function packageVersion(): string {
  const text = readFileSync(new URL("../package.json", import.meta.url), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}
