// Owns the text of docs/metrics.md: every metric family of our processes.
import type { Family } from "../../src/exposition/text.ts";

export interface Part {
  title: string;
  /** Address of the scrape, and remarks beside the table. */
  text: string;
  rows: readonly Row[];
}

export interface Row {
  name: string;
  kind: string;
  labels: readonly string[];
  help: string;
}

export function rowsOf(families: readonly Family[]): Row[] {
  return families.map(({ name, kind, label, help, samples }) => {
    const seen = samples.flatMap(({ labels = {} }) => Object.keys(labels));
    const labels = new Set([...(label === undefined ? [] : [label]), ...seen]);
    labels.delete("le");
    return { name, kind, labels: [...labels], help };
  });
}

/** Parses families from scraped text, where no table lists them. */
export function rowsOfText(text: string): Row[] {
  const helps = [...text.matchAll(/^# HELP (\S+) (.*)\n# TYPE \S+ (\S+)$/gm)];
  return helps.map(([, name = "", help = "", kind = ""]) => {
    const samples = [...text.matchAll(new RegExp(`^${name}\\w*\\{([^}]*)\\}`, "gm"))];
    const labels = new Set(
      samples.flatMap(([, inner = ""]) => [...inner.matchAll(/(\w+)="/g)].map(([, key]) => key!)),
    );
    labels.delete("le");
    return { name, kind, labels: [...labels], help };
  });
}

export function renderMetricsPage(parts: readonly Part[]): string {
  const sections = parts.map(({ title, text, rows }) => {
    const lines = rows.map(({ name, kind, labels, help }) => {
      const shown = labels.map((label) => `\`${label}\``).join(", ");
      return `| \`${name}\` | ${kind} | ${shown} | ${help.replaceAll("|", "\\|")} |`;
    });
    const head = "| name | kind | labels | |\n|---|---|---|---|";
    return `## ${title}\n\n${text}\n\n${head}\n${lines.join("\n")}\n`;
  });
  return `# Metrics

<!-- Made from what the processes show by test/exposition/sidecar.page.test.ts, which also says how to renew it. -->

Prometheus scrapes these metrics. Units are seconds, bytes and joules. Counters end in \`_total\` and start at 0 with their process. [How to
watch a set-up](how-to/monitor.md) names the metrics to look at first.

${sections.join("\n")}`;
}
