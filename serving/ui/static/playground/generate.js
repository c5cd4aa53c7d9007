// Answers as they come. Each function calls `change` with what is new of the answer's node, and returns at its end.
import { ApiError, getJson, streamJson } from "../lib/api.js";
import { fromChat, fromGenerate, textOf } from "./token.js";
import { numAlternatives, samplingParams } from "./settings.js";

// Collects changes, and hands them on at most once a frame: a fast model brings more tokens than a screen shows.
function throttled(change) {
  let pending = null;
  let frame = 0;
  const flush = () => {
    cancelAnimationFrame(frame);
    frame = 0;
    if (pending) change(pending);
    pending = null;
  };
  return {
    put: (news) => {
      pending = { ...pending, ...news };
      // A hidden page has no frames.
      if (document.hidden) flush();
      else frame ||= requestAnimationFrame(flush);
    },
    flush,
  };
}

async function run(change, signal, work) {
  const out = throttled(change);
  const began = performance.now();
  let end = {};
  try {
    await work(out, () => performance.now() - began);
  } catch (error) {
    if (signal.aborted) end = { finish: "stopped" };
    else if (error instanceof ApiError) end = { finish: "error", error: error.message };
    else end = { finish: "error", error: `The page failed: ${error.message}` };
  }
  out.put({ ...end, busy: false, seconds: (performance.now() - began) / 1000 });
  out.flush();
}

export function chat(body, { tokenView, about }, signal, change) {
  return run(change, signal, async (out, elapsed) => {
    const node = { content: "", reasoning: "", calls: [], tokens: [] };
    const request = { ...body, stream: true, stream_options: { include_usage: true } };
    if (tokenView) {
      const more = { logprobs: true, top_logprobs: numAlternatives(about) };
      Object.assign(request, more, { return_token_ids: true, return_tokens_as_token_ids: true });
    }
    for await (const chunk of streamJson("v1/chat/completions", { body: request, signal })) {
      if (chunk.prompt_token_ids) out.put({ promptIds: chunk.prompt_token_ids });
      if (chunk.usage) out.put({ usage: chunk.usage });
      for (const choice of chunk.choices) takeChoice(node, choice, out, elapsed);
    }
  });
}

function takeChoice(node, { delta, logprobs, finish_reason }, out, elapsed) {
  const news = {};
  if (delta.reasoning) news.reasoning = node.reasoning += delta.reasoning;
  if (delta.content) news.content = node.content += delta.content;
  for (const call of delta.tool_calls ?? []) {
    const old = node.calls[call.index] ?? { id: call.id, name: "", text: "" };
    node.calls[call.index] = {
      ...old,
      name: old.name + (call.function?.name ?? ""),
      text: old.text + (call.function?.arguments ?? ""),
    };
    news.calls = [...node.calls];
  }
  if (logprobs?.content?.length) {
    node.tokens.push(...logprobs.content.map(fromChat));
    news.tokens = [...node.tokens];
  }
  if (!node.begun && (delta.reasoning || delta.content || delta.tool_calls)) {
    node.begun = true;
    news.firstSeconds = elapsed() / 1000;
  }
  if (finish_reason) news.finish = finish_reason;
  if (Object.keys(news).length) out.put(news);
}

// A beam search: the texts come all at once, with the tree of what was tried.
export function search(body, signal, change) {
  return run(change, signal, async (out) => {
    const { choices, usage } = await getJson("v1/chat/completions", { body, signal });
    const tree = choices[0].beam_tree;
    const scoreOf = (index) => tree?.tokens.find(({ choice }) => choice === index)?.score ?? null;
    const found = choices.map(({ message }, index) => ({ content: message.content ?? "", score: scoreOf(index) }));
    const { message, finish_reason } = choices[0];
    out.put({
      content: found[0].content,
      reasoning: message.reasoning ?? "",
      finish: finish_reason,
      usage,
      search: { choices: found, chosen: 0, tree },
    });
  });
}

// Goes on from tokens; the reader chose the last one. Exactly these go to the model, whatever their text.
export function goOn({ body, promptIds, tokens }, { settings, about }, signal, change) {
  return run(change, signal, async (out, elapsed) => {
    const all = [...tokens];
    let finish = null;
    let begun = false;
    out.put({ tokens: [...all], content: textOf(all), promptIds });
    const request = {
      model: body.model,
      token_ids: [...promptIds, ...all.map(({ id }) => id)],
      sampling_params: samplingParams(settings, about),
      output_mode: "text",
      stream: true,
    };
    for await (const chunk of streamJson("inference/v1/generate", { body: request, signal })) {
      for (const choice of chunk.choices) {
        all.push(...(choice.logprobs?.content ?? []).map(fromGenerate));
        if (!begun && choice.token_ids.length) out.put({ firstSeconds: elapsed() / 1000 });
        begun ||= choice.token_ids.length > 0;
        finish = choice.finish_reason ?? finish;
      }
      out.put({ tokens: [...all], content: textOf(all), finish });
    }
    out.put(await read(body, promptIds, all, finish, signal));
  });
}

// Reads the whole reply as the chat would have: reasoning apart, calls as calls, without special tokens.
async function read(body, promptIds, tokens, finish, signal) {
  const choice = { index: 0, token_ids: tokens.map(({ id }) => id), finish_reason: finish ?? "stop" };
  const request = {
    chat_request: body,
    prompt_token_ids: promptIds,
    generate_response: { choices: [choice] },
  };
  try {
    const answer = await getJson("v1/chat/completions/derender", { body: request, signal });
    const { message, finish_reason } = answer.choices[0];
    const calls = message.tool_calls ?? [];
    return {
      content: message.content ?? "",
      reasoning: message.reasoning ?? "",
      calls: calls.map((call) => ({ id: call.id, name: call.function.name, text: call.function.arguments })),
      finish: finish_reason,
      usage: answer.usage,
    };
  } catch (error) {
    if (signal.aborted) throw error;
    return {};
  }
}
