// Owns the one table of configuration keys: kind, default and meaning; validation, example file and docs/config.md follow from it.
import { join } from "node:path";
import { MAX_KLD_DEFAULT, MAX_KLD_MAX } from "../limits/codec.ts";
import {
  PATH_BYTES_MAX,
  RESTORE_STALL_MS_DEFAULT,
  RESTORE_WAIT_MS_DEFAULT,
  RESTORE_WAIT_MS_MAX,
} from "../limits/general.ts";
import { RECEIPTS_KEPT_DEFAULT, RECEIPTS_KEPT_MAX } from "../limits/receipts.ts";
import { LEDGER_WATTS_MAX } from "../limits/seen.ts";
import { VERIFY_SAMPLED_EVERY } from "../limits/truth.ts";
import { LOG_LEVELS } from "../log.ts";
import { byDefault, optional } from "./common-fields.ts";
import type { Field, Schema, Section } from "./field.ts";
import { boolean, choice, decimal, integer, path } from "./kinds.ts";
import { stateDir } from "./own-places.ts";
import { CLUSTER } from "./schema-cluster.ts";
import { ETCD } from "./schema-etcd.ts";
import { GATEWAY } from "./schema-gateway.ts";
import { SIDECAR } from "./schema-sidecar.ts";
import { VAULT } from "./schema-vault.ts";

export const SCHEMA: Schema = {
  cluster: CLUSTER,
  turbo_quant: {
    doc: "Compression of attention KV. The one line `turbo_quant = false` at the top of the file means the same.",
    fields: {
      enabled: {
        kind: boolean,
        doc: "`true`: attention KV takes about half the bytes of bf16 and comes back nearly the same; `tierkv fidelity` says how near with your model. `false`: it, and recurrent state, come back bit for bit. The two never share blocks. `[codec] kv` says which codec of the two kinds; a contradiction is refused.",
        ...optional("`true`, unless `[codec] kv` is exact", "true"),
        isShown: true,
      },
      kv_dim: {
        kind: integer(1, 65_536),
        doc: "The model's attention head dimension. Taken from the engine; when given, it is checked against it.",
        ...optional("the engine's", "256"),
      },
      states: {
        kind: choice(["raw", "bf16", "int8"]),
        doc: "How the recurrent states of hybrid models are stored, where `enabled` is not `false`. `raw`: exactly. `bf16`: float32 states in half the bytes, about 55 dB of signal to noise. `int8`: float32 states in about a quarter, 16-bit ones in half of the bytes, one scale per vector, 41 to 44 dB. An error in a state is carried on to every later token. The engine reads this key; engines of different forms never share blocks.",
        ...byDefault("raw", "bf16"),
      },
    },
  },
  codec: {
    doc: "The codec of attention KV, for who wants another than `[turbo_quant] enabled` gives.",
    fields: {
      kv: {
        kind: choice(["auto", "raw", "lossless", "int8", "int8-had"]),
        doc: "`raw`: as the engine holds it. `lossless`: bit for bit, too, in about 0.7 of the bytes where the engine computes in bfloat16, for slow links and small vaults. `int8`: one scale per head vector. `int8-had`: the same after a Hadamard turn of K, which spreads the outlier channels that large models have. `auto`: for each vault `raw`, `lossless` or `int8-had`, whichever comes back soonest over its link as measured (`tierkv status` says which, and why); with `[turbo_quant] enabled = false`, `raw` or `lossless`. Engines share blocks where both are exact, or both have the same lossy codec.",
        ...byDefault("auto", "int8-had"),
      },
      max_kld: {
        kind: decimal(0, MAX_KLD_MAX),
        doc: "With `auto`: nats a token that a lossy codec may change what the model says next, on the mean, as estimated from the noise in the engine's own first blocks. Beyond it, blocks are stored bit for bit. `tierkv fidelity` measures it.",
        ...byDefault(MAX_KLD_DEFAULT, 0.00001),
      },
    },
  },
  vault: VAULT,
  sidecar: SIDECAR,
  restore: {
    doc: "How long a request may wait for its blocks. Past it, the engine computes them as if tierKV were not there.",
    fields: {
      wait_ms: {
        kind: integer(0, RESTORE_WAIT_MS_MAX, "ms"),
        doc: "In all, from the request's arrival.",
        ...byDefault(RESTORE_WAIT_MS_DEFAULT),
      },
      stall_ms: {
        kind: integer(0, RESTORE_WAIT_MS_MAX, "ms"),
        doc: "Without anything new arriving.",
        ...byDefault(RESTORE_STALL_MS_DEFAULT),
      },
      when: {
        kind: choice(["faster", "always"]),
        doc: "`faster`: only what answers sooner than computing it on this engine, over this link, as measured; `always`: whatever is held, to spare the engine the work.",
        ...byDefault("faster"),
      },
      verify: {
        kind: choice(["off", "sampled", "every"]),
        doc: `Whether an engine with nothing else to do computes the last block of a restore itself, and compares: of no restore, of one in ${VERIFY_SAMPLED_EVERY}, of each. Where the two differ nothing under that name is restored or saved until it is flushed.`,
        ...byDefault("sampled"),
      },
    },
  },
  gateway: GATEWAY,
  etcd: ETCD,
  receipts: {
    doc: "Signed accounts of what single requests were given, for `tierkv verify`.",
    fields: {
      when: {
        kind: choice(["asked", "always"]),
        doc: 'Which restores get one: those whose request says `{"tierkv": {"receipt": true}}` in `kv_transfer_params`, or each.',
        ...byDefault("asked"),
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
        ...byDefault(RECEIPTS_KEPT_DEFAULT),
      },
    },
  },
  ledger: {
    doc: "What `tierkv top` says that restores have spared.",
    fields: {
      watts: {
        kind: integer(1, LEDGER_WATTS_MAX, "W"),
        doc: "What this machine draws more while it computes prompts than while it idles: gives the energy that was not spent.",
        ...optional("none: no energy is shown", "350"),
      },
    },
  },
  log: {
    doc: "What is logged, to stderr: lines for people on a terminal, JSON elsewhere. Never prompts, never cache bytes.",
    fields: {
      level: {
        kind: choice(LOG_LEVELS),
        doc: "The least important lines shown. The environment variable `TIERKV_LOG` goes before it.",
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
