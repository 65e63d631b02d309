// Owns the process of the command line: it runs one command and exits; no error shows a stack trace.
import { toTierkvError } from "../base/errors.ts";
import { fail, runCommandLine } from "./program.ts";
import { processIo } from "./shell/io.ts";

const argv = process.argv.slice(2);
const io = processIo();

function die(error: unknown): never {
  process.exit(fail(toTierkvError(error), argv.includes("--json"), io));
}

process.on("uncaughtException", die);
process.on("unhandledRejection", die);
// A reader that closes the pipe early (`tierkv status | head -1`) is no failure.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code === "EPIPE") process.exit(0);
  // No JSON, because it could not be written either.
  process.exit(fail(toTierkvError(error), false, io));
});

process.exit(await runCommandLine(argv, io));
