// The conversation as a program: the same request for a terminal, for Python and for JavaScript.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { apiRoot, hasKey } from "../lib/api.js";
import { CopyButton } from "./parts.js";

const indented = (value, by = "") => JSON.stringify(value, null, 2).replaceAll("\n", `\n${by}`);

// JSON as a literal of Python: its three words outside of texts.
function python(value, by = "    ") {
  const word = { true: "True", false: "False", null: "None" };
  const text = JSON.stringify(value, null, 4);
  return text
    .replace(/"(?:[^"\\]|\\.)*"|\b(?:true|false|null)\b/g, (found) => word[found] ?? found)
    .replaceAll("\n", `\n${by}`);
}

function curl(body) {
  const key = hasKey() ? " \\\n  -H \"Authorization: Bearer $JAXLLM_API_KEY\"" : "";
  // In single quotes a shell leaves all but these alone.
  const data = indented({ ...body, ...(body.use_beam_search ? {} : { stream: true }) }).replaceAll("'", "'\\''");
  return `curl --no-buffer ${apiRoot()}/chat/completions${key} \\
  -H 'Content-Type: application/json' \\
  -d '${data}'`;
}

// Fields that OpenAI's client does not name go to extra_body.
const NAMED = new Set([
  ...["model", "messages", "n", "temperature", "top_p", "max_completion_tokens", "seed", "stop", "tools"],
  ...["response_format", "reasoning_effort"],
]);

function pythonProgram(body) {
  const named = Object.entries(body).filter(([name]) => NAMED.has(name));
  const more = Object.fromEntries(Object.entries(body).filter(([name]) => !NAMED.has(name)));
  const lines = named.map(([name, value]) => `    ${name}=${python(value)},`);
  if (Object.keys(more).length) lines.push(`    extra_body=${python(more)},`);
  const key = hasKey() ? 'os.environ["JAXLLM_API_KEY"]' : '"none"';
  return `${hasKey() ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url="${apiRoot()}", api_key=${key})
${body.use_beam_search ? wholePython(lines) : streamedPython(lines)}`;
}

const streamedPython = (lines) => `stream = client.chat.completions.create(
${lines.join("\n")}
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()`;

const wholePython = (lines) => `answer = client.chat.completions.create(
${lines.join("\n")}
)
for choice in answer.choices:
    print(choice.message.content)`;

function javascript(body) {
  const key = hasKey() ? "process.env.JAXLLM_API_KEY" : '"none"';
  return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${apiRoot()}", apiKey: ${key} });
${body.use_beam_search ? wholeJavaScript(body) : streamedJavaScript(body)}`;
}

const streamedJavaScript = (body) => `const stream = await client.chat.completions.create(${indented({ ...body, stream: true })});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0].delta.content ?? "");
}
console.log();`;

const wholeJavaScript = (body) => `const answer = await client.chat.completions.create(${indented(body)});
for (const choice of answer.choices) console.log(choice.message.content);`;

const KINDS = [
  { name: "curl", make: curl },
  { name: "Python", make: pythonProgram },
  { name: "JavaScript", make: javascript },
];

export function ExportDialog({ body, onClose }) {
  const dialog = useRef(null);
  const [kind, setKind] = useState(KINDS[0]);
  useEffect(() => dialog.current.showModal(), []);
  const text = kind.make(body);
  return html`
    <dialog ref=${dialog} class="export" aria-labelledby="export-title" onClose=${onClose}>
      <div class="row spread">
        <h2 id="export-title">This conversation as code</h2>
        <button class="plain" onClick=${() => dialog.current.close()}>Close</button>
      </div>
      <div class="row spread">
        <div class="segments" role="group" aria-label="Language">
          ${KINDS.map(
            (each) => html`
              <button aria-pressed=${String(each === kind)} onClick=${() => setKind(each)}>${each.name}</button>
            `,
          )}
        </div>
        <${CopyButton} text=${text} label="Copy the code" wide=${true} />
      </div>
      <pre class="code" tabindex="0" role="region" aria-label=${`${kind.name} code`}>${text}</pre>
    </dialog>
  `;
}
