// Owns two reports on our dependencies: `npm run supply-chain` refuses forbidden ones, `npm run sbom` lists all (CycloneDX).
import { readFileSync } from "node:fs";
import { at } from "./lib/paths.js";
import { complaints, cratePackages, loosePins, nodePackages } from "./lib/supply-chain.js";

const packages = [...nodePackages(), ...cratePackages()];

if (process.argv.includes("--sbom")) {
  const { name, version } = JSON.parse(readFileSync(at("package.json"), "utf8"));
  const components = packages
    .filter(({ isTool }) => !isTool)
    .map(({ ecosystem, name: of, version: its, licence }) => ({
      type: "library",
      name: of,
      version: its,
      purl: `pkg:${ecosystem}/${of.replace(/^@/, "%40")}@${its}`,
      licenses: [{ expression: licence.replaceAll("/", " OR ") }],
    }));
  const bom = {
    bomFormat: "CycloneDX",
    specVersion: "1.5",
    version: 1,
    metadata: { component: { type: "application", name, version } },
    components,
  };
  process.stdout.write(`${JSON.stringify(bom, null, 2)}\n`);
} else {
  const loose = loosePins().map((line) => `${line}: names no exact version`);
  const found = [...complaints(packages), ...loose];
  for (const line of found) process.stdout.write(`${line}\n`);
  process.stdout.write(
    `${packages.length} packages, ${found.length} of them not as they must be\n`,
  );
  process.exitCode = found.length === 0 ? 0 : 1;
}
