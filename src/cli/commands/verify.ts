// Owns `tierkv verify`: checks a receipt's signature, and its sampled blocks against the vaults.
import { TierkvError } from "../../base/errors.ts";
import { silent } from "../../base/log.ts";
import { showBytes, showMs } from "../../base/text.ts";
import { optionOr, parseOption } from "../../config/override.ts";
import type { Checked, Verdict } from "../../extras/receipt/verify.ts";
import type { ReceiptStatement } from "../../receipt/receipt.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { namespaceBegin, publicKey } from "../shell/option-kinds.ts";
import { whileWaiting } from "../shell/progress.ts";

interface VerifyFlags {
  trust?: string[];
  namespace?: string;
}

export function addVerify(program: Command): void {
  program
    .command("verify")
    .argument("<receipt>", "receipt's name from the request's answer, or a file")
    .summary("check a restore receipt against the vaults")
    .description(
      "Checks the receipt's signer and namespace, then the records of its sample: each is fetched from the vaults,\n" +
        "decoded, and its digest compared. Needs the vaults' read tokens. Exit code 1 if a digest differs or no record of\n" +
        "the sample is left. A block that was evicted and computed again may differ too.",
    )
    .option("--trust <key...>", "public keys of other machines trusted as signers")
    .option(
      "--namespace <hex>",
      "expected namespace or its first digits (default: those of this machine's engines)",
    )
    .example("tierkv verify 0f3c5a7e9b1d2f4a6c8e0b2d4f6a8c1e")
    .does(verify);
}

async function verify(call: Call<VerifyFlags>): Promise<boolean> {
  const [named = ""] = call.args;
  const { trust = [], namespace: begin } = call.options;
  const keys = trust.map((key) => parseOption(publicKey, "--trust", key));
  const namespace = optionOr(namespaceBegin, "--namespace", begin, null);
  const [{ openReceipt }, { ReceiptFolder }, { loadRecordKeys }, { checkNamed }] =
    await Promise.all([
      import("../../receipt/receipt.ts"),
      import("../../receipt/folder.ts"),
      import("../../config/conditions.ts"),
      import("../../control/engine-names.ts"),
    ]);
  const config = call.loadConfig();
  const folder = new ReceiptFolder(config.receipts.dir, config.receipts.keep);
  const { text, where } = folder.read(named);
  const own = folder.ownKey()?.publicKey.toString("hex");
  const trusted = [...(own === undefined ? [] : [own]), ...keys];
  const { statement, signer } = openReceipt(text, trusted, where);
  const refused = (reason: string): TierkvError =>
    new TierkvError("RECEIPT_REFUSED", { where, reason });
  await checkNamed(config, statement, namespace, refused);
  await loadRecordKeys(config);
  const [{ checkSample }, { greeted, linkTo }, { allTargets }, { greet }] = await Promise.all([
    import("../../extras/receipt/verify.ts"),
    import("../../cluster/vault-link.ts"),
    import("../../cluster/sources.ts"),
    import("../vaults/greeting.ts"),
  ]);
  // Shared memory is asked, too.
  const open = async (): ReturnType<typeof greeted> =>
    await greeted(
      await allTargets(config),
      (target, name) => linkTo(config, { ...target, classes: [name] }, silent, 1),
      greet,
    );
  const vaults = await whileWaiting(call.io, () => "the vaults", open);
  try {
    const checked = await checkSample(statement, vaults.clients);
    const count = (verdict: Verdict): number =>
      checked.filter((one) => one.verdict === verdict).length;
    const [same, differs, gone] = [count("same"), count("differs"), count("gone")];
    const blocks = statement.groups.reduce((sum, group) => sum + group.blocks, 0);
    const said = { ...statement, sample: undefined, shapes: undefined };
    call.print(
      { ...said, signer, blocks, same, differs, gone, checked },
      describe(statement, checked, { same, differs, gone, blocks }),
    );
    return differs === 0 && same > 0;
  } finally {
    vaults.close();
  }
}

function describe(
  { request, model, at, tokens, bytes, savedMs, namespace, fidelity }: ReceiptStatement,
  checked: readonly Checked[],
  { same, differs, gone, blocks }: Record<Verdict | "blocks", number>,
): string[] {
  const saved = savedMs === null ? "" : `, ${showMs(savedMs)} saved`;
  const kind = fidelity === 0 ? "exact" : "lossy";
  return [
    `${request} (${model || "an unnamed model"}, ${at}): tokens ${tokens.from} to ${tokens.to}, ${blocks} blocks, ${showBytes(bytes)}${saved}`,
    `  namespace ${namespace} (${kind}); signature right`,
    `  of ${checked.length} records in its sample ${same} are the same, ${differs} differ, ${gone} are gone`,
    ...checked.filter(({ verdict }) => verdict !== "same").map(shown),
  ];
}

function shown({ group, shard, block, hash, verdict, vault }: Checked): string {
  const from = vault === null ? "no vault has it" : `from ${vault}`;
  return `  ${verdict}: block ${block} of group ${group}, shard ${shard}, ${hash.slice(0, 16)}: ${from}`;
}
