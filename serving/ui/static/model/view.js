// The model: its limits, what it runs on, and how long its steps take.
import { html, useEffect, useState } from "../lib/html.js";
import { getJson } from "../lib/api.js";
import { count, counted, duration } from "../lib/numbers.js";
import { Page } from "../lib/page.js";
import { useEvents } from "../live/events.js";
import { Memory } from "./memory.js";
import { Roofline } from "./roofline.js";

export function Model({ about: first, models }) {
  const [about, setAbout] = useState(first);
  const [made, setMade] = useState(null); // what the engine says, which answers between two steps
  const [history] = useEvents();
  useEffect(() => {
    getJson("ui/about").then(setAbout, () => {});
    getJson("ui/model").then(setMade, () => {});
  }, []);
  const adapters = models.filter((name) => name !== about.model);
  const facts = {
    Model: {
      Name: about.model,
      "Other names and adapters": adapters.join(", ") || "none",
      Vocabulary: counted(about.vocab_size, "token"),
      Weights: about.dtype,
      "Images": about.images ? "yes" : "no",
      Tools: about.tools ? "calls are told apart" : "no",
      Reasoning: about.reasoning ? "told apart" : "no",
    },
    Limits: {
      "Prompt and answer": counted(about.max_model_len, "token"),
      "At once": counted(about.max_num_seqs, "request"),
      "In a step": counted(about.max_num_batched_tokens, "token"),
      "Adapters at once": about.max_loras ? count(about.max_loras) : "none",
      "Drafts in a step": about.max_drafts ? count(about.max_drafts) : "none",
      "Log-probabilities": about.max_logprobs < 0 ? "all" : `${about.max_logprobs} for each token`,
    },
    "KV cache": {
      Room: counted(about.kv_tokens, "token"),
      "Longest requests at once": about.max_concurrency.toFixed(1),
      Pages: `${count(about.num_pages)} of ${counted(about.block_size, "token")}`,
      Type: about.kv_cache_dtype,
      "Prefix cache": about.prefix_caching ? "on" : "off",
      Windows: about.cache_windows.map((each) => each || "all").join(", "),
    },
    Devices: {
      Kind: about.device,
      "For each engine": counted(about.num_devices, "device"),
      Engines: count(about.engines),
      "Data shards": count(about.data_shards),
      Stages: about.stages ? count(about.stages) : "none",
      jaxllm: about.version,
    },
  };
  return html`
    <${Page} title="Model">
      <div class="cards">
        ${Object.entries(facts).map(
          ([title, rows]) => html`
            <section class="card" aria-label=${title}>
              <header><h2>${title}</h2></header>
              <dl class="facts">
                ${Object.entries(rows).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
              </dl>
            </section>
          `,
        )}
        <${Kernels} kernels=${about.kernels} />
        <${Shapes} shapes=${about.shapes} programs=${made?.programs ?? []} />
        ${made?.memory.length > 0 && html`<${Memory} view=${made} />`}
        ${made?.memory.length > 0 && html`<${Roofline} view=${made} steps=${history?.steps ?? []} />`}
      </div>
    <//>
  `;
}

function Kernels({ kernels }) {
  return html`
    <section class="card" aria-label="Kernels">
      <header><h2>Kernels</h2></header>
      <dl class="facts">
        ${kernels.map(
          ({ operation, backend, problem }) => html`<div>
            <dt>${operation.replaceAll("_", " ")}</dt>
            <dd>${backend}${problem && html`<span class="field-error">${problem}</span>`}</dd>
          </div>`,
        )}
      </dl>
    </section>
  `;
}

function Shapes({ shapes: ran, programs }) {
  const made = new Map(programs.filter(({ tokens }) => tokens !== null).map((each) => [each.tokens, each]));
  const none = { steps: 0, seconds: null, planned_seconds: null };
  const missing = [...made.keys()].filter((tokens) => !ran.some((each) => each.tokens === tokens));
  const shapes = [...ran, ...missing.map((tokens) => ({ tokens, ...none }))].sort((a, b) => a.tokens - b.tokens);
  const others = programs.filter(({ tokens }) => tokens === null);
  const planned = shapes.some(({ planned_seconds }) => planned_seconds !== null);
  return html`
    <section class="card" aria-label="Steps by shape">
      <header><h2>Steps by shape</h2></header>
      ${shapes.length
        ? html`<table>
            <thead>
              <tr>
                <th scope="col" class="number">Tokens</th>
                <th scope="col" class="number">Steps</th>
                <th scope="col" class="number">Mean</th>
                ${planned && html`<th scope="col" class="number">Planned</th>`}
                ${made.size > 0 && html`<th scope="col" class="number">Made in</th>`}
              </tr>
            </thead>
            <tbody>
              ${shapes.map(
                (each) => html`<tr>
                  <td class="number">${count(each.tokens)}</td>
                  <td class="number">${count(each.steps)}</td>
                  <td class="number">${duration(each.seconds)}</td>
                  ${planned && html`<td class="number">${duration(each.planned_seconds)}</td>`}
                  ${made.size > 0 && html`<td class="number">${inWords(made.get(each.tokens))}</td>`}
                </tr>`,
              )}
            </tbody>
          </table>`
        : html`<p class="quiet none">No step has run yet.</p>`}
      <p class="help">
        Each step runs in the smallest compiled shape that holds its tokens.
        ${planned ? " Planned: what a full step should take, by the chip's peaks." : ""}
        ${made.size > 0 ? " Made in: how long the shape took to compile, or to read from the cache." : ""}
      </p>
      ${others.length > 0 &&
      html`<details class="more">
        <summary>${others.length} other programs</summary>
        <dl class="facts">
          ${others.map((each) => html`<div><dt>${each.name.replaceAll("_", " ")}</dt><dd>${inWords(each)}</dd></div>`)}
        </dl>
      </details>`}
    </section>
  `;
}

const inWords = (program) =>
  program ? `${program.is_compiled ? "compiled" : "read"} ${duration(program.seconds)}` : "–";
