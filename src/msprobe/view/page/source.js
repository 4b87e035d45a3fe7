// Where the data come from: the server, or the compressed blocks inside an exported file. Both answer the same requests.

const embedded = document.querySelectorAll("script.data").length > 0;

async function ask(path, options) {
  const response = await fetch(path, options);
  if (!response.ok) {
    const text = await response.text();
    let message = text;
    try { message = JSON.parse(text).error || text; } catch { /* the server's own words */ }
    throw new Error(message);
  }
  return response;
}

function query(parameters) {
  return "?" + new URLSearchParams(parameters);
}

async function unpack(name) {
  const block = document.querySelector(`script.data[data-name="${CSS.escape(name)}"]`);
  if (!block) return null;
  const packed = Uint8Array.from(atob(block.textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream);
}

// The page contains its first answer; if the run grows, the page requests a new one.
function firstAnswer() {
  const block = document.getElementById("first_answer");
  block?.remove();
  return block && JSON.parse(block.textContent);
}

const server = {
  live: true,
  answer: async () => firstAnswer() || (await ask("/api/answer")).json(),
  table: async () => (await ask("/api/table")).json(),
  columns: async () => (await ask("/api/columns")).arrayBuffer(),
  call: async (call) => (await ask("/api/call" + query({ call }))).json(),
  tensor: async (row) => (await ask("/api/tensor" + query({ row }))).json(),
  sweep: async (row) => (await ask("/api/sweep" + query({ row }))).json(),
  slice: async (parameters) => (await ask("/api/slice" + query(parameters))).json(),
  scales: async (parameters) => (await ask("/api/scales" + query(parameters))).json(),
  trends: async () => (await ask("/api/trends")).json(),
  matrix: async (statistic, rank) => (await ask("/api/matrix" + query({ statistic, rank }))).json(),
  curve: async (kind, name, statistic) => (await ask("/api/curve" + query({ kind, name, statistic }))).json(),
  pulse: async () => (await ask("/api/pulse")).json(),
  send: async (path, body) => (await ask(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  })).json(),
};

const BLOCK = 200;
const blocks = new Map();
const file = {
  live: false,
  answer: async () => (await unpack("answer")).json(),
  table: async () => (await unpack("table")).json(),
  columns: async () => (await unpack("columns")).arrayBuffer(),
  call: async (call) => {
    const number = Math.floor(call / BLOCK);
    if (!blocks.has(number)) {
      const found = await unpack("calls" + number);
      blocks.set(number, found ? await found.json() : {});
    }
    return blocks.get(number)[call] || null;
  },
  trends: async () => (await unpack("trends")).json(),
  matrix: async (statistic, rank) => (await unpack(`matrix-${statistic}-${rank}`)).json(),
};

export const source = embedded ? file : server;
