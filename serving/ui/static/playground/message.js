// One message: its text, what can be done with it, and its other versions.
import { html, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { counted } from "../lib/numbers.js";
import { Beams } from "./beams.js";
import { Calls } from "./calls.js";
import { CopyButton, IconButton } from "./parts.js";
import { Tokens } from "./tokens.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool" };
const ENDS = {
  length: "Stopped at the token limit.",
  stopped: "Stopped by you.",
  repetition: "Stopped: it went in circles.",
};

export function Message({ node, versions, isLast, isBusy, settings, actions }) {
  const [editing, setEditing] = useState(false);
  const [plain, setPlain] = useState(false);
  const tokens = node.tokens?.length > 0 && settings.tokenView && !plain;
  const name = node.role === "tool" ? `Result of ${node.name}` : node.role === "assistant" ? node.model : NAMES[node.role];
  return html`
    <article class=${`message ${node.role}`} aria-label=${name}>
      <header class="who">${name}</header>
      ${node.reasoning && html`<${Reasoning} text=${node.reasoning} busy=${node.busy && !node.content} />`}
      ${node.images?.length > 0 &&
      html`<div class="pictures">
        ${node.images.map((url, index) => html`<img src=${url} alt=${`Image ${index + 1} of your message`} />`)}
      </div>`}
      ${editing
        ? html`<${Edit}
            node=${node}
            onCancel=${() => setEditing(false)}
            onSend=${(text) => {
              setEditing(false);
              actions.resend(node, text);
            }}
          />`
        : tokens
          ? html`<${Tokens}
              node=${node}
              why=${whyFixed(node, isBusy)}
              onReplace=${(index, other) => actions.replace(node, index, other)}
            />`
          : node.content && html`<div class="text">${node.content}</div>`}
      ${node.busy && !node.content && !node.reasoning && !node.calls?.length && html`<${Waiting} />`}
      ${node.search &&
      html`<${Beams}
        node=${node}
        canChoose=${isLast && !isBusy}
        onChoose=${(index) => actions.choose(node, index)}
      />`}
      ${node.calls?.length > 0 &&
      html`<${Calls}
        node=${node}
        canAnswer=${isLast && !node.busy}
        onResults=${(results) => actions.results(node, results)}
      />`}
      ${node.error && html`<p class="notice bad" role="alert">${node.error}</p>`}
      ${ENDS[node.finish] && html`<p class="end">${ENDS[node.finish]}</p>`}
      ${settings.tokenView && node.role === "assistant" && !node.busy && !node.tokens?.length && node.content && !node.search &&
      html`<p class="end">Ask again to see the tokens: this answer came without them.</p>`}
      ${!editing && !node.busy &&
      html`<footer class="tools">
        <${Versions} node=${node} versions=${versions} disabled=${isBusy} onPick=${actions.pick} />
        <${CopyButton} text=${node.content} label="Copy" />
        ${node.role === "user" &&
        html`<${IconButton} icon="edit" label="Edit and send again" disabled=${isBusy} onClick=${() => setEditing(true)} />`}
        ${node.role === "assistant" &&
        html`<${IconButton} icon="retry" label="Answer again" disabled=${isBusy} onClick=${() => actions.retry(node)} />`}
        ${node.tokens?.length > 0 && settings.tokenView &&
        html`<${IconButton}
          icon="tokens"
          label="Colours"
          aria-pressed=${String(!plain)}
          onClick=${() => setPlain(!plain)}
        />`}
        ${node.role === "assistant" && html`<${Figures} node=${node} />`}
      </footer>`}
    </article>
  `;
}

// Why no other token can be taken; empty where one can.
function whyFixed(node, isBusy) {
  if (isBusy) return "Wait until the answer is there.";
  if (!node.promptIds) return "The tokens of the prompt are not known.";
  if ((node.form ?? "text") !== "text") return "Not with a form: it would begin anew in the middle of the text.";
  return "";
}

function Waiting() {
  return html`<p class="dots" role="status" aria-label="Waiting for the first token"><i></i><i></i><i></i></p>`;
}

function Reasoning({ text, busy }) {
  return html`
    <details class="reasoning" open=${busy}>
      <summary>${busy ? "Reasoning…" : "Reasoning"}</summary>
      <div class="text">${text}</div>
    </details>
  `;
}

export function Versions({ node, versions, disabled, onPick }) {
  if (versions.length < 2) return null;
  const index = versions.findIndex(({ id }) => id === node.id);
  const go = (by) => onPick(versions[index + by]);
  return html`
    <span class="versions" role="group" aria-label="Versions">
      <${IconButton} icon="left" label="Previous version" disabled=${disabled || index === 0} onClick=${() => go(-1)} />
      <span aria-live="polite">${index + 1} / ${versions.length}</span>
      <${IconButton}
        icon="right"
        label="Next version"
        disabled=${disabled || index === versions.length - 1}
        onClick=${() => go(1)}
      />
    </span>
  `;
}

function Edit({ node, onCancel, onSend }) {
  const [text, setText] = useState(node.content);
  return html`
    <form
      class="edit"
      onSubmit=${(event) => {
        event.preventDefault();
        onSend(text);
      }}
    >
      <textarea
        aria-label="Edit the message"
        rows=${Math.min(12, text.split("\n").length + 1)}
        value=${text}
        ref=${(area) => area && !area.dataset.seen && (area.dataset.seen = "1") && area.focus()}
        onInput=${(event) => setText(event.target.value)}
        onKeyDown=${(event) => event.key === "Escape" && onCancel()}
      />
      <div class="row end">
        <button type="button" class="plain" onClick=${onCancel}>Cancel</button>
        <button class="primary" disabled=${!text.trim()}>Send</button>
      </div>
    </form>
  `;
}

function Figures({ node }) {
  const tokens = node.usage?.completion_tokens ?? node.tokens?.length;
  const parts = [];
  if (tokens) parts.push(counted(tokens, "token"));
  if (node.firstSeconds !== undefined) parts.push(`first after ${inTime(node.firstSeconds)}`);
  if (tokens > 1 && node.seconds > node.firstSeconds) {
    parts.push(`${((tokens - 1) / (node.seconds - node.firstSeconds)).toFixed(0)} tokens/s`);
  }
  return html`
    <span class="figures">${parts.join(" · ")}</span>
    ${(node.form ?? "text") !== "text" && node.finish === "stop" && html`<${JsonBadge} text=${node.content} />`}
  `;
}

const inTime = (seconds) => (seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`);

function JsonBadge({ text }) {
  let valid = true;
  try {
    JSON.parse(text);
  } catch {
    valid = false;
  }
  return html`<span class=${`badge ${valid ? "good" : "bad"}`}>
    <${Icon} name=${valid ? "check" : "close"} />${valid ? "valid JSON" : "not JSON"}
  </span>`;
}
