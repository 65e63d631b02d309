#!/usr/bin/env bash
# Flags, lists and comparisons in a chat template become other text in JavaScript (@huggingface/jinja 0.5.11, Jinja2 3.1.6, minijinja 3.1.0).
#
# transformers and vLLM render chat templates with Jinja2. @huggingface/jinja exists to render the same templates in JavaScript.
# Templates of some models, as Qwen3-Coder's, write the values of a tool's schema one by one, with `| string` or `~`.
#
# Guess before the run: what such templates do with values of JSON (flags, lists, texts, nothing) is shown alike by all three.
# Seen: minijinja agrees with Jinja2 in each line. @huggingface/jinja raises no error, and
# - shows false as `false` (Jinja2: `False`), also behind `| string`; nothing as no text (`None`); a list as JSON (as Python does);
# - joins a text and a list to `type: a,b` (`type: ['a', 'b']`);
# - finds '1' and 1 equal, false and '', and an absent variable and none (all unequal); two equal lists unequal;
# - counts the length of a text in UTF-16 units (2 for one emoji, where Python counts 1), and has -7 % 3 = -1 (2).
# With `| tojson` all three agree. Whoever predicts the tokens of a vLLM prompt in JavaScript predicts wrong ones for such a template.
#
# Needs Python 3.11 or newer, Node.js 20 or newer, and the network for pip and npm. Exits with 1 if a line is rendered otherwise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip --quiet --disable-pip-version-check install jinja2==3.1.6 minijinja==3.1.0
npm install --silent --no-audit --no-fund --prefix "$folder" @huggingface/jinja@0.5.11

cat > lines.json <<'JSON'
{
  "values": {"flag": false, "nothing": null, "names": ["a", "b"], "schema": {"enum": ["x", null], "strict": false}, "word": "1", "n": 1, "face": "😀"},
  "lines": [
    ["{{ flag }}", "False", "false"],
    ["{{ flag | string }}", "False", "false"],
    ["{{ 'strict: ' ~ flag }}", "strict: False", "strict: false"],
    ["{{ nothing }}", "None", ""],
    ["{{ names }}", "['a', 'b']", "[\"a\", \"b\"]"],
    ["{{ 'type: ' ~ names }}", "type: ['a', 'b']", "type: a,b"],
    ["{{ schema | tojson }}", "{\"enum\": [\"x\", null], \"strict\": false}", "{\"enum\": [\"x\", null], \"strict\": false}"],
    ["{% if word == n %}equal{% else %}other{% endif %}", "other", "equal"],
    ["{% if flag == '' %}equal{% else %}other{% endif %}", "other", "equal"],
    ["{% if absent == nothing %}equal{% else %}other{% endif %}", "other", "equal"],
    ["{% if names == ['a', 'b'] %}equal{% else %}other{% endif %}", "equal", "other"],
    ["{{ face | length }}", "1", "2"],
    ["{{ -7 % 3 }}", "2", "-1"]
  ]
}
JSON

cat > render.py <<'PYTHON'
import json

import jinja2
import minijinja

given = json.load(open("lines.json", encoding="utf-8"))
wrong = 0
for source, python, _script in given["lines"]:
    shown = {
        "Jinja2": jinja2.Environment().from_string(source).render(**given["values"]),
        "minijinja": minijinja.Environment().render_str(source, **given["values"]),
    }
    for name, text in shown.items():
        print(f"{name}: {source} -> {text}")
        wrong += text != python
raise SystemExit(1 if wrong else 0)
PYTHON
venv/bin/python render.py

cat > render.mjs <<'SCRIPT'
import { readFileSync } from "node:fs";
import { Template } from "@huggingface/jinja";

const { values, lines } = JSON.parse(readFileSync("lines.json", "utf8"));
let wrong = 0;
for (const [source, , script] of lines) {
  const text = new Template(source).render(values);
  console.log(`@huggingface/jinja: ${source} -> ${text}`);
  if (text !== script) wrong += 1;
}
process.exit(wrong === 0 ? 0 : 1);
SCRIPT
node render.mjs
