// The batch: each request's way so far.
import { html } from "../lib/html.js";
import { count, duration } from "../lib/numbers.js";

export function Rows({ rows, all }) {
  return html`
    <section class="card wide" aria-label="Requests in flight">
      <header>
        <h2>In flight</h2>
        <ul class="keys">
          <li><i class="mark cached"></i>prompt, cached</li>
          <li><i class="mark prompt"></i>prompt, computed</li>
          <li><i class="mark generated"></i>generated</li>
        </ul>
      </header>
      ${rows.length ? html`<${Table} rows=${rows} />` : html`<p class="quiet none">No requests.</p>`}
      ${all > rows.length && rows.length > 0 && html`<p class="help">${rows.length} of ${count(all)} are shown.</p>`}
    </section>
  `;
}

function Table({ rows }) {
  const longest = Math.max(...rows.map((row) => row.prompt_tokens + row.generated_tokens), 64);
  const wide = (tokens) => ({ width: `${(100 * tokens) / longest}%` });
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="Table of requests">
      <table>
        <thead>
          <tr>
            <th scope="col">State</th>
            <th scope="col" class="number">Age</th>
            <th scope="col" class="number">Prompt</th>
            <th scope="col" class="number">Cached</th>
            <th scope="col" class="number">Generated</th>
            <th scope="col" class="tape">Tokens</th>
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            (row) => html`
              <tr>
                <td>
                  ${row.generated_tokens ? "generates" : "prompt"}${row.adapter && html` <span class="badge">${row.adapter}</span>`}
                </td>
                <td class="number">${duration(row.age_seconds)}</td>
                <td class="number">${count(row.prompt_tokens)}</td>
                <td class="number">${count(row.cached_tokens)}</td>
                <td class="number">${count(row.generated_tokens)}</td>
                <td class="tape">
                  <span class="strip" aria-hidden="true">
                    <i class="cached" style=${wide(row.cached_tokens)}></i>
                    <i class="prompt" style=${wide(row.prompt_tokens - row.cached_tokens)}></i>
                    <i class="generated" style=${wide(row.generated_tokens)}></i>
                  </span>
                </td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}
