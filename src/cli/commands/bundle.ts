// Owns `tierkv bundle`: exports a session or a prefix as a signed file tree, imports it, and copies it to and from registries.
import { resolve } from "node:path";
import { duration } from "../../config/kinds.ts";
import { optionOr, parseOption } from "../../config/override.ts";
import { TierkvError } from "../../errors.ts";
import { KEEP_S_MAX } from "../../limits/sessions.ts";
import type { Call } from "../call.ts";
import type { Command } from "../command.ts";
import { namespaceBegin, publicKey } from "../option-kinds.ts";
import { Progress } from "../progress.ts";
import { showBytes } from "../text.ts";

interface ExportFlags {
  session?: string;
  request?: string;
  block?: string;
  namespace?: string;
  sign: string;
  seal?: string;
  unsealed?: boolean;
}

interface ImportFlags {
  trust: string[];
  seal?: string;
  namespace?: string;
  for?: string;
}

interface MoveFlags {
  plainHttp?: boolean;
}

export function addBundle(program: Command): void {
  const bundle = program
    .command("bundle")
    .summary("take what is stored of a session or a prefix to other vaults")
    .description(
      "A bundle is an OCI image layout in a directory: records as the vaults have them, checked, signed, and sealed. Engines\n" +
        "restore it where the model, its settings and the namespace are the same.",
    )
    .example("tierkv bundle import handbook --trust KEY --for 1d");
  bundle
    .command("export <dir>")
    .summary("make a bundle of a session, or of the blocks of a request's prompt")
    .description(
      "Run it on the engine's machine; needs the vaults' admin tokens. --sign names a file of 64 hexadecimal digits (`openssl rand\n" +
        "-hex 32`, mode 600); who imports trusts the public key that is printed. Whoever has the records can tell the prompt:\n" +
        "those that [sidecar] record_keys did not seal need a second such file, --seal, or --unsealed.",
    )
    .requiredOption("--sign <file>", "of the key that signs")
    .option("--session <name>", "as requests name it")
    .option("--request <id>", "its prompt, as far as it was looked up (`tierkv explain`)")
    .option("--block <hash>", "what leads to this block")
    .option("--namespace <hex>", "how it begins, where there are several")
    .option("--seal <file>", "of the key that seals")
    .option("--unsealed", "whoever has the bundle may read it")
    .example("tierkv bundle export book --session book --sign sign.key --seal seal.key")
    .does(makeBundle);
  bundle
    .command("import <dir>")
    .summary("store a bundle's records in this machine's vaults")
    .description(
      "Nothing is stored before signature, digests and namespace are checked. Blocks go in from the prompt's first on: what is cut\n" +
        "off leaves a beginning, and another run goes on. Exit code 1 when not all of it is in the vaults at the end.",
    )
    .requiredOption("--trust <key...>", "public keys of those who may have signed")
    .option("--seal <file>", "of the key that sealed it")
    .option("--namespace <hex>", "how it begins (default: those of the engines here)")
    .option("--for <time>", "keep it from eviction so long: 2h, 7d")
    .example("tierkv bundle import handbook --trust KEY --seal seal.key --for 1d")
    .does(takeBundle);
  for (const isPush of [true, false]) {
    const [name, args] = isPush ? ["push", "<dir> <ref>"] : ["pull", "<ref> <dir>"];
    const example = isPush
      ? "push handbook oci://registry.example/kv/handbook:1"
      : "pull oci://registry.example/kv/handbook:1 handbook";
    bundle
      .command(`${name} ${args}`)
      .summary(isPush ? "copy a bundle to a registry" : "copy a bundle from a registry")
      .description(
        "Any OCI registry, as `docker login` or `podman login` left its credentials. What is there already does not travel. Digests\n" +
          "are checked on the way, the signature by `tierkv bundle import`.",
      )
      .option("--plain-http", "without TLS")
      .example(`tierkv bundle ${example}`)
      .does(async (call: Call<MoveFlags>) => await transfer(call, isPush));
  }
}

const SIGN_USE = ", and keep it: whoever has it signs as you";
const SEAL_USE = ", and give it to those who may read the bundle";

async function makeBundle(call: Call<ExportFlags>): Promise<void> {
  const { session, request, block, namespace: begin, sign, seal, unsealed = false } = call.options;
  const namespace = optionOr(namespaceBegin, "--namespace", begin, "");
  if ([session, request, block].filter((given) => given !== undefined).length !== 1) {
    const reason = "name what to export with one of --session, --request and --block";
    throw new TierkvError("USAGE", { reason });
  }
  const { readSecret } = await import("../../signing-key.ts");
  const { bundleKey } = await import("../../bundle/manifest.ts");
  const key = bundleKey(readSecret(sign, "--sign", SIGN_USE));
  const secret = seal === undefined ? null : readSecret(seal, "--seal", SEAL_USE);
  const config = call.loadConfig();
  const [{ loadRecordKeys }, { openVaults }, { select }, { exportBundle }] = await Promise.all([
    import("../conditions.ts"),
    import("../bundle-vaults.ts"),
    import("../bundle-selection.ts"),
    import("../bundle-export.ts"),
  ]);
  await loadRecordKeys(config);
  const hash = request === undefined ? block : await blockOf(call, request);
  const wanted = {
    session: session ?? null,
    block: hash === undefined ? null : hashFrom(hash),
    namespace,
  };
  const vaults = await openVaults(config);
  const progress = new Progress(call.io);
  try {
    const selection = await select(vaults.clients, wanted);
    const { behind } = selection;
    const path = resolve(call.args[0] ?? "");
    const { digest, config: made } = await exportBundle({
      path,
      selection,
      key,
      secret,
      isUnsealed: unsealed,
      onProgress: (done, all) => progress.at(done, all, "records leave the vaults"),
    });
    const { layers, ...said } = made;
    const signer = key.publicKey.toString("hex");
    const tokens = made.tokens === null ? "" : ` (${made.tokens} tokens)`;
    call.print({ path, digest, signer, behind, layers: layers.length, ...said }, [
      `${path}: ${made.blocks} blocks${tokens} of ${made.model || "an unnamed model"}, ${made.records} records, ${showBytes(made.bytes)}`,
      `  ${SEALED[made.seal]}; namespace ${made.namespace}`,
      ...(behind === 0 ? [] : [`  ${behind} records behind a block that is gone were left out`]),
      `  import it with --trust ${signer}`,
    ]);
  } finally {
    vaults.close();
  }
}

