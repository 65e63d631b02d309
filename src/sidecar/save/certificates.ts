// Owns the folder of certificates: one JSON file for each subject, written by `tierkv fidelity`, read when an engine connects.
import { createHash } from "node:crypto";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { CERTIFICATE_BYTES_MAX, CERTIFICATES_MAX } from "../../base/limits/codec.ts";
import type { Logger } from "../../base/log.ts";
import { readUnforged, writePrivate } from "../../base/private-file.ts";
import { readCertificate } from "./certificate.ts";
import type { Certificate } from "./certificate.ts";

const SETTING = "[codec] certificates";
const END = ".json";
const NAME_DIGITS = 16;

/** Returns the certificates in a folder, none where it is absent. A file that holds none is logged and left out. */
export function readCertificates(folder: string, logger: Pick<Logger, "warn">): Certificate[] {
  return filesIn(folder, logger).flatMap((path) => {
    try {
      const found = readCertificate(readUnforged(path, SETTING, CERTIFICATE_BYTES_MAX));
      if (typeof found !== "string") return [found];
      logger.warn({ path, reason: found }, `a file is no certificate: remove it from ${SETTING}`);
    } catch (error) {
      logger.warn({ path, err: toTierkvError(error) }, "a certificate cannot be read");
    }
    return [];
  });
}

/** Writes a certificate in place of an earlier one for the same subject, and returns its path. Throws CREDENTIALS. */
export function writeCertificate(folder: string, certificate: Certificate): string {
  const { weights, codec, version, order } = certificate;
  const subject = JSON.stringify([weights, codec, version, order]);
  const name = createHash("sha256").update(subject).digest("hex").slice(0, NAME_DIGITS);
  const path = join(folder, `${name}${END}`);
  const text = `${JSON.stringify(certificate, null, 2)}\n`;
  const fault = readCertificate(text);
  if (typeof fault === "string")
    throw new TierkvError("INTERNAL", { reason: `a certificate would not be read: ${fault}` });
  writePrivate(path, text, SETTING);
  return path;
}

function filesIn(folder: string, logger: Pick<Logger, "warn">): string[] {
  let names: string[];
  try {
    names = readdirSync(folder).filter((name) => name.endsWith(END));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT")
      logger.warn({ folder, err: toTierkvError(error) }, `${SETTING} cannot be read`);
    return [];
  }
  if (names.length > CERTIFICATES_MAX) {
    const limit = CERTIFICATES_MAX;
    logger.warn({ folder, files: names.length, limit }, `${SETTING}: the rest is not read`);
  }
  return names.slice(0, CERTIFICATES_MAX).map((name) => join(folder, name));
}
