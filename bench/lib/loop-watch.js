// Owns a watch on the importing process's event loop: the longest pause of each tenth of a second, in a file.
import { appendFileSync } from "node:fs";
import { monitorEventLoopDelay } from "node:perf_hooks";

const EVERY_MS = 100;
const RESOLUTION_MS = 1;

const path = process.env.TIERKV_BENCH_LOOP;
if (path !== undefined) {
  const delay = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  delay.enable();
  const tell = () => {
    appendFileSync(path, `${Date.now()} ${delay.max / 1e6}\n`);
    delay.reset();
  };
  setInterval(tell, EVERY_MS).unref();
}
