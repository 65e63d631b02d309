// Owns the two texts made from the schema: tierkv.toml.example and docs/config.md.
import type { Field } from "./field.ts";
import { SECTIONS } from "./schema.ts";

const LINE_LENGTH = 100;

/** tierkv.toml.example: common keys as settings, all others as comments with their defaults. */
export function renderExample(): string {
  const head = [
    "# Configuration of one machine. Looked for in this order: --config, TIERKV_CONFIG, ./tierkv.toml,",
    "# ~/.config/tierkv/tierkv.toml, /etc/tierkv/tierkv.toml. Without a file the defaults hold. Check it with `tierkv config check`.",
    "# Made from src/config/schema.ts; docs/config.md says more.",
  ];
  const tables = SECTIONS.map(([name, { doc, fields }]) =>
    [...comment(doc), `[${name}]`, ...Object.entries(fields).flatMap(exampleField)].join("\n"),
  );
  return `${[head.join("\n"), ...tables].join("\n\n")}\n`;
}

function exampleField([name, field]: [string, Field<unknown>]): string[] {
  const setting = `${name} = ${field.example}`;
  const about = [...comment(field.doc), ...comment(`Default: ${field.fallbackText}.`)];
  return [...about, field.isShown === true ? setting : `# ${setting}`];
}

/** Text without Markdown's code marks, wrapped into comment lines. */
function comment(text: string): string[] {
  const lines = [""];
  for (const word of text.replaceAll("`", "").split(" ")) {
    const last = lines.at(-1) ?? "";
    if (last.length + word.length + 3 > LINE_LENGTH) lines.push(word);
    else lines[lines.length - 1] = last === "" ? word : `${last} ${word}`;
  }
  return lines.map((line) => `# ${line}`);
}

/** docs/config.md. */
export function renderDocs(): string {
  const head = `# Configuration

<!-- Made from src/config/schema.ts by \`tierkv config docs\`; a test holds the two in step. -->

One file per machine, \`tierkv.toml\`. It is looked for in this order: \`--config PATH\`, the environment variable
\`TIERKV_CONFIG\`, \`./tierkv.toml\`, \`~/.config/tierkv/tierkv.toml\`, \`/etc/tierkv/tierkv.toml\`. A path that is given must be readable; without a file
the defaults hold, and the log says so.

An unknown key, a wrong type, an address without a port, a number out of range or two keys that contradict each other
end the start with exit code 2 and a line that names file, line, key, value and what to write instead. \`tierkv config check\`
shows all wrong values at once, and contradictions once all values are right. \`tierkv.toml.example\` is a file to start from.`;
  const tables = SECTIONS.map(([name, { doc, fields }]) => {
    const rows = Object.entries(fields).map(
      ([key, field]) =>
        `| \`${key}\` | ${field.kind.describe} | ${field.fallbackText} | ${field.doc} |`,
    );
    const header = "| key | value | default | meaning |\n|---|---|---|---|";
    return `## [${name}]\n\n${doc}\n\n${header}\n${rows.join("\n")}`;
  });
  return `${[head, ...tables].join("\n\n")}\n`;
}
