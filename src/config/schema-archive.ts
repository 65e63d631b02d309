// Owns the keys of a vault's archive: where full files go besides, how much of it, how soon.
import {
  ARCHIVE_AFTER_S_DEFAULT,
  ARCHIVE_AFTER_S_MAX,
  ARCHIVE_BYTES_MAX,
  ARCHIVE_DISKS,
  ARCHIVE_URL_BYTES_MAX,
  DISK_BYTES_MIN,
} from "../limits/general.ts";
import type { VaultConfig } from "./config.ts";
import type { Field } from "./field.ts";
import { archiveUrl, bytes, integer } from "./kinds.ts";

export const VAULT_ARCHIVE: {
  archive: Field<VaultConfig["archive"]>;
  archive_bytes: Field<VaultConfig["archiveBytes"]>;
  archive_after_s: Field<VaultConfig["archiveAfterS"]>;
} = {
  archive: {
    kind: archiveUrl(ARCHIVE_URL_BYTES_MAX),
    doc: "Where the full files of `data_dir` go besides, for this vault alone. A lost disk comes back from there, and a full one reads through it. S3 is reached with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL of the vault's environment.",
    fallback: () => null,
    fallbackText: "none: the disk is all there is",
    example: '"s3://bucket/vault-1"',
  },
  archive_bytes: {
    kind: bytes(DISK_BYTES_MIN, ARCHIVE_BYTES_MAX),
    doc: "Bytes the vault may use there, at least `disk_bytes`. When they are full, the oldest files go; `disk_ttl_s` holds there, too.",
    fallback: () => null,
    fallbackText: `${ARCHIVE_DISKS} times \`disk_bytes\``,
    example: '"5TB"',
  },
  archive_after_s: {
    kind: integer(1, ARCHIVE_AFTER_S_MAX, "s"),
    doc: "A file that is not full goes there this long after its first record: what a lost disk loses at most, where the link keeps up.",
    fallback: () => ARCHIVE_AFTER_S_DEFAULT,
    fallbackText: String(ARCHIVE_AFTER_S_DEFAULT),
    example: "300",
  },
};
