// Owns a DNS server for tests, on the loopback: answers A, AAAA and SRV queries from a table that a test changes.
import { createSocket } from "node:dgram";
import { Resolver } from "node:dns/promises";
import { once } from "node:events";
import { isIPv4, isIPv6 } from "node:net";
import { closeAfterTest } from "./vaults.ts";

const TYPES = { A: 1, AAAA: 28, SRV: 33 } as const;
const [IN, NAME_ERROR] = [1, 3];
/** Flags: an authoritative answer, recursion available. */
const ANSWER = 0x8580;
/** Pointer to the query's name, at byte 12. */
const SAME_NAME = 0xc00c;

export interface DnsServer {
  /** Records by name: addresses, or `host:port` of services. IPv6 addresses in full, without `::`. */
  readonly names: Map<string, readonly string[]>;
  readonly resolver: Resolver;
  readonly asked: () => number;
  /** Stops answering. */
  close(): void;
}

export async function startDnsServer(): Promise<DnsServer> {
  const names = new Map<string, readonly string[]>();
  let asked = 0;
  const socket = createSocket("udp4");
  socket.on("message", (question, from) => {
    asked += 1;
    socket.send(answerTo(question, names), from.port, from.address);
  });
  socket.bind(0, "127.0.0.1");
  await once(socket, "listening");
  let isOpen = true;
  const close = (): void => {
    if (isOpen) socket.close();
    isOpen = false;
  };
  closeAfterTest({ close });
  const resolver = new Resolver({ timeout: 300, tries: 1 });
  resolver.setServers([`127.0.0.1:${socket.address().port}`]);
  return { names, resolver, asked: () => asked, close };
}

function answerTo(question: Buffer, names: ReadonlyMap<string, readonly string[]>): Buffer {
  const labels: string[] = [];
  let at = 12;
  for (let size = question[at]!; size > 0; size = question[at]!) {
    labels.push(question.toString("latin1", at + 1, at + 1 + size));
    at += 1 + size;
  }
  const type = question.readUInt16BE(at + 1);
  const asked = question.subarray(12, at + 5);
  const known = names.get(labels.join("."));
  const records = (known ?? []).flatMap((value) => recordOf(value, type) ?? []);
  const head = Buffer.alloc(12);
  question.copy(head, 0, 0, 2);
  head.writeUInt16BE(known === undefined ? ANSWER | NAME_ERROR : ANSWER, 2);
  head.writeUInt16BE(1, 4);
  head.writeUInt16BE(records.length, 6);
  return Buffer.concat([head, asked, ...records]);
}

function recordOf(value: string, type: number): Buffer | null {
  const data = dataOf(value, type);
  if (data === null) return null;
  const head = Buffer.alloc(12);
  head.writeUInt16BE(SAME_NAME, 0);
  head.writeUInt16BE(type, 2);
  head.writeUInt16BE(IN, 4);
  head.writeUInt16BE(data.length, 10);
  return Buffer.concat([head, data]);
}

function dataOf(value: string, type: number): Buffer | null {
  if (isIPv4(value)) return type === TYPES.A ? Buffer.from(value.split(".").map(Number)) : null;
  if (isIPv6(value)) {
    const digits = value.split(":").map((part) => part.padStart(4, "0"));
    return type === TYPES.AAAA ? Buffer.from(digits.join(""), "hex") : null;
  }
  const [host = "", port] = value.split(":");
  return port !== undefined && type === TYPES.SRV ? serviceOf(host, Number(port)) : null;
}

function serviceOf(host: string, port: number): Buffer {
  const name = host.split(".").map((label) => Buffer.from([label.length, ...Buffer.from(label)]));
  const numbers = Buffer.alloc(6);
  numbers.writeUInt16BE(port, 4);
  return Buffer.concat([numbers, ...name, Buffer.from([0])]);
}
