// Owns which codec a class of records is encoded with, and the fidelity that the choice gives a namespace.
import type { RecordClass } from "../../block.ts";
import type { TurboQuantConfig } from "../../config/config.ts";

/** Codec ids of the record header, docs/protocol.md section 1. */
const CODEC_RAW = 0;
const CODEC_INT8 = 2;

/** As `tierkv status` shows it. */
export type CodecName = "raw" | "int8";
/** Fidelity of records that decode to the very bytes of the engine. */
const FIDELITY_EXACT = 0;

export interface Codecs {
  readonly byClass: Readonly<Record<RecordClass, number>>;
  /** Part of every namespace: the id of the lossy codec in use, or 0. Engines of different fidelity never meet. */
  readonly fidelity: number;
  /** How attention KV is stored. */
  readonly kvName: CodecName;
}

/** Recurrent state is raw here: where it is to take another form, the engine's pages have it already (`states`). */
export function chooseCodecs({ enabled }: Pick<TurboQuantConfig, "enabled">): Codecs {
  return enabled
    ? { byClass: { kv: CODEC_INT8, ssm: CODEC_RAW }, fidelity: CODEC_INT8, kvName: "int8" }
    : { byClass: { kv: CODEC_RAW, ssm: CODEC_RAW }, fidelity: FIDELITY_EXACT, kvName: "raw" };
}
