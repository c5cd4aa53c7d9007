// The settings: what most people change is in sight, the rest one click away.
import { html } from "../lib/html.js";
import { Drawer } from "./drawer.js";
import { JsonField } from "./parts.js";
import { CONTROLS, isSearch, mostBeams, parsedSchema, parsedTools, presetOf, PRESETS } from "./settings.js";

const SCHEMA = `{
  "type": "object",
  "properties": {
    "name": {"type": "string"},
    "age": {"type": "integer"}
  },
  "required": ["name", "age"],
  "additionalProperties": false
}`;
const TOOLS = `[
  {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
      "type": "object",
      "properties": {"city": {"type": "string"}},
      "required": ["city"]
    }
  }
]`;

// `children` stand above the settings: which of two are shown.
export function SettingsPanel({ about, settings, change, isOpen, onClose, children }) {
  return html`
    <${Drawer} name="settings" label="Settings" isOpen=${isOpen} onClose=${onClose}>
      ${children}
      <section>
        <label for="system">System prompt</label>
        <textarea
          id="system"
          rows="3"
          placeholder="What the model should keep in mind throughout"
          value=${settings.system}
          onInput=${(event) => change({ system: event.target.value })}
        />
      </section>
      <${Sampling} about=${about} settings=${settings} change=${change} />
      <${Form} settings=${settings} change=${change} />
      <${Tools} about=${about} settings=${settings} change=${change} />
    <//>
  `;
}

function Sampling({ about, settings, change }) {
  const preset = presetOf(settings.sampling);
  return html`
    <section>
      <h3 id="presets">Sampling</h3>
      <div class="presets" role="group" aria-labelledby="presets">
        ${PRESETS.map(
          (each) => html`
            <button
              type="button"
              aria-pressed=${String(each === preset)}
              title=${each.help}
              onClick=${() => change({ sampling: each.sampling })}
            >
              ${each.name}
            </button>
          `,
        )}
      </div>
      <p class="help">${preset ? preset.help : "Your own mixture."}</p>
      <details class="more">
        <summary>Adjust</summary>
        ${CONTROLS.map(
          (control) => html`<${Control} about=${about} control=${control} settings=${settings} change=${change} />`,
        )}
        <${Numbers} about=${about} settings=${settings} change=${change} />
      </details>
      ${mostBeams(about) > 1 && html`<${BeamSearch} about=${about} settings=${settings} change=${change} />`}
    </section>
  `;
}

function BeamSearch({ about, settings, change }) {
  return html`
    <details class="more" open=${isSearch(settings)}>
      <summary>Beam search</summary>
      <p class="help">
        Follows several texts at once and returns the most likely ones, with the tree of what it tried. The sampling
        above has no part in it.
      </p>
      <div class="pair">
        <div>
          <label for="beams">Beams</label>
          <input
            id="beams"
            type="number"
            min="1"
            max=${mostBeams(about)}
            placeholder="off"
            value=${settings.beams}
            onInput=${({ target }) => change({ beams: target.value })}
          />
        </div>
        <div>
          <label for="length-penalty">Length penalty</label>
          <input
            id="length-penalty"
            type="number"
            step="0.1"
            placeholder="1"
            value=${settings.lengthPenalty}
            onInput=${({ target }) => change({ lengthPenalty: target.value })}
          />
        </div>
      </div>
    </details>
  `;
}

function Control({ about, control, settings, change }) {
  const { name, label, help, min, max, step } = control;
  const own = about.defaults[name];
  const value = settings.sampling[name] ?? own;
  const set = (text) => {
    const { [name]: _, ...others } = settings.sampling;
    change({ sampling: text === "" ? others : { ...others, [name]: Number(text) } });
  };
  return html`
    <div class="control">
      <div class="row spread">
        <label for=${name}>${label}</label>
        <input
          class="number"
          type="number"
          aria-label=${`${label}, as a number`}
          min=${min}
          step=${step}
          value=${settings.sampling[name] ?? ""}
          placeholder=${Number(own.toFixed(4))}
          onChange=${(event) => set(event.target.value)}
        />
      </div>
      <input
        id=${name}
        type="range"
        min=${min}
        max=${max}
        step=${step}
        value=${value}
        aria-describedby=${`${name}-help`}
        onInput=${(event) => set(event.target.value)}
      />
      <p id=${`${name}-help`} class="help">${help}</p>
    </div>
  `;
}

function Numbers({ about, settings, change }) {
  const field = (name, label, rest) => html`
    <div>
      <label for=${name}>${label}</label>
      <input id=${name} value=${settings[name]} onInput=${(event) => change({ [name]: event.target.value })} ...${rest} />
    </div>
  `;
  return html`
    <div class="pair">
      ${field("maxTokens", "Most tokens", { type: "number", min: 1, max: about.max_model_len, placeholder: "no limit" })}
      ${field("seed", "Seed", { type: "number", placeholder: "random" })}
    </div>
    <label for="stop">Stop strings</label>
    <textarea
      id="stop"
      rows="2"
      placeholder="One in each line"
      value=${settings.stop}
      onInput=${(event) => change({ stop: event.target.value })}
    />
    ${about.reasoning &&
    html`
      <label for="effort">Reasoning effort</label>
      <select id="effort" value=${settings.effort} onChange=${(event) => change({ effort: event.target.value })}>
        <option value="">as the model has it</option>
        ${["low", "medium", "high"].map((each) => html`<option value=${each}>${each}</option>`)}
      </select>
    `}
  `;
}

const FORMS = [
  ["text", "Text"],
  ["json_object", "JSON"],
  ["json_schema", "Schema"],
];

function Form({ settings, change }) {
  return html`
    <section>
      <h3 id="form">Form of the answer</h3>
      <div class="segments" role="group" aria-labelledby="form">
        ${FORMS.map(
          ([name, label]) => html`
            <button
              type="button"
              aria-pressed=${String(settings.format === name)}
              onClick=${() => change({ format: name, ...(name === "json_schema" && !settings.schema ? { schema: SCHEMA } : {}) })}
            >
              ${label}
            </button>
          `,
        )}
      </div>
      ${settings.format === "json_object" && html`<p class="help">The answer is a JSON object, whatever the model.</p>`}
      ${settings.format === "json_schema" &&
      html`<${JsonField}
        id="schema"
        label="JSON schema"
        rows="10"
        value=${settings.schema}
        wrong=${parsedSchema(settings.schema)[1]}
        onInput=${(schema) => change({ schema })}
      />`}
    </section>
  `;
}

function Tools({ about, settings, change }) {
  return html`
    <section>
      <details class="more" open=${Boolean(settings.tools)}>
        <summary>Tools</summary>
        ${about.tools
          ? html`
              <p class="help">Functions that the model may call. You give their results.</p>
              <${JsonField}
                id="tools"
                label="Functions, as JSON"
                value=${settings.tools}
                wrong=${parsedTools(settings.tools)[1]}
                placeholder=${TOOLS}
                rows="10"
                onInput=${(tools) => change({ tools })}
              />
              ${!settings.tools && html`<button type="button" class="plain" onClick=${() => change({ tools: TOOLS })}>Use the example</button>`}
            `
          : html`<p class="help">This model's chat template has no calls of tools.</p>`}
      </details>
    </section>
  `;
}
