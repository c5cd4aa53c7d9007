// Conversations as trees: whoever edits a message or asks again makes a branch, and no text is lost. Functions return
// changed copies and leave what they are given alone.

let counter = 0;
export const newId = () => `${Date.now().toString(36)}${(counter++).toString(36)}${Math.random().toString(36).slice(2, 6)}`;

export const newConversation = () => ({ id: newId(), updated: Date.now(), nodes: [], picks: {} });

const ROOT = "root";
const place = (parent) => parent ?? ROOT;

// The nodes that follow the same message, in the order in which they were made.
export const siblings = (conversation, node) => conversation.nodes.filter(({ parent }) => parent === node.parent);

// The two answers that came side by side with this one, or none.
export function pairOf(conversation, node) {
  if (!node.pair) return [];
  return siblings(conversation, node).filter(({ pair }) => pair === node.pair);
}

// The versions of an answer, where answers that came side by side count as one: that which is shown, or the first.
export function rounds(conversation, node) {
  const found = new Map();
  for (const each of siblings(conversation, node)) {
    const key = each.pair ?? each.id;
    if (!found.has(key) || each === node) found.set(key, each);
  }
  return [...found.values()];
}

// The messages that are shown: at each fork the branch that was picked last.
export function pathOf(conversation) {
  const path = [];
  let parent = null;
  for (;;) {
    const children = conversation.nodes.filter((node) => node.parent === parent);
    if (!children.length) return path;
    const picked = children.find(({ id }) => id === conversation.picks[place(parent)]) ?? children.at(-1);
    path.push(picked);
    parent = picked.id;
  }
}

// The messages before a node, the oldest first.
export function before(conversation, node) {
  const path = [];
  for (let id = node.parent; id !== null; ) {
    const found = conversation.nodes.find((each) => each.id === id);
    path.unshift(found);
    id = found.parent;
  }
  return path;
}

export function withNode(conversation, node) {
  return pick({ ...conversation, updated: Date.now(), nodes: [...conversation.nodes, node] }, node);
}

export function withChange(conversation, id, change) {
  return {
    ...conversation,
    updated: Date.now(),
    nodes: conversation.nodes.map((node) => (node.id === id ? { ...node, ...change } : node)),
  };
}

export const pick = (conversation, node) => ({
  ...conversation,
  picks: { ...conversation.picks, [place(node.parent)]: node.id },
});

export function titleOf(conversation) {
  const first = conversation.nodes.find(({ role }) => role === "user");
  const text = first?.content.trim().replace(/\s+/g, " ") || "New conversation";
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

// What the API takes for these nodes.
export function messagesOf(path, system) {
  const messages = path.map(messageOf);
  return system.trim() ? [{ role: "system", content: system }, ...messages] : messages;
}

function messageOf(node) {
  if (node.role === "tool") return { role: "tool", tool_call_id: node.callId, content: node.content };
  if (node.role === "assistant") {
    const calls = (node.calls ?? []).map(({ id, name, text }) => ({
      id,
      type: "function",
      function: { name, arguments: text || "{}" },
    }));
    return { role: "assistant", content: node.content, ...(calls.length ? { tool_calls: calls } : {}) };
  }
  if (!node.images?.length) return { role: "user", content: node.content };
  const images = node.images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: [...images, { type: "text", text: node.content }] };
}

// Without what takes most room: for a browser whose storage is full.
export const slim = (conversation) => ({
  ...conversation,
  nodes: conversation.nodes.map(({ tokens, promptIds, images, search, ...node }) => node),
});
