// The live view.
import { html } from "../lib/html.js";
import { count, duration, rate, share } from "../lib/numbers.js";
import { Chart } from "./chart.js";
import { useEvents } from "./events.js";
import { Histogram } from "./histogram.js";
import { Page } from "../lib/page.js";
import { Pages } from "./pages.js";
import { Rows } from "./rows.js";
import { Timeline } from "./timeline.js";

export function Live() {
  const [history, problem] = useEvents();
  return html`
    <${Page} title="Live">
      ${problem && html`<p class="notice bad" role="alert">${problem} Trying again…</p>`}
      ${history?.latest ? html`<${Board} history=${history} />` : html`<p class="quiet" role="status">Waiting for the server…</p>`}
    <//>
  `;
}

const generated = ({ counters }) => counters.generation_tokens;
const computed = ({ counters }) => counters.prompt_tokens - counters.prompt_tokens_cached;

function Board({ history }) {
  const now = history.latest;
  const times = history.times();
  const part = (hits, all) => (all ? share(hits / all) : "–");
  const { counters } = now;
  const steps = history.rate(({ steps: number }) => number);
  const stepSeconds = steps ? history.rate(({ step_seconds }) => step_seconds) / steps : null;
  return html`
    ${now.halted && html`<p class="notice bad" role="status">${now.halted}</p>`}
    <dl class="figures-row">
      <${Figure} name="Tokens per second" value=${rate(history.rate(generated))} />
      <${Figure} name="Running" value=${`${count(now.running)} of ${count(now.capacity)}`} />
      <${Figure} name="Waiting" value=${count(now.waiting)} />
      <${Figure} name="KV cache" value=${share(now.kv_usage)} />
      <${Figure} name="Step" value=${duration(stepSeconds)} />
      <${Figure} name="Prefix hits" value=${part(counters.prefix_cache_hits, counters.prefix_cache_queries)} />
      ${counters.spec_decode_num_draft_tokens > 0 &&
      html`<${Figure}
        name="Drafts accepted"
        value=${part(counters.spec_decode_num_accepted_tokens, counters.spec_decode_num_draft_tokens)}
      />`}
    </dl>
    <div class="cards">
      <${Chart}
        title="Tokens per second"
        wide=${true}
        times=${times}
        form=${{ show: count, least: 10 }}
        series=${[
          { name: "generated", values: history.rates(generated), now: rate(history.rate(generated)) },
          { name: "prompt", values: history.rates(computed), now: rate(history.rate(computed)) },
        ]}
      />
      <${Chart}
        title="Requests"
        times=${times}
        form=${{ show: count, least: 4 }}
        series=${[
          { name: "running", values: history.values(({ running }) => running), now: count(now.running) },
          { name: "waiting", values: history.values(({ waiting }) => waiting), now: count(now.waiting) },
        ]}
      />
      <${Chart}
        title="KV cache in use"
        times=${times}
        form=${{ show: share, most: 1 }}
        series=${[{ name: "held by requests", values: history.values(({ kv_usage }) => kv_usage), now: share(now.kv_usage) }]}
      />
      <${Histogram}
        title="Time to first token"
        bounds=${history.bounds.first_token}
        found=${history.histogram("first_token")}
      />
      <${Histogram}
        title="Time between tokens"
        bounds=${history.bounds.between_tokens}
        found=${history.histogram("between_tokens")}
      />
      <${Timeline} steps=${history.steps} />
      ${now.maps.length > 0 && html`<${Pages} maps=${now.maps} />`}
      <${Rows} rows=${now.rows} all=${now.running + now.waiting} />
    </div>
  `;
}

const Figure = ({ name, value }) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
