// What a reader may set: sampling with plain words for each number, and the fields of requests that come of it.

export const DEFAULTS = {
  model: "",
  system: "",
  sampling: {},
  maxTokens: "",
  seed: "",
  stop: "",
  effort: "",
  beams: "",
  lengthPenalty: "",
  tokenView: false,
  format: "text",
  schema: "",
  tools: "",
};

export const CONTROLS = [
  {
    name: "temperature",
    label: "Temperature",
    help: "How much chance decides. 0 always takes the likeliest token; above 1 the text gets wilder.",
    min: 0,
    max: 2,
    step: 0.05,
  },
  {
    name: "top_p",
    label: "Top p",
    help: "Draws only from the likeliest tokens that together reach this probability. 1 leaves none out.",
    min: 0.05,
    max: 1,
    step: 0.05,
  },
  {
    name: "top_k",
    label: "Top k",
    help: "Draws only from this many of the likeliest tokens. 0 draws from all.",
    min: 0,
    max: 100,
    step: 1,
  },
  {
    name: "min_p",
    label: "Min p",
    help: "Leaves out tokens that are less likely than this share of the likeliest one.",
    min: 0,
    max: 0.5,
    step: 0.01,
  },
  {
    name: "repetition_penalty",
    label: "Repetition penalty",
    help: "Above 1, tokens that are there already become less likely. Helps against going in circles.",
    min: 1,
    max: 1.5,
    step: 0.01,
  },
];

export const PRESETS = [
  { name: "Model's own", help: "What the model's makers recommend.", sampling: {} },
  { name: "Exact", help: "The same answer each time: facts, code, extraction.", sampling: { temperature: 0 } },
  { name: "Balanced", help: "Some variety, rarely off the track.", sampling: { temperature: 0.7, top_p: 0.95 } },
  { name: "Inventive", help: "Stories and ideas.", sampling: { temperature: 1.1, min_p: 0.05 } },
];

export function presetOf(sampling) {
  const same = (a, b) => JSON.stringify(Object.entries(a).sort()) === JSON.stringify(Object.entries(b).sort());
  return PRESETS.find((preset) => same(preset.sampling, sampling));
}

// (value, what is wrong): the JSON of a text that may be empty.
export function parsed(text, check = () => "") {
  if (!text.trim()) return [undefined, ""];
  try {
    const value = JSON.parse(text);
    const wrong = check(value);
    return wrong ? [undefined, wrong] : [value, ""];
  } catch (error) {
    return [undefined, error.message];
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

export const parsedSchema = (text) =>
  parsed(text, (value) => (isObject(value) ? "" : "A JSON schema is an object, such as {\"type\": \"object\"}."));

// One function or a list of them, with or without the {"type": "function"} around each.
export function parsedTools(text) {
  const [value, wrong] = parsed(text);
  if (value === undefined) return [undefined, wrong];
  const tools = [value].flat().map((each) => (isObject(each?.function) ? each : { type: "function", function: each }));
  const bad = tools.find((each) => !isObject(each.function) || typeof each.function.name !== "string");
  return bad ? [undefined, "Each function needs a name."] : [tools, ""];
}

export const problemOf = (settings) =>
  (isSearch(settings) && ((settings.format !== "text" && "A beam search gives text: choose Text as the form.") || (settings.tools.trim() && "A beam search calls no tools."))) ||
  (settings.format === "json_schema" && (parsedSchema(settings.schema)[1] || (!settings.schema.trim() && "There is no schema yet."))) ||
  parsedTools(settings.tools)[1] ||
  "";

const MOST_ALTERNATIVES = 8;

export const numAlternatives = (about) =>
  about.max_logprobs < 0 ? MOST_ALTERNATIVES : Math.min(MOST_ALTERNATIVES, about.max_logprobs);

export const modelOf = (settings, models) => (models.includes(settings.model) ? settings.model : models[0]);

const MOST_BEAMS = 8; // more would not be read
const TOKENS_OF_SEARCH = 64; // unless the reader says otherwise: nothing is seen before the end

export const mostBeams = (about) => Math.min(MOST_BEAMS, about.max_num_seqs);
export const isSearch = (settings) => Number(settings.beams) > 1;

// A search ranks by the model's own probabilities: nothing that changes these goes with it.
function searchBody(messages, settings, models) {
  const body = { model: modelOf(settings, models), messages, use_beam_search: true, n: Number(settings.beams) };
  if (settings.lengthPenalty !== "") body.length_penalty = Number(settings.lengthPenalty);
  body.max_completion_tokens = Number(settings.maxTokens) || TOKENS_OF_SEARCH;
  return body;
}

// The settings in a few words, beside an answer.
export function inWords(settings) {
  if (isSearch(settings)) return `${settings.beams} beams`;
  const preset = presetOf(settings.sampling);
  if (preset) return preset.name;
  const labels = Object.fromEntries(CONTROLS.map(({ name, label }) => [name, label]));
  return Object.entries(settings.sampling)
    .map(([name, value]) => `${labels[name]} ${value}`)
    .join(", ");
}

// The request for an answer to these messages.
export function chatBody(messages, settings, about, models) {
  if (isSearch(settings)) return searchBody(messages, settings, models);
  const body = { model: modelOf(settings, models), messages };
  Object.assign(body, settings.sampling);
  if (settings.maxTokens) body.max_completion_tokens = Number(settings.maxTokens);
  if (settings.seed !== "") body.seed = Number(settings.seed);
  if (settings.stop) body.stop = settings.stop.split("\n").filter(Boolean);
  if (settings.effort && about.reasoning) body.reasoning_effort = settings.effort;
  const [tools] = parsedTools(settings.tools);
  if (tools?.length) body.tools = tools;
  if (settings.format === "json_object") body.response_format = { type: "json_object" };
  if (settings.format === "json_schema") {
    const [schema] = parsedSchema(settings.schema);
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  return body;
}

// The same as sampling parameters of /inference/v1/generate, which knows no defaults of the model.
export function samplingParams(settings, about) {
  const params = { ...about.defaults, ...settings.sampling, logprobs: numAlternatives(about) };
  if (settings.maxTokens) params.max_tokens = Number(settings.maxTokens);
  if (settings.seed !== "") params.seed = Number(settings.seed);
  if (settings.stop) params.stop = settings.stop.split("\n").filter(Boolean);
  return params;
}
