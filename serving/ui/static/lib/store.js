// What the browser keeps: conversations and settings, in localStorage alone. Nothing of it is sent anywhere.

const PREFIX = "jaxllm.";

export function load(name, otherwise) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

// Returns whether there was room.
export function save(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
