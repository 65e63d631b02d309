// Owns a minimal streaming proxy in its own process, as the yardstick of the gateway's bench.
import { createServer } from "node:http";
import { Pool } from "undici";

const pool = new Pool(process.argv[2], { connections: 1000 });
const server = createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => void pass(request, response, Buffer.concat(chunks)));
});

async function pass({ method, url: path, headers }, response, body) {
  const { "content-type": type } = headers;
  const answer = await pool.request({ method, path, headers: { "content-type": type }, body });
  response.writeHead(answer.statusCode, answer.headers);
  answer.body.pipe(response);
}

server.listen(0, "127.0.0.1", () => {
  console.log(JSON.stringify({ event: "ready", url: `http://127.0.0.1:${server.address().port}` }));
});
