// Owns the far side of a bare round trip: a process that echoes bytes over a Unix socket.
import { createServer } from "node:net";

const [path] = process.argv.slice(2);
const server = createServer((socket) => {
  socket.on("error", () => {});
  socket.on("data", (chunk) => socket.write(chunk));
});
server.listen(path, () => console.log(JSON.stringify({ event: "ready" })));
