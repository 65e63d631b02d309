// Owns which codec a class of records is encoded with, and the fidelity that the choice gives a namespace.
import type { RecordClass } from "../../block.ts";
import type { CodecConfig, KvCodec, TurboQuantConfig } from "../../config/config.ts";

/** As `tierkv status` shows it. */
export type CodecName = Exclude<KvCodec, "auto">;

/** Codec ids of the record header, docs/protocol.md section 1. */
const CODEC_IDS: Readonly<Record<CodecName, number>> = {
  raw: 0,
  lossless: 1,
  int8: 2,
  "int8-had": 3,
};
/** Of the codec with this id. */
export function codecNameOf(id: number): CodecName | null {
  const found = Object.entries(CODEC_IDS).find(([, own]) => own === id);
  return found === undefined ? null : (found[0] as CodecName);
}

export function codecId(name: CodecName): number {
  return CODEC_IDS[name];
}

/** Whether blocks come back bit for bit. */
export function isExact(name: CodecName): boolean {
  return name === "raw" || name === "lossless";
}

/** Whether the length of a record is known only once it is made: no deferred record of it can be sent. */
export function isVariable(id: number): boolean {
  return id === CODEC_IDS.lossless;
}

/** Of namespaces whose records decode to the very bytes of the engine, whichever codec made them. */
const FIDELITY_EXACT = 0;

export interface Codecs {
  /** While nothing is measured, where there are candidates. */
  readonly byClass: Readonly<Record<RecordClass, number>>;
  /** Part of every namespace: the id of the lossy codec in use, or 0. Engines of different fidelity never meet. */
  readonly fidelity: number;
  /** How attention KV is stored. */
  readonly kvName: CodecName;
  /** What a choice is made among by measuring; none: the configuration names the codec. */
  readonly candidates: readonly CodecName[];
  /** Whether attention KV may come back as other bytes. */
  readonly isLossy: boolean;
}

interface Choice {
  codec: Pick<CodecConfig, "kv">;
  turboQuant: Pick<TurboQuantConfig, "enabled">;
}

/** Recurrent state is raw here: where it is to take another form, the engine's pages have it already (`states`). */
export function chooseCodecs({ codec, turboQuant }: Choice): Codecs {
  const candidates = codec.kv === "auto" ? CANDIDATES : [];
  const kvName = codec.kv === "auto" ? automatic(turboQuant.enabled ?? true) : codec.kv;
  const id = CODEC_IDS[kvName];
  const isLossy = !isExact(kvName);
  return {
    byClass: { kv: id, ssm: CODEC_IDS.raw },
    fidelity: isLossy ? id : FIDELITY_EXACT,
    kvName,
    candidates: candidates.filter((name) => isExact(name) || name === kvName),
    isLossy,
  };
}

/** `int8` is not among them: with outlier channels it is beyond the bound (decision 0078). */
const CANDIDATES: readonly CodecName[] = ["raw", "lossless", "int8-had"];

/** Decision 0078: the transform is never worse, and its time is less than what the smallest link needs. */
function automatic(isLossy: boolean): CodecName {
  return isLossy ? "int8-had" : "raw";
}
