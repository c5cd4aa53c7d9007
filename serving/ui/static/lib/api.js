// Requests to the server that the page came from, with the reader's key where there is one.

const ROOT = new URL("../../", import.meta.url);
const KEY = "jaxllm.key";

// What a request for the key calls; the shell sets it. It resolves when there is another key to try.
let askForKey = async () => false;

export function onKeyNeeded(ask) {
  askForKey = ask;
}

export const apiRoot = () => new URL("v1", ROOT).href;

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

// An answer of the server that is no success, with what it says.
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(path, { body, signal } = {}) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, ROOT), {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  if (response.status === 401 && (await askForKey(key !== null))) return send(path, { body, signal });
  throw new ApiError(response.status, await messageOf(response));
}

async function messageOf(response) {
  try {
    const { error } = await response.json();
    return error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

export async function getJson(path, options) {
  return (await send(path, options)).json();
}

// The JSON of each event of a stream, until it ends or `signal` aborts it.
export async function* streamJson(path, options) {
  const response = await send(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event
          .split("\n")
          .filter((line) => line.startsWith("data: "))
          .map((line) => line.slice(6))
          .join("\n");
        if (!data) continue;
        if (data === "[DONE]") return;
        const parsed = JSON.parse(data);
        if (parsed.error) throw new ApiError(parsed.error.code, parsed.error.message);
        yield parsed;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
