import { html } from "../lib/html.js";
export function Model() { return html`<p>soon</p>`; }
