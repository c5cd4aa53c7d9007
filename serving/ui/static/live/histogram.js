// A histogram of the last minute, as bars of a list: a screen reader gets the numbers.
import { html } from "../lib/html.js";
import { count, duration } from "../lib/numbers.js";

const short = (number) => (number < 1000 ? number : `${(number / 1000).toFixed(number < 10000 ? 1 : 0)}k`);

export function Histogram({ title, bounds, found }) {
  const { counts, total, median, high } = found;
  const most = Math.max(...counts, 1);
  // Only the buckets from the first to the last that has any, and one more at each side.
  const first = Math.max(counts.findIndex(Boolean) - 1, 0);
  const last = Math.min(counts.findLastIndex(Boolean) + 1, counts.length - 1);
  // Labels stand below every bar, or below as many as there is room for.
  const every = Math.ceil((last - first + 1) / 7);
  const bars = total ? counts.slice(first, last + 1) : [];
  return html`
    <section class="card" aria-label=${title}>
      <header>
        <h2>${title}</h2>
        <ul class="keys">
          <li>median <b>${duration(median)}</b></li>
          <li>95 % within <b>${duration(high)}</b></li>
        </ul>
      </header>
      ${total
        ? html`<ol class="bars">
            ${bars.map((number, index) => {
              const bound = bounds[first + index];
              const label = bound === undefined ? "more" : duration(bound);
              return html`<li aria-label=${`up to ${label}: ${count(number)}`}>
                <span class="value">${number ? short(number) : ""}</span>
                <span class="bar-fill" style=${{ height: `${(100 * number) / most}px` }}></span>
                <span class="bound">${index % every ? "" : label}</span>
              </li>`;
            })}
          </ol>`
        : html`<p class="quiet none">Nothing in the last minute.</p>`}
    </section>
  `;
}
