// Owns how the TypeScript tests run: one process per file, files one after another.
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

// Another build of the core, say a sanitizer's. For the tests alone: vitest's own addons would take the variable as theirs.
const core = process.env["TIERKV_TEST_CORE"];

export default defineConfig({
  root: fileURLToPath(new URL("..", import.meta.url)),
  test: {
    include: ["test/**/*.test.ts"],
    pool: "forks",
    env: core === undefined ? {} : { NAPI_RS_NATIVE_LIBRARY_PATH: core },
    // Two cores: tests that start real processes must not compete with each other.
    fileParallelism: false,
    // .ci/lib/suites.js reads them from the files: `// @module-tag NAME`, or `{ tags: ["nightly"] }` of one test.
    tags: [
      {
        name: "nightly",
        description: "takes too long for every change, or is a fault that few changes touch",
      },
      {
        name: "alone",
        description: "measures memory, bounds a time, kills, or loads both processors; nightly",
      },
    ],
    // Only a hung test reaches them, however busy the machine is.
    testTimeout: 180_000,
    hookTimeout: 180_000,
    teardownTimeout: 10_000,
    // A run without tests is a failure, never a success.
    passWithNoTests: false,
  },
});
