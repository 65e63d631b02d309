// Owns how the TypeScript tests run: one process per file, files one after another.
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

export default defineConfig({
  root: fileURLToPath(new URL("..", import.meta.url)),
  test: {
    include: ["test/**/*.test.ts"],
    pool: "forks",
    // Two cores: tests that start real processes must not compete with each other.
    fileParallelism: false,
    testTimeout: 60_000,
    hookTimeout: 90_000,
    teardownTimeout: 10_000,
    // A run without tests is a failure, never a success.
    passWithNoTests: false,
  },
});
