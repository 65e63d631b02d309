#!/usr/bin/env node
// Owns the name `tierkv` on the command line: hands over to the built program.
import "../dist/cli/main.js";
