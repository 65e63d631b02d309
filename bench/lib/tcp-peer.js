// Owns the far side of the plain TCP figures: a process that sends a set of bytes on request and receives one.
import { connect, createServer } from "node:net";
import { pump, receiver, setOf } from "./tcp.js";

const [sinkPort, bytes] = process.argv.slice(2).map(Number);

// Receives: connects, because only the connecting side can choose the memory that reads go to.
const target = setOf(bytes);
let taken = 0;
const sink = connect({
  port: sinkPort,
  host: "127.0.0.1",
  onread: receiver(target, (count) => {
    taken += count;
    if (taken < bytes) return;
    taken = 0;
    sink.write("k");
  }),
});
sink.setNoDelay(true);
sink.on("close", () => process.exit(0));

// Sends one set for each byte received.
const source = setOf(bytes);
const server = createServer((socket) => {
  socket.setNoDelay(true);
  socket.on("error", () => {});
  socket.on("data", () => void pump(socket, source));
});
server.listen(0, "127.0.0.1", () => {
  process.stdout.write(`${JSON.stringify({ event: "ready", port: server.address().port })}\n`);
});
