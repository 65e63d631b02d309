// Owns the text of docs/errors.md, made from the catalogue.
import { ERRORS } from "../../src/base/errors.ts";
import type { ErrorCode, ErrorKindName } from "../../src/base/errors.ts";

const MEANINGS: Readonly<Record<ErrorKindName, string>> = {
  user: "A command or the configuration is wrong: change what the text names.",
  setup: "The machines do not fit together or lack something: the text says what to change.",
  stranger:
    "The caller showed no valid credential. The vault read nothing of the call, and does not say what was wrong.",
  denied: "The caller is known, but its role does not allow this.",
  data: "Bytes did not verify. They are refused, counted and never used.",
  busy: "A limit was reached. The call may be repeated a little later.",
  down: "The other side is not there. Programs go on without it and try again by themselves.",
  late: "The call took longer than allowed. Programs treat the other side as if it were not there.",
  cancelled: "The call ended because nobody needs its result any more.",
  bug: "A mistake in tierKV itself. Please report it with the whole line.",
};

/** When an error occurs; for each code whose text alone does not say it. */
const OCCASIONS: Partial<Record<ErrorCode, string>> = {
  USAGE: "a command got wrong arguments",
  CONFIG_BAD_VALUE: "a key of `tierkv.toml` has a value that is out of range or cannot be used",
  CONFIG_CONFLICT: "a key of `tierkv.toml` contradicts another key",
  INSECURE_LISTEN: "other machines could use an address without credentials",
  INSECURE_VAULT: "data for a vault on another machine would travel unencrypted",
  CREDENTIALS: "a file with a key, a token or a certificate cannot be used",
  FAILPOINTS: "`TIERKV_FAILPOINTS`, a variable for tests, has a wrong value",
  BAD_ARGUMENT: "a call to a vault or to the core has a value out of range",
  SHARED_REGION: "`shm:` memory cannot be used",
  STORE_FAILED: "Valkey, a bucket or an archive cannot be used as configured",
  SYSTEM: "a file cannot be written, or a program of the system failed",
  DEMO_FAILED: "a step of `tierkv demo` or `tierkv fidelity --model` failed",
  ENGINE_ANSWER: "an engine or a sidecar answered something else than a command expected",
  BAD_RECORD: "a record's bytes have another checksum, length or name than they should",
  RECORD_UNOPENED: "a sealed record has another key than `[sidecar] record_keys`, or was changed",
  NO_MEMORY: "a limit on memory was reached, or the system gave no memory",
  LANE_FAILED: "a connection for records could not be opened, or broke",
  UNKNOWN_ID: "the core was asked for an object that no longer exists",
  INTERNAL: "an error that nobody foresaw",
};

/** Returns when the error occurs; throws where a text of filled-in words alone has no such line. */
function occasionOf(code: string, template: string): string {
  const occasion = OCCASIONS[code as ErrorCode];
  const isBare = !/[a-z]{2}/i.test(template.replaceAll(/\{\w+\}/g, ""));
  if (isBare && occasion === undefined)
    throw new Error(`${code}: say in test/support/errors-page.ts when it occurs`);
  return occasion ?? "";
}

/** Returns the whole docs/errors.md. */
export function renderErrorsPage(): string {
  const kinds = Object.entries(MEANINGS) as [ErrorKindName, string][];
  const sections = kinds.map(([kind, meaning]) => {
    const rows = Object.entries(ERRORS).filter(([, row]) => row.kind === kind);
    const [, first] = rows[0] ?? [];
    if (first === undefined) throw new Error(`no error is of kind ${kind}`);
    const retry = first.retryable ? "may" : "will not";
    return [
      `## ${kind}`,
      `${meaning} Exit code ${first.exitCode}; gRPC status \`${first.grpcStatus}\`; the same call ${retry} succeed later without a change.`,
      [
        "| code | text | occurs when |",
        "|---|---|---|",
        ...rows.map(
          ([code, { template }]) => `| \`${code}\` | ${template} | ${occasionOf(code, template)} |`,
        ),
      ].join("\n"),
    ].join("\n\n");
  });
  return [
    "# Errors",
    "<!-- Made from src/base/errors.ts by test/base/errors.test.ts, which also says how to renew it. -->",
    `Every failure has a code and one line of text that names the thing, its value and what to change. Commands print
\`tierkv: TEXT (CODE)\` to stderr and end with the exit code given here; with \`--json\` they also print
\`{"schema", "error": {"code", "message", ...}}\` to stdout. Warnings and errors in a log have the fields \`err.code\` and \`err.message\`, never a stack trace; the last line of a program that cannot go on has \`code\` and \`reason\`. The tables have the text of
each code, with names in braces for words that are filled in. [config.md](config.md) explains the keys of \`tierkv.toml\`.`,
    ...sections,
    "",
  ]
    .join("\n\n")
    .replace(/\n+$/, "\n");
}
