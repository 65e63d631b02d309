// Owns changing one field of a JSON object in its bytes, so that all other bytes reach the engine as the client wrote them.

const [QUOTE, BACKSLASH, COMMA] = Buffer.from('"\\,');
const [LIST, LIST_END, OBJECT, OBJECT_END] = Buffer.from("[]{}");

/** Returns the place of the quote that closes a text whose content begins at `from`; the length where none does. */
export function endOfText(body: Buffer, from: number): number {
  for (let at = body.indexOf('"', from); at >= 0; at = body.indexOf('"', at + 1)) {
    let escapes = 0;
    while (body[at - 1 - escapes] === BACKSLASH) escapes += 1;
    if (escapes % 2 === 0) return at;
  }
  return body.length;
}

/** One member of an object: its name, and where its bytes begin and end, without the comma. */
interface Member {
  name: string;
  from: number;
  to: number;
}

/** Returns the end of the value that begins at `at`: the place of the comma or brace behind it. */
function endOfValue(body: Buffer, from: number): number {
  let depth = 0;
  for (let at = from; at < body.length; at += 1) {
    const byte = body[at];
    if (depth === 0 && (byte === COMMA || byte === OBJECT_END)) return at;
    if (byte === QUOTE) at = endOfText(body, at + 1);
    else if (byte === OBJECT || byte === LIST) depth += 1;
    else if (byte === OBJECT_END || byte === LIST_END) depth -= 1;
  }
  return body.length;
}

/** Returns the members of a valid JSON object that begins with the brace at `start`. */
function membersOf(body: Buffer, start: number): Member[] {
  const members: Member[] = [];
  for (let from = start + 1; ;) {
    const quote = body.indexOf('"', from);
    const nameEnd = endOfText(body, quote + 1);
    const to = endOfValue(body, from);
    // An empty object has no name before its end.
    if (quote < 0 || quote >= to) return members;
    // An escape may stand for any character of a name.
    const name = JSON.parse(body.toString("utf8", quote, nameEnd + 1)) as string;
    members.push({ name, from, to });
    if (body[to] !== COMMA) return members;
    from = to + 1;
  }
}

/**
 * Returns the bytes of a valid JSON object with `field` set to a JSON `value` once, as its first member; JSON's parsers differ in
 * which of several equal names counts. All other members keep their bytes.
 */
export function withField(body: Buffer, field: string, value: unknown): Buffer {
  const start = body.indexOf("{");
  const set = Buffer.from(`${JSON.stringify(field)}:${JSON.stringify(value)}`);
  const members = membersOf(body, start);
  const kept = members.filter(({ name }) => name !== field);
  if (kept.length === members.length) {
    const comma = members.length === 0 ? "" : ",";
    const head = body.subarray(0, start + 1);
    return Buffer.concat([head, set, Buffer.from(comma), body.subarray(start + 1)]);
  }
  const parts = kept.flatMap(({ from, to }) => [Buffer.from(","), body.subarray(from, to)]);
  return Buffer.concat([Buffer.from("{"), set, ...parts, Buffer.from("}")]);
}
