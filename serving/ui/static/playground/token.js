// Tokens with their probabilities, in the two forms in which the server tells them.

const decoder = new TextDecoder("utf-8", { fatal: true });
const lenient = new TextDecoder("utf-8");
const encoder = new TextEncoder();

// {id, text, logprob}, and `bytes` where they are no whole characters.
function token(id, bytes, logprob) {
  try {
    return { id, text: decoder.decode(Uint8Array.from(bytes)), logprob };
  } catch {
    const hex = bytes.map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`);
    return { id, text: hex.join(""), logprob, bytes };
  }
}

const idOf = (name) => Number(name.replace("token_id:", ""));

function withOthers(chosen, others) {
  const known = new Map([[chosen.id, { id: chosen.id, text: chosen.text, logprob: chosen.logprob }]]);
  for (const each of others) if (!known.has(each.id)) known.set(each.id, each);
  return { ...chosen, others: [...known.values()].sort((a, b) => b.logprob - a.logprob) };
}

// From logprobs.content of a chat, with return_tokens_as_token_ids.
export const fromChat = (item) =>
  withOthers(
    token(idOf(item.token), item.bytes ?? [], item.logprob),
    item.top_logprobs.map((each) => token(idOf(each.token), each.bytes ?? [], each.logprob)),
  );

// From logprobs.content of /inference/v1/generate.
export const fromGenerate = (item) =>
  withOthers(
    token(item.token_id, item.bytes ?? [], item.logprob),
    item.top_logprobs.map((each) => token(each.token_id, each.bytes ?? [], each.logprob)),
  );

export const bytesOf = ({ text, bytes }) => bytes ?? [...encoder.encode(text)];

export const textOf = (tokens) => lenient.decode(Uint8Array.from(tokens.flatMap(bytesOf)));

export const probability = ({ logprob }) => Math.exp(logprob);

export function percent(share) {
  if (share >= 0.9995) return "100 %";
  if (share < 0.0005) return "< 0.1 %";
  return `${(100 * share).toFixed(1)} %`;
}

// 0 for tokens that were all but certain, up to 5 for those that hardly anything spoke for.
const LEVELS = [0.9, 0.7, 0.4, 0.2, 0.05];
export const level = (share) => LEVELS.filter((bound) => share < bound).length;

// White space has to be seen where it is all that a token is.
export const visible = (text) =>
  text === "" ? "∅" : /^\s+$/.test(text) ? text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") : text;
