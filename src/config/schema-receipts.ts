// Owns the keys of restore receipts.
import { join } from "node:path";
import { PATH_BYTES_MAX } from "../limits/general.ts";
import { RECEIPTS_KEPT_DEFAULT, RECEIPTS_KEPT_MAX } from "../limits/receipts.ts";
import type { ReceiptsConfig } from "./config.ts";
import type { Field } from "./field.ts";
import { choice, integer, path } from "./kinds.ts";
import { stateDir } from "./schema-access.ts";

export const RECEIPTS: {
  when: Field<ReceiptsConfig["when"]>;
  dir: Field<ReceiptsConfig["dir"]>;
  keep: Field<ReceiptsConfig["keep"]>;
} = {
  when: {
    kind: choice(["asked", "always"]),
    doc: 'Which restores get one: those whose request says `{"tierkv": {"receipt": true}}` in `kv_transfer_params`, or each.',
    fallback: () => "asked",
    fallbackText: '`"asked"`',
    example: '"asked"',
  },
  dir: {
    kind: path(PATH_BYTES_MAX),
    doc: "Where they lie, with the key that signs them (`signing.key`, made by itself, mode 0600).",
    fallback: (env) => join(stateDir(env), "receipts"),
    fallbackText:
      "`receipts` in `$STATE_DIRECTORY` (systemd), else in `$XDG_STATE_HOME/tierkv`, else in `~/.local/state/tierkv`",
    example: '"/var/lib/tierkv/receipts"',
  },
  keep: {
    kind: integer(1, RECEIPTS_KEPT_MAX, "receipts"),
    doc: "The latest so many stay; each has some kB.",
    fallback: () => RECEIPTS_KEPT_DEFAULT,
    fallbackText: `\`${RECEIPTS_KEPT_DEFAULT}\``,
    example: String(RECEIPTS_KEPT_DEFAULT),
  },
};
