// Small pieces that several parts of the playground share.
import { html, useEffect, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";

export function IconButton({ icon, label, ...rest }) {
  return html`<button type="button" class="icon-button" aria-label=${label} title=${label} ...${rest}>
    <${Icon} name=${icon} />
  </button>`;
}

export function CopyButton({ text, label, wide = false }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    const timer = copied && setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  async function copy() {
    await put(text);
    setCopied(true);
  }
  const icon = copied ? "check" : "copy";
  if (!wide) return html`<${IconButton} icon=${icon} label=${copied ? "Copied" : label} onClick=${copy} />`;
  return html`<button type="button" class="plain" onClick=${copy}>
    <${Icon} name=${icon} /> ${copied ? "Copied" : label}
  </button>`;
}

// Browsers have a clipboard for pages of this machine or over TLS alone; elsewhere a selection is copied.
async function put(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// A text field of JSON, which says what is wrong with it.
export function JsonField({ id, label, value, wrong, placeholder, rows = 8, onInput }) {
  const said = `${id}-said`;
  return html`
    <label for=${id}>${label}</label>
    <textarea
      id=${id}
      class="code"
      rows=${rows}
      spellcheck=${false}
      value=${value}
      placeholder=${placeholder}
      aria-invalid=${wrong ? "true" : undefined}
      aria-describedby=${said}
      onInput=${(event) => onInput(event.target.value)}
    />
    <p id=${said} class=${wrong ? "field-error" : "help"} aria-live="polite">
      ${wrong || (value.trim() ? "Valid JSON." : "")}
    </p>
  `;
}
