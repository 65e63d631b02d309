// Owns the one table of configuration keys: kind, default and meaning; validation, example file and docs/config.md follow from it.
import { join } from "node:path";
import { MAX_KLD_DEFAULT, MAX_KLD_MAX } from "../base/limits/codec.ts";
import {
  MODEL_IDENTITY_CHARS_MAX,
  PATH_BYTES_MAX,
  RESTORE_STALL_MS_DEFAULT,
  RESTORE_WAIT_MS_DEFAULT,
  RESTORE_WAIT_MS_MAX,
} from "../base/limits/general.ts";
import { RECEIPTS_KEPT_DEFAULT, RECEIPTS_KEPT_MAX } from "../base/limits/receipts.ts";
import { LEDGER_WATTS_MAX } from "../base/limits/seen.ts";
import { VERIFY_SAMPLED_EVERY } from "../base/limits/truth.ts";
import { LOG_LEVELS } from "../base/log.ts";
import { byDefault, optional } from "./common-fields.ts";
import type { Field, Schema, Section } from "./field.ts";
import { boolean, choice, decimal, integer, label, path } from "./kinds.ts";
import { stateDir } from "./own-places.ts";
import { CLUSTER } from "./schema-cluster.ts";
import { ETCD } from "./schema-etcd.ts";
import { GATEWAY } from "./schema-gateway.ts";
import { SIDECAR } from "./schema-sidecar.ts";
import { VAULT } from "./schema-vault.ts";

