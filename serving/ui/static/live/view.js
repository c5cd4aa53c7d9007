import { html } from "../lib/html.js";
export function Live() { return html`<p>soon</p>`; }