const SEALED = {
  bundle: "sealed with the key of --seal",
  records: "sealed by [sidecar] record_keys: importers need the same",
  none: "not sealed: whoever has it can tell the prompt",
};

const WHY_OTHER = {
  records: "another model, other settings, or other record_keys",
  bundle: undefined,
  none: undefined,
};

/** Returns the last block of the prompt for which the sidecar looked up a request. */
async function blockOf(call: Call, request: string): Promise<string> {
  const { explainOne } = await import("../bundle-vaults.ts");
  const account = await explainOne(call.loadConfig(), request);
  if (account.block !== "") return account.block;
  throw new TierkvError("USAGE", { reason: `request ${request} was not looked up` });
}

function hashFrom(text: string): Buffer {
  if (/^[\da-f]{64}$/i.test(text)) return Buffer.from(text, "hex");
  throw new TierkvError("USAGE", { reason: "--block needs the 64 hexadecimal digits of a hash" });
}

async function takeBundle(call: Call<ImportFlags>): Promise<boolean> {
  const { trust, seal, namespace: begin, for: time } = call.options;
  const trusted = trust.map((key) => parseOption(publicKey, "--trust", key));
  const given = optionOr(namespaceBegin, "--namespace", begin, null);
  const keepS = optionOr(duration(KEEP_S_MAX), "--for", time, 0);
  const { readSecret } = await import("../../signing-key.ts");
  const secret = seal === undefined ? null : readSecret(seal, "--seal", SEAL_USE);
  const [{ Layout }, { Importer, openBundle }, { openVaults }, { checkNamed }] = await Promise.all([
    import("../../bundle/layout.ts"),
    import("../bundle-import.ts"),
    import("../bundle-vaults.ts"),
    import("../engine-names.ts"),
  ]);
  const config = call.loadConfig();
  const layout = new Layout(resolve(call.args[0] ?? ""));
  const opened = openBundle(layout, trusted);
  const refused = (reason: string): TierkvError => layout.refused(reason);
  await checkNamed(config, opened.config, given, refused, WHY_OTHER[opened.config.seal]);
  const vaults = await openVaults(config);
  const progress = new Progress(call.io);
  try {
    const importer = new Importer({
      layout,
      opened,
      secret,
      clients: vaults.clients,
      pools: vaults.pools,
      keepS,
      onProgress: (done, all) => progress.at(done, all, "layers are checked, then stored"),
    });
    importer.check();
    const done = await importer.run();
    const { blocks, model } = opened.config;
    const why = Object.entries(done.failed).map(([reason, count]) => `${count} ${reason}`);
    call.print({ ...done, of: blocks, signer: opened.signer, model }, [
      `${done.stored} records stored, ${done.present} were there already`,
      ...(why.length === 0 ? [] : [`  stopped: ${why.join(", ").replaceAll("_", " ")}`]),
      `  ${done.blocks} of ${blocks} blocks are in the vaults${done.blocks < blocks ? ": they are too small, or one does not answer" : ""}`,
    ]);
    return done.blocks >= blocks && why.length === 0;
  } finally {
    vaults.close();
  }
}

async function transfer(call: Call<MoveFlags>, isPush: boolean): Promise<void> {
  const [first = "", second = ""] = call.args;
  const [directory, text] = isPush ? [first, second] : [second, first];
  const [{ Layout }, { parseReference, Registry }, { push, pull }, { loginFor }] =
    await Promise.all([
      import("../../bundle/layout.ts"),
      import("../../bundle/registry.ts"),
      import("../../bundle/transfer.ts"),
      import("../../bundle/credentials.ts"),
    ]);
  const reference = parseReference(text);
  const login = loginFor(reference.registry, call.io.env);
  const isPlain = call.options.plainHttp === true;
  const registry = new Registry({ reference, isPlain, login });
  const progress = new Progress(call.io);
  const onProgress = (done: number, all: number): void => progress.at(done, all, "blobs");
  const path = resolve(directory);
  const done = await (isPush
    ? push(new Layout(path), registry, onProgress)
    : pull(registry, path, onProgress));
  const { digest, blobs, sent, bytes } = done;
  call.print(done, [
    `${digest}: ${sent} of ${blobs} blobs travelled (${showBytes(bytes)}), the others were there`,
  ]);
}
