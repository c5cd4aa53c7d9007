// Calls of tools: the reader plays the tools, and sends their results.
import { html, useState } from "../lib/html.js";

export function Calls({ node, canAnswer, onResults }) {
  const [results, setResults] = useState([]);
  const set = (index, text) => setResults(Object.assign([...results], { [index]: text }));
  return html`
    <form
      class="calls"
      onSubmit=${(event) => {
        event.preventDefault();
        onResults(node.calls.map((_, index) => results[index] ?? ""));
      }}
    >
      ${node.calls.map(
        (call, index) => html`
          <section class="call" key=${call.id} aria-label=${`Call of ${call.name}`}>
            <h3>${call.name}</h3>
            <pre class="code">${pretty(call.text)}</pre>
            ${canAnswer &&
            html`
              <label for=${`${call.id}-result`}>Result</label>
              <textarea
                id=${`${call.id}-result`}
                class="code"
                rows="2"
                placeholder="What the function returns"
                value=${results[index] ?? ""}
                onInput=${(event) => set(index, event.target.value)}
              />
            `}
          </section>
        `,
      )}
      ${canAnswer &&
      html`<div class="row end">
        <button class="primary">Send ${node.calls.length > 1 ? "results" : "result"}</button>
      </div>`}
    </form>
  `;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
