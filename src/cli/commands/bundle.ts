// Owns `tierkv bundle`: exports a session or a prefix as a signed file tree, imports it, and copies it to and from registries.
import { resolve } from "node:path";
import { TierkvError } from "../../base/errors.ts";
import { KEEP_S_MAX } from "../../base/limits/sessions.ts";
import { showBytes } from "../../base/text.ts";
import { duration } from "../../config/kinds.ts";
import { optionOr, parseOption } from "../../config/override.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { namespaceBegin, publicKey } from "../shell/option-kinds.ts";
import { Progress, whileWaiting } from "../shell/progress.ts";

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
    .summary("copy the stored blocks of a session or a prefix to other vaults")
    .description(
      "Exports, imports and copies bundles. A bundle is an OCI image layout in a directory, with checked, signed and\n" +
        "sealed records. Engines with the same model, settings and namespace can restore it.",
    )
    .example("tierkv bundle import handbook --trust KEY --for 1d");
  bundle
    .command("export")
    .argument("<dir>", "new folder for the bundle")
    .summary("export a session, or the blocks of a request's prompt, as a bundle")
    .description(
      "Exports records from the vaults to a directory. Run it on the engine's machine; it needs the vaults' admin\n" +
        "tokens. --sign and --seal name files of 64 hexadecimal digits with mode 600 (`openssl rand -hex 32`). Importers\n" +
        "trust the public key that the command prints. Plain records reveal the prompt, so records without a seal from\n" +
        "[sidecar] record_keys need --seal or --unsealed.",
    )
    .requiredOption("--sign <file>", "file with the signing key")
    .option("--session <name>", "session to export, by the name in its requests")
    .option(
      "--request <id>",
      "request id (see `tierkv explain`); exports the part of its prompt that was looked up",
    )
    .option("--block <hash>", "hash of the last block of the prefix to export")
    .option("--namespace <hex>", "namespace or its first digits, if several match")
    .option("--seal <file>", "file with the key that seals the records")
    .option("--unsealed", "leave records unsealed; anyone with the bundle can read them")
    .example("tierkv bundle export book --session book --sign sign.key --seal seal.key")
    .does(makeBundle);
  bundle
    .command("import")
    .argument("<dir>", "folder of a bundle")
    .summary("store a bundle's records in this machine's vaults")
    .description(
      "Checks signature, digests and namespace, then stores the records, beginning with the prompt's first block. After\n" +
        "an interruption the stored beginning is usable, and another run continues. Exit code 1 if some blocks are not in\n" +
        "the vaults at the end.",
    )
    .requiredOption("--trust <key...>", "public keys of trusted signers")
    .option("--seal <file>", "file with the key that sealed the bundle")
    .option(
      "--namespace <hex>",
      "expected namespace or its first digits (default: those of this machine's engines)",
    )
    .option("--for <time>", "time to protect the records from eviction: 2h, 7d")
    .example("tierkv bundle import handbook --trust KEY --seal seal.key --for 1d")
    .does(takeBundle);
  const registry = "place in an OCI registry, as oci://HOST[:PORT]/NAME:TAG";
  bundle
    .command("push")
    .argument("<dir>", "folder of the bundle")
    .argument("<ref>", registry)
    .summary("copy a bundle to a registry")
    .description(`Copies a bundle from a folder to an OCI registry, ${AS_SIGNED_IN}`)
    .option("--plain-http", "connect to the registry without TLS")
    .example("tierkv bundle push handbook oci://registry.example/kv/handbook:1")
    .does(async (call: Call<MoveFlags>) => await transfer(call, true));
  bundle
    .command("pull")
    .argument("<ref>", registry)
    .argument("<dir>", "new folder for the bundle")
    .summary("copy a bundle from a registry")
    .description(`Copies a bundle from an OCI registry to a folder, ${AS_SIGNED_IN}`)
    .option("--plain-http", "connect to the registry without TLS")
    .example("tierkv bundle pull oci://registry.example/kv/handbook:1 handbook")
    .does(async (call: Call<MoveFlags>) => await transfer(call, false));
}

const AS_SIGNED_IN =
  "with the credentials of `docker login`\nor `podman login`. " +
  "Blobs that are there already are skipped. The copy checks digests; `tierkv bundle import`\nchecks the signature.";

const SIGN_USE = ", and keep it: whoever has it signs as you";
const SEAL_USE = ", and give it to those who may read the bundle";

async function makeBundle(call: Call<ExportFlags>): Promise<void> {
  const { session, request, block, namespace: begin, sign, seal, unsealed = false } = call.options;
  const namespace = optionOr(namespaceBegin, "--namespace", begin, "");
  if ([session, request, block].filter((given) => given !== undefined).length !== 1) {
    const reason = "name what to export with one of --session, --request and --block";
    throw new TierkvError("USAGE", { reason });
  }
  const { readSecret } = await import("../../base/signing-key.ts");
  const { bundleKey } = await import("../../extras/bundle/manifest.ts");
  const key = bundleKey(readSecret(sign, "--sign", SIGN_USE));
  const secret = seal === undefined ? null : readSecret(seal, "--seal", SEAL_USE);
  const config = call.loadConfig();
  const [{ loadRecordKeys }, { openVaults }, { greet }, { select }, { exportBundle }] =
    await Promise.all([
      import("../../config/conditions.ts"),
      import("../../extras/bundle/vaults.ts"),
      import("../vaults/greeting.ts"),
      import("../../extras/bundle/selection.ts"),
      import("../../extras/bundle/export.ts"),
    ]);
  await loadRecordKeys(config);
  const hash = request === undefined ? block : await blockOf(call, request);
  const wanted = {
    session: session ?? null,
    block: hash === undefined ? null : hashFrom(hash),
    namespace,
  };
  const vaults = await whileWaiting(
    call.io,
    () => "the vaults",
    () => openVaults(config, greet),
  );
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
  const { explainOne } = await import("../../extras/bundle/vaults.ts");
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
  const { readSecret } = await import("../../base/signing-key.ts");
  const secret = seal === undefined ? null : readSecret(seal, "--seal", SEAL_USE);
  const [{ Layout }, { Importer, openBundle }, { openVaults }, { greet }, { checkNamed }] =
    await Promise.all([
      import("../../extras/bundle/layout.ts"),
      import("../../extras/bundle/import.ts"),
      import("../../extras/bundle/vaults.ts"),
      import("../vaults/greeting.ts"),
      import("../../control/engine-names.ts"),
    ]);
  const config = call.loadConfig();
  const layout = new Layout(resolve(call.args[0] ?? ""));
  const opened = openBundle(layout, trusted);
  const refused = (reason: string): TierkvError => layout.refused(reason);
  await checkNamed(config, opened.config, given, refused, WHY_OTHER[opened.config.seal]);
  const vaults = await whileWaiting(
    call.io,
    () => "the vaults",
    () => openVaults(config, greet),
  );
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
      import("../../extras/bundle/layout.ts"),
      import("../../extras/bundle/registry.ts"),
      import("../../extras/bundle/transfer.ts"),
      import("../../extras/bundle/credentials.ts"),
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
