// A view that scrolls as a whole, with the keyboard too.
import { html } from "./html.js";

export function Page({ title, children }) {
  return html`
    <div class="scroller" tabindex="0" role="region" aria-label=${title}>
      <div class=${`page ${title.toLowerCase()}`}>
        <h1>${title}</h1>
        ${children}
      </div>
    </div>
  `;
}
