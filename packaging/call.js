// Owns running another program while packages are made: its output shown, its failure an error that names it.
import { spawnSync } from "node:child_process";

export function call(command, args, options = {}) {
  const { status, error } = spawnSync(command, args, {
    stdio: ["ignore", "inherit", "inherit"],
    ...options,
  });
  if (error !== undefined) throw new Error(`${command} cannot be run: ${error.message}`);
  if (status !== 0) throw new Error(`${command} ${args[0]} ended with exit code ${status}`);
}
