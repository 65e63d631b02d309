// Owns the text of docs/errors.md, made from the catalogue.
import { ERRORS } from "../../src/base/errors.ts";
import type { ErrorKindName } from "../../src/base/errors.ts";

const MEANINGS: Readonly<Record<ErrorKindName, string>> = {
  user: "Asked or configured wrongly: change what the text names.",
  setup: "The machines do not fit together or lack something: the text says what to change.",
  stranger:
    "The caller showed no valid credential. Nothing of the call was read; the vault does not say what was wrong.",
  denied: "The caller is known, but its role does not allow this.",
  data: "Bytes that do not verify. They are refused, counted and never used.",
  busy: "A limit was reached. The call may be repeated a little later.",
  down: "The other side is not there. Programs go on without it and try again by themselves.",
  late: "Took longer than allowed. Treated like a side that is not there.",
  cancelled: "Ended because nobody needs the result any more.",
  bug: "A mistake in tierKV itself. Please report it with the whole line.",
};

/** Returns the whole docs/errors.md. */
export function renderErrorsPage(): string {
  const kinds = Object.entries(MEANINGS) as [ErrorKindName, string][];
  const sections = kinds.map(([kind, meaning]) => {
    const rows = Object.entries(ERRORS).filter(([, row]) => row.kind === kind);
    const [, first] = rows[0] ?? [];
    if (first === undefined) throw new Error(`no error is of kind ${kind}`);
    const retry = first.retryable ? "yes" : "no";
    return [
      `## ${kind}`,
      `${meaning} Exit code ${first.exitCode}, a repetition may help: ${retry}, gRPC status \`${first.grpcStatus}\`.`,
      [
        "| code | text |",
        "|---|---|",
        ...rows.map(([code, row]) => `| \`${code}\` | ${row.template} |`),
      ].join("\n"),
    ].join("\n\n");
  });
  return [
    "# Errors",
    "<!-- Made from src/base/errors.ts by test/base/errors.test.ts, which also says how to renew it. -->",
    `Every failure has a code and one line of text that names the thing, its value and what to change. Commands print
\`tierkv: TEXT (CODE)\` to stderr and end with the exit code given here; with \`--json\` they also print
\`{"schema", "error": {"code", "message", ...}}\` to stdout. Logs carry \`err.code\` and \`err.message\`, never a stack trace. Words in braces
are filled in. Configuration errors are explained in [config.md](config.md).`,
    ...sections,
    "",
  ]
    .join("\n\n")
    .replace(/\n+$/, "\n");
}