export const SCHEMA: Schema = {
  cluster: CLUSTER,
  turbo_quant: {
    doc: "Compression of attention KV. A line `turbo_quant = false` at the top of the file means `enabled = false`.",
    fields: {
      enabled: {
        kind: boolean,
        doc: "Whether attention KV is compressed with a small loss. `true`: always, in about half the bytes of bf16; `tierkv fidelity` measures what that changes in your model's answers. `false`: never; attention KV and recurrent state come back bit for bit. Left out: `[codec] kv` decides. Engines that store differently share no blocks. A codec that contradicts `enabled` is refused.",
        ...optional("as `[codec] kv` says", "true"),
      },
      kv_dim: {
        kind: integer(1, 65_536),
        doc: "Head dimension of the model's attention. The engine reports it; a value here is checked against the engine's.",
        ...optional("the engine's", "256"),
      },
      states: {
        kind: choice(["raw", "bf16", "int8"]),
        doc: "Storage form of hybrid models' recurrent states, unless `enabled` is `false`. `raw`: exact. `bf16`: float32 states in half the bytes, about 55 dB of signal to noise. `int8`: one scale per vector, 41 to 44 dB; float32 states in about a quarter of the bytes, 16-bit ones in half. An error in a state affects all later tokens. The engine reads this key. Engines with different forms share no blocks.",
        ...byDefault("raw", "bf16"),
      },
    },
  },
  codec: {
    doc: "The codec of attention KV, if you want another one than `[turbo_quant] enabled` gives.",
    fields: {
      kv: {
        kind: choice(["auto", "raw", "lossless", "int8", "int8-mean-had"]),
        doc: "How attention KV is encoded. `raw`: the engine's bytes. `lossless`: also bit for bit, in about 0.7 of the bytes if the engine computes in bfloat16; for slow links and small vaults. `int8`: one scale per head vector. `int8-mean-had`: `int8` of K less its mean over 16 tokens, and of V, both after a Hadamard transform; the first token of a prompt stays exact. `auto`: for each vault `raw` or `lossless`, whichever restores soonest over the measured link; also `int8-mean-had`, once a certificate of the model says that it changes the answers by no more than `max_kld` (`tierkv fidelity` makes one). With `[turbo_quant] enabled = true`, `auto` is `int8-mean-had`. `tierkv status` shows the choice and its reason. Engines share blocks if both are exact, or both have the same lossy codec.",
        ...byDefault("auto", "int8-mean-had"),
      },
      max_kld: {
        kind: decimal(0, MAX_KLD_MAX),
        doc: "Largest mean change of the model's predictions by INT8 with which a certificate counts, in nats per token. The change between two exact runs of the same measurement is subtracted first. Above the limit, `auto` stores blocks bit for bit.",
        ...byDefault(MAX_KLD_DEFAULT, 0.00001),
      },
      certificates: {
        kind: path(PATH_BYTES_MAX),
        doc: "Directory of the certificates that `tierkv fidelity` writes. Each counts for the digest of one model's weights, one version of the codec and one order of bytes. tierKV also ships some certificates.",
        fallback: (env) => join(stateDir(env), "certificates"),
        fallbackText:
          "`certificates` in `$STATE_DIRECTORY` (systemd), else in `$XDG_STATE_HOME/tierkv`, else in `~/.local/state/tierkv`",
        example: '"/var/lib/tierkv/certificates"',
      },
    },
  },
  model: {
    doc: "The engine's model. The engine reads this section.",
    fields: {
      identity: {
        kind: label(MODEL_IDENTITY_CHARS_MAX),
        doc: "Your name for the exact weights, for example the model's name and commit. With it, the engine reads no model file to name its blocks, and weights that it cannot read (`s3://`, a streamer) have a name, too. tierKV trusts it: engines with the same name and configuration share blocks, so give different weights different names.",
        ...optional(
          "the digest of the model's files, read in the background after start, or noted by the Hugging Face download",
          '"org/model@3f1c0de"',
        ),
      },
    },
  },
  vault: VAULT,
  sidecar: SIDECAR,
  restore: {
    doc: "Which restores run, and how long a request waits for its blocks. After that, the engine computes them, as without tierKV.",
    fields: {
      wait_ms: {
        kind: integer(0, RESTORE_WAIT_MS_MAX, "ms"),
        doc: "Longest wait of a request for its blocks, in ms. The time counts from the moment when the engine has room for the request, at latest after it has waited 30 s for room. A prompt larger than shared memory comes in parts: then the limit holds for each part, and all parts together may take no longer than computing.",
        ...byDefault(RESTORE_WAIT_MS_DEFAULT),
      },
      stall_ms: {
        kind: integer(0, RESTORE_WAIT_MS_MAX, "ms"),
        doc: "Longest wait without progress, in ms. A restore waits longer for the bytes of a vault where it saves much: a tenth of what computing its tokens takes.",
        ...byDefault(RESTORE_STALL_MS_DEFAULT),
      },
      when: {
        kind: choice(["faster", "always"]),
        doc: "`faster`: restores run only if they should finish sooner than computing, as measured on this engine and link. `always`: every stored block is restored, to spare the engine the work.",
        ...byDefault("faster"),
      },
      verify: {
        kind: choice(["off", "sampled", "every"]),
        doc: `Restores whose last block an idle engine computes again to compare it. \`off\`: none. \`sampled\`: one in ${VERIFY_SAMPLED_EVERY}. \`every\`: all; an engine with a draft model checks none. If the blocks differ, that engine restores and saves nothing until it is restarted, and its sidecar uses nothing of that namespace until it is flushed.`,
        ...byDefault("sampled"),
      },
    },
  },
  gateway: GATEWAY,
  etcd: ETCD,
  receipts: {
    doc: "Signed receipts, which say what a restore gave to a request. `tierkv verify` checks them.",
    fields: {
      when: {
        kind: choice(["asked", "always"]),
        doc: 'Which restores get a receipt. `asked`: restores of requests with `{"tierkv": {"receipt": true}}` in `kv_transfer_params`. `always`: all restores.',
        ...byDefault("asked"),
      },
      dir: {
        kind: path(PATH_BYTES_MAX),
        doc: "Directory of the receipts and of the key that signs them (`signing.key`, mode 0600, made if absent).",
        fallback: (env) => join(stateDir(env), "receipts"),
        fallbackText:
          "`receipts` in `$STATE_DIRECTORY` (systemd), else in `$XDG_STATE_HOME/tierkv`, else in `~/.local/state/tierkv`",
        example: '"/var/lib/tierkv/receipts"',
      },
      keep: {
        kind: integer(1, RECEIPTS_KEPT_MAX, "receipts"),
        doc: "Number of receipts to keep. Older receipts are deleted. Each takes some kB.",
        ...byDefault(RECEIPTS_KEPT_DEFAULT),
      },
    },
  },
  ledger: {
    doc: "Savings by restores, as `tierkv top` shows them.",
    fields: {
      watts: {
        kind: integer(1, LEDGER_WATTS_MAX, "W"),
        doc: "Extra power in W while this machine computes prompts, over idling. It gives the saved energy.",
        ...optional("none: no energy is shown", "350"),
      },
    },
  },
  log: {
    doc: "Log lines on stderr: text on a terminal, JSON elsewhere. They never contain prompts or cache bytes.",
    fields: {
      level: {
        kind: choice(LOG_LEVELS),
        doc: "Least important level that is logged. The environment variable `TIERKV_LOG` takes precedence.",
        ...byDefault("info"),
      },
    },
  },
};

/** One key of the table, as data. */
export interface Entry {
  section: string;
  name: string;
  field: Field<unknown>;
}

export const SECTIONS: readonly (readonly [string, Section<Record<string, Field<unknown>>>])[] =
  Object.entries(SCHEMA);

export const ENTRIES: readonly Entry[] = SECTIONS.flatMap(([section, { fields }]) =>
  Object.entries(fields).map(([name, field]) => ({ section, name, field })),
);
