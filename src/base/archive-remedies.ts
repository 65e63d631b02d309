// Owns what to do about a vault's archive that fails, by the words of the system or the S3 server.

/** Words of an S3 server that was shown wrong credentials. */
const WRONG_KEYS = /SignatureDoesNotMatch|InvalidAccessKeyId|ExpiredToken|InvalidToken/;
const NO_RIGHTS = /AccessDenied/;
const KEYS = "correct the AWS_ variables or the profile of the vault's own environment";
/** The remedy where the certificate of an S3 server is of a CA that the system does not know. */
export const UNTRUSTED =
  "let the variable AWS_CA_BUNDLE name a file with the CA that signed the server's certificate";
const ROOM =
  "make room there, or set [vault] archive_bytes below its size, which deletes the oldest records there and, as the disk keeps no more, on the disk";
/** The first that is in the error's text counts. */
const REMEDIES: readonly (readonly [RegExp, string])[] = [
  [WRONG_KEYS, KEYS],
  [NO_RIGHTS, "give the vault's user the rights to read, write, list and remove there"],
  [/UnknownIssuer/, UNTRUSTED],
  [/NoSuchBucket/, "make that bucket, or correct [vault] archive"],
  [/InsufficientStorage|QuotaExceeded|StorageFull|No space left|Disk quota/, ROOM],
  [
    /Connection refused|Connection reset|timed out|timeout|failed to lookup/i,
    "start the server there, or correct AWS_ENDPOINT_URL and the network to it",
  ],
];

/** Whether an S3 server refused who asked. */
export const isS3Refusal = (text: string): boolean => WRONG_KEYS.test(text) || NO_RIGHTS.test(text);

/** Returns the error's text with a remedy, where one is known. */
export function archiveTrouble(text: string): string {
  const found = REMEDIES.find(([words]) => words.test(text));
  return found === undefined ? text : `${text}; ${found[1]}`;
}
