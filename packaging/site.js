// Owns `npm run site`: README and docs/ as static pages with a search, by MkDocs, in site/.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { at } from "../.ci/lib/paths.js";
import { call } from "./call.js";

const venv = at(".venv-site");
const bin = join(venv, "bin");
const folder = at("packaging", "site");
if (!existsSync(join(bin, "pip"))) call("python3", ["-m", "venv", venv]);
const quiet = ["--quiet", "--disable-pip-version-check"];
call(join(bin, "pip"), ["install", ...quiet, "-r", join(folder, "requirements.txt")]);
// Strict: a link that leads nowhere is an error.
call(join(bin, "mkdocs"), ["build", "--strict", "--quiet", "-f", join(folder, "mkdocs.yml")]);
process.stdout.write(`${at("site", "index.html")}\n`);
