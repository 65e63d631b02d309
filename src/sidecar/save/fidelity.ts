// Owns the decision whether one engine's blocks may be lossy: by configuration, or by a certificate of its very weights.
import type { Logger } from "../../base/log.ts";
import type { Config } from "../../config/config.ts";
import { excessOf, isAbout } from "./certificate.ts";
import type { Certificate, Subject } from "./certificate.ts";
import { readCertificates } from "./certificates.ts";
import { CERTIFIED } from "./certified.ts";
import { asksCertificate, chooseCodecs, codecId, LOSSY } from "./codecs.ts";
import type { Codecs, CodecName } from "./codecs.ts";

/**
 * configured: no certificate is asked for · certified · uncertified: there is no certificate of these weights · other_codec: it is
 * about another codec or version · other_order: about another order of K and V in records · unknown_order: the engine's order is
 * not proven · beyond: above `[codec] max_kld` · unidentified: the engine has not named its weights yet.
 */
export type FidelityWhy =
  | "configured"
  | "certified"
  | "uncertified"
  | "other_codec"
  | "other_order"
  | "unknown_order"
  | "beyond"
  | "unidentified";

/** An engine as it describes itself. */
export type Identity = Pick<Subject, "weights" | "order">;

export interface Decided {
  codecs: Codecs;
  /** Lossy codec that blocks may have; null: all come back bit for bit. */
  codec: CodecName | null;
  why: FidelityWhy;
  /** Certificate that was used, or that does not apply; null: there is none. */
  certificate: Certificate | null;
  identity: Identity | null;
}

export class FidelityRules {
  readonly #config: Pick<Config, "codec" | "turboQuant">;
  readonly #logger: Pick<Logger, "warn">;

  constructor(config: Pick<Config, "codec" | "turboQuant">, logger: Pick<Logger, "warn">) {
    this.#config = config;
    this.#logger = logger;
  }

  /** null: the engine has not said. Reads the certificates anew, so that one made meanwhile counts at the next connection. */
  decide(identity: Identity | null): Decided {
    if (!asksCertificate(this.#config)) return this.#decided("configured", identity, null);
    if (identity === null) return this.#decided("unidentified", identity, null);
    const { certificates: folder, maxKld } = this.#config.codec;
    // A measurement on this machine counts before a shipped one.
    const known = [...readCertificates(folder, this.#logger), ...CERTIFIED];
    const { why, certificate } = judge(identity, known, maxKld);
    return this.#decided(why, identity, certificate);
  }

  #decided(why: FidelityWhy, identity: Identity | null, certificate: Certificate | null): Decided {
    const codecs = chooseCodecs(this.#config, why === "certified");
    const codec = codecs.isLossy ? codecs.kvName : null;
    return { codecs, codec, why, certificate, identity };
  }
}

/** Returns whether one of the certificates lets the engine store lossily; each other answer means exact. */
export function judge(
  { weights, order }: Identity,
  known: readonly Certificate[],
  maxKld: number,
): Pick<Decided, "why" | "certificate"> {
  const subject: Subject = { weights, order, codec: codecId(LOSSY.name), version: LOSSY.version };
  const own = known.filter((certificate) => certificate.weights === weights);
  const [any = null] = own;
  if (order === 0) return { why: "unknown_order", certificate: any };
  const certificate = own.find((one) => isAbout(one, subject));
  if (certificate !== undefined)
    return { why: excessOf(certificate) <= maxKld ? "certified" : "beyond", certificate };
  if (any === null) return { why: "uncertified", certificate: null };
  const isOfCodec = any.codec === subject.codec && any.version === subject.version;
  return { why: isOfCodec ? "other_order" : "other_codec", certificate: any };
}
