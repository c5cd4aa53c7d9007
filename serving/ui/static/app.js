// The shell: what stands around the views, which view is shown, and the question for a key.
import { html, render, useEffect, useRef, useState } from "./lib/html.js";
import { getJson, onKeyNeeded, setKey } from "./lib/api.js";
import { Icon } from "./lib/icons.js";
import { Playground } from "./playground/view.js";
import { Live } from "./live/view.js";
import { Model } from "./model/view.js";

const VIEWS = [
  { name: "playground", title: "Playground", icon: "chat", View: Playground },
  { name: "live", title: "Live", icon: "pulse", View: Live },
  { name: "model", title: "Model", icon: "chip", View: Model },
];

const viewOfHash = () => VIEWS.find(({ name }) => location.hash === `#${name}`) ?? VIEWS[0];

function App() {
  const [view, setView] = useState(viewOfHash);
  const [about, setAbout] = useState(null);
  const [models, setModels] = useState([]);
  const [problem, setProblem] = useState("");

  useEffect(() => {
    const follow = () => setView(viewOfHash());
    addEventListener("hashchange", follow);
    start();
    return () => removeEventListener("hashchange", follow);
  }, []);

  async function start() {
    setProblem("");
    try {
      const found = await getJson("ui/about");
      setModels((await getJson("v1/models")).data.map(({ id }) => id));
      setAbout(found);
    } catch (error) {
      setProblem(error.message);
    }
  }

  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      document.getElementById("main").focus();
    }}>Skip to the view</a>
    <header class="top">
      <a class="brand" href="#playground"><img src=${new URL("icon.svg", import.meta.url).href} alt="" />jaxllm</a>
      <nav class="tabs" aria-label="Views">
        ${VIEWS.map(
          ({ name, title, icon }) => html`
            <a href=${`#${name}`} aria-current=${view.name === name ? "page" : undefined}>
              <${Icon} name=${icon} /><span>${title}</span>
            </a>
          `,
        )}
      </nav>
      <span class="served" title=${about ? `${about.model}, jaxllm ${about.version}` : undefined}>
        ${about ? about.model : ""}
      </span>
    </header>
    <main id="main" tabindex="-1" class=${`view-${view.name}`}>
      ${problem &&
      html`<div class="notice bad" role="alert">
        ${problem} <button class="plain" onClick=${start}>Try again</button>
      </div>`}
      ${about && html`<${view.View} about=${about} models=${models} />`}
      ${!about && !problem && html`<p class="quiet waiting" role="status">Asking the server…</p>`}
    </main>
    <${KeyDialog} />
  `;
}

function KeyDialog() {
  const dialog = useRef(null);
  const input = useRef(null);
  const waiting = useRef([]);
  const [wrong, setWrong] = useState(false);

  useEffect(() => {
    onKeyNeeded(
      (given) =>
        new Promise((resolve) => {
          setWrong(given);
          waiting.current.push(resolve);
          if (!dialog.current.open) dialog.current.showModal();
        }),
    );
  }, []);

  function close(again) {
    dialog.current.close();
    for (const resolve of waiting.current.splice(0)) resolve(again);
  }

  return html`
    <dialog ref=${dialog} class="key" aria-labelledby="key-title" onCancel=${() => close(false)}>
      <form
        onSubmit=${(event) => {
          event.preventDefault();
          setKey(input.current.value.trim());
          input.current.value = "";
          close(true);
        }}
      >
        <h2 id="key-title"><${Icon} name="key" /> This server wants a key</h2>
        <p id="key-help">It is kept in this tab until you close it, and sent to this server alone.</p>
        <label for="key">API key</label>
        <input
          id="key"
          ref=${input}
          type="password"
          autocomplete="off"
          required
          aria-describedby=${wrong ? "key-wrong" : "key-help"}
          aria-invalid=${wrong ? "true" : undefined}
        />
        ${wrong && html`<p id="key-wrong" class="field-error" role="alert">The server did not accept that key.</p>`}
        <div class="row end">
          <button type="button" class="plain" onClick=${() => close(false)}>Cancel</button>
          <button class="primary">Continue</button>
        </div>
      </form>
    </dialog>
  `;
}

render(html`<${App} />`, document.getElementById("app"));
