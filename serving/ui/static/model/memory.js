// Memory of a device by what it is for, as one bar and as a list.
import { html } from "../lib/html.js";
import { bytes, share } from "../lib/numbers.js";

const COLOURS = 5;

export function Memory({ view }) {
  const used = view.memory.reduce((sum, part) => sum + part.bytes, 0);
  const all = Math.max(view.memory_limit ?? used, used);
  const parts = [...view.memory].sort((a, b) => b.bytes - a.bytes);
  return html`
    <section class="card wide" aria-label="Memory of each device">
      <header>
        <h2>Memory of each device</h2>
        <ul class="keys">
          <li>
            ${view.memory_limit ? html`in use <b>${bytes(used)}</b> of <b>${bytes(all)}</b>` : html`in use <b>${bytes(used)}</b>`}
          </li>
        </ul>
      </header>
      <div class="memory" aria-hidden="true">
        ${parts.map(
          (part, index) => html`<i class=${`shape${index % COLOURS}`} style=${{ width: `${(100 * part.bytes) / all}%` }}></i>`,
        )}
      </div>
      <dl class="facts">
        ${parts.map(
          (part, index) => html`<div>
            <dt><i class=${`mark shape${index % COLOURS}`}></i>${part.name}</dt>
            <dd>${bytes(part.bytes)} <span class="quiet">${share(part.bytes / all)}</span></dd>
          </div>`,
        )}
      </dl>
    </section>
  `;
}
