// What an empty conversation shows.
import { html } from "../lib/html.js";

const IDEAS = [
  "Tell me a story about a fox.",
  "What is 17 plus 25?",
  "Name three colours, as a JSON array.",
  "Once upon a time, a white owl",
];

export function Start({ model, onChoose }) {
  return html`
    <div class="empty">
      <h1>Chat with ${model}</h1>
      <p>Conversations stay in this browser. Turn on <b>Tokens</b> to see how sure the model was of each word.</p>
      <ul class="ideas">
        ${IDEAS.map((idea) => html`<li><button type="button" onClick=${() => onChoose(idea)}>${idea}</button></li>`)}
      </ul>
    </div>
  `;
}
