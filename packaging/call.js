// Owns the running of programs while packages are made: shows output, and turns failures into errors that name the program.
import { spawnSync } from "node:child_process";

export function call(command, args, options = {}) {
  const { status, error } = spawnSync(command, args, {
    stdio: ["ignore", "inherit", "inherit"],
    ...options,
  });
  if (error !== undefined) throw new Error(`${command} cannot be run: ${error.message}`);
  if (status !== 0) throw new Error(`${command} ${args[0]} ended with exit code ${status}`);
}
