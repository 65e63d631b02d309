// Owns `tierkv init`: writes a first tierkv.toml for this machine, and says the next command.
import { existsSync, realpathSync, statSync, writeFileSync } from "node:fs";
import { delimiter, isAbsolute, join, resolve } from "node:path";
import { Option } from "commander";
import { fileReason, TierkvError } from "../../base/errors.ts";
import { ownInterfaces } from "../../base/interfaces.ts";
import { tcpOnly } from "../../config/addresses.ts";
import { parseOption } from "../../config/override.ts";
import { firstConfig, MACHINES, nextSteps } from "../init/first-config.ts";
import type { Machine } from "../init/first-config.ts";
import { hiddenOf, ownProgram } from "../service/service-units.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

interface InitOptions {
  machine?: Machine;
  listen?: string;
  dataDir?: string;
  output?: string;
}

const VAULT_PORT = 50_051;
/** Devices of GPUs: NVIDIA's and AMD's. */
const GPUS = ["/dev/nvidiactl", "/dev/kfd"];

export function addInit(program: Command): void {
  program
    .command("init")
    .summary("write a first configuration of this machine")
    .description(
      "Writes a short tierkv.toml with comments, and prints the next command. Asks what the machine is for, on a\n" +
        "terminal; otherwise a machine with a GPU or a `vllm` command is an engine's, and any other a vault. Overwrites\n" +
        "no file.",
    )
    .addOption(
      new Option(
        "--machine <kind>",
        "engine (runs vLLM), vault (keeps blocks for others), or both (an engine that also keeps blocks on a disk)",
      ).choices(MACHINES),
    )
    .option("--listen <host:port>", "address at which other machines reach a vault")
    .option("--data-dir <path>", "folder for records on a disk (default: memory only)")
    .option("--output <path>", "file to write (default: that of --config, or tierkv.toml)")
    .example("tierkv init --machine vault --listen 192.168.1.10:50051")
    .does(init);
}

/** Returns the name by which a shell finds this program, or the path of a wheel's script that a shell does not find. */
function ownName({ PATH = "", TIERKV_COMMAND: script }: Call["io"]["env"]): string {
  if (script === undefined) return "tierkv";
  const scripts = PATH.split(delimiter).map((folder) => join(folder, "tierkv"));
  const found = scripts.find((path) => existsSync(path));
  const isOwn = found !== undefined && real(found) === real(script);
  // uvx puts an environment of its cache on the PATH while its command runs.
  return isOwn && !UVX.test(script) ? "tierkv" : script;
}

const real = (path: string): string => (existsSync(path) ? realpathSync(path) : path);

const UVX = /\/archive-v\d+\//;

/** Options of the printed `tierkv service`: root installs services of the machine, which see no file of a home folder. */
function serviceFlags(path: string): string {
  const isHidden = hiddenOf([...ownProgram(), path]) !== undefined;
  return process.getuid?.() === 0 && isHidden ? " --user" : "";
}

async function init(call: Call<InitOptions>): Promise<void> {
  const { options } = call;
  const path = resolve(options.output ?? call.configPath ?? "tierkv.toml");
  if (existsSync(path)) {
    const reason = statSync(path).isDirectory()
      ? `${path} is a folder: name a file in it, like --output ${join(path, "tierkv.toml")}`
      : `${path} exists: name another file with --output, or edit it`;
    throw new TierkvError("USAGE", { reason });
  }
  const seen = guess(call.io.env);
  const machine = options.machine ?? (await machineOf(call, seen.machine));
  if (machine !== "vault" && options.listen !== undefined) {
    throw new TierkvError("USAGE", {
      reason: "--listen is the address of a vault: add --machine vault, or leave it out",
    });
  }
  const dataDir = await folderOf(call, machine);
  const { localVaultBudget, vaultBudget } = await import("../../vault/process/memory.ts");
  const maxBytes = machine === "vault" ? vaultBudget(null) : localVaultBudget(null);
  const address = machine === "vault" ? addressOf(options.listen) : null;
  write(path, firstConfig({ machine, address, dataDir, maxBytes }));
  const next = nextSteps(machine, {
    path,
    tierkv: ownName(call.io.env),
    serviceFlags: serviceFlags(path),
  });
  const isGuessed = options.machine === undefined && !call.io.isInteractive;
  const why = isGuessed
    ? [`${seen.why}: written for a machine of kind ${machine}; --machine names another kind`]
    : [];
  call.print({ path, machine, next }, [...why, `wrote ${path}; next:`, "", ...next]);
}

/** Returns the kind that this machine's devices and programs suggest, and why. */
function guess({ PATH = "" }: Call["io"]["env"]): { machine: Machine; why: string } {
  const device = GPUS.find((path) => existsSync(path));
  if (device !== undefined) return { machine: "engine", why: `there is a GPU (${device})` };
  const vllm = PATH.split(delimiter)
    .map((folder) => join(folder, "vllm"))
    .find((path) => existsSync(path));
  if (vllm !== undefined) return { machine: "engine", why: `vLLM is installed (${vllm})` };
  return { machine: "vault", why: "there is neither a GPU nor a `vllm` command here" };
}

/** Asks a person; without one the guess counts. */
async function machineOf({ io }: Call<InitOptions>, found: Machine): Promise<Machine> {
  if (!io.isInteractive) return found;
  for (let tries = 1; ; tries += 1) {
    const text = await io.ask(`What is this machine: ${MACHINES.join(", ")}? [${found}]`);
    const answer = text === "" ? found : text;
    const known = MACHINES.find((kind) => kind === answer);
    if (known !== undefined) return known;
    const reason = `${answer.slice(0, 40)}: expected ${MACHINES.join(", ")}`;
    if (tries === ANSWERS_MAX) throw new TierkvError("USAGE", { reason });
    io.err(reason);
  }
}

/** Answers to a question before the command ends. */
const ANSWERS_MAX = 3;

/** A machine that is both has a disk, since that is what its vault adds to a sidecar's own. */
async function folderOf(
  { io, options }: Call<InitOptions>,
  machine: Machine,
): Promise<string | null> {
  let folder = options.dataDir ?? null;
  if (folder === null && machine === "both" && io.isInteractive) {
    folder = (await io.ask("Folder for records on a disk?")) || null;
  }
  if (folder === null && machine === "both") {
    throw new TierkvError("USAGE", {
      reason: "--machine both needs --data-dir, a folder on a disk",
    });
  }
  if (folder === null || isAbsolute(folder)) return folder;
  const reason = `--data-dir ${folder.slice(0, 100)}: the path must be absolute`;
  throw new TierkvError("USAGE", { reason });
}

function addressOf(given: string | undefined): string {
  if (given !== undefined)
    return parseOption(tcpOnly("192.168.1.10:50051", 1), "--listen", given).text;
  const others = ownInterfaces().filter(
    ({ internal, address, family }) =>
      !internal && family === "IPv4" && !address.startsWith("169.254."),
  );
  const [first] = others;
  if (first !== undefined) return `${first.address}:${VAULT_PORT}`;
  const reason = "this machine has no network address: name one with --listen";
  throw new TierkvError("USAGE", { reason });
}

/** Never replaces a file that appeared meanwhile. Throws SYSTEM. */
function write(path: string, text: string): void {
  try {
    writeFileSync(path, text, { flag: "wx" });
  } catch (error) {
    const isAbsent = error instanceof Error && "code" in error && error.code === "ENOENT";
    const why = isAbsent
      ? "its folder does not exist: make it, or name another"
      : fileReason(error);
    throw new TierkvError("SYSTEM", { reason: `${path} cannot be written: ${why}` });
  }
}
