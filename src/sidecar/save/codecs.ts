// Owns which codec a class of records is encoded with, and the fidelity that the choice gives a namespace.
import type { RecordClass } from "../../base/block.ts";
import type { CodecConfig, KvCodec, TurboQuantConfig } from "../../config/config.ts";

/** Name of a codec, as `tierkv status` shows it. */
export type CodecName = Exclude<KvCodec, "auto">;

/** Codec ids of the record header, docs/protocol.md section 1. */
const CODEC_IDS: Readonly<Record<CodecName, number>> = {
  raw: 0,
  lossless: 1,
  int8: 2,
  "int8-mean-had": 4,
};
/** Returns the name of the codec with this id; null: there is none. */
export function codecNameOf(id: number): CodecName | null {
  const found = Object.entries(CODEC_IDS).find(([, own]) => own === id);
  return found === undefined ? null : (found[0] as CodecName);
}

export function codecId(name: CodecName): number {
  return CODEC_IDS[name];
}

/** True when blocks come back bit for bit. */
export function isExact(name: CodecName): boolean {
  return name === "raw" || name === "lossless";
}

/** True when a record's length is known only after encoding, so that it cannot be deferred. */
export function isVariable(id: number): boolean {
  return id === CODEC_IDS.lossless;
}

/** Fidelity of namespaces whose records decode to the engine's exact bytes, whichever codec made them. */
const FIDELITY_EXACT = 0;

export interface Codecs {
  /** Codec ids by class; with candidates, the ones used until something is measured. */
  readonly byClass: Readonly<Record<RecordClass, number>>;
  /** Part of every namespace: the id of the lossy codec in use, or 0. Engines of different fidelity never meet. */
  readonly fidelity: number;
  /** Codec of attention KV. */
  readonly kvName: CodecName;
  /** Codecs to choose from by measuring; empty: the configuration names the codec. */
  readonly candidates: readonly CodecName[];
  /** True when attention KV may come back as other bytes. */
  readonly isLossy: boolean;
}

interface Choice {
  codec: Pick<CodecConfig, "kv">;
  turboQuant: Pick<TurboQuantConfig, "enabled">;
}

/**
 * Lossy codec of "auto". Certificates name it with its version: raise the version when the same page decodes to other
 * bytes than before, so that no certificate of the former codec applies.
 */
export const LOSSY: { readonly name: CodecName; readonly version: number } = {
  name: "int8-mean-had",
  version: 1,
};

/** True when the codec depends on whether the engine's model is certified. */
export function asksCertificate({ codec, turboQuant }: Choice): boolean {
  return codec.kv === "auto" && turboQuant.enabled === null;
}

/**
 * Chooses the codecs; `isCertified`: "auto" may use the lossy codec with this engine's model. Recurrent state is raw here,
 * because the engine's pages already have the form that `states` asks for.
 */
export function chooseCodecs(choice: Choice, isCertified = false): Codecs {
  const { codec, turboQuant } = choice;
  if (codec.kv !== "auto") return codecsOf(codec.kv, []);
  if (turboQuant.enabled === true) return codecsOf(LOSSY.name, []);
  if (isCertified && asksCertificate(choice)) return codecsOf(LOSSY.name, [...EXACT, LOSSY.name]);
  return codecsOf("raw", EXACT);
}

const EXACT: readonly CodecName[] = ["raw", "lossless"];

function codecsOf(kvName: CodecName, candidates: readonly CodecName[]): Codecs {
  const id = CODEC_IDS[kvName];
  const isLossy = !isExact(kvName);
  return {
    byClass: { kv: id, ssm: CODEC_IDS.raw },
    fidelity: isLossy ? id : FIDELITY_EXACT,
    kvName,
    candidates,
    isLossy,
  };
}
