// Requests of the page, and what is wrong where they fail: each cause has its own sentence, which goes when its cause goes.
const KEY = "bistream-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

const SENTENCES = {
  unreachable: "The server cannot be reached. Is it still running? This page tries again by itself.",
  noKey: "This server wants an API key. Enter one; it is kept until you close this tab.",
  wrongKey: "The server does not know this API key. Correct it.",
  draining: "The server is shutting down and takes nothing new; this page tries again by itself.",
  notReady: "No voice server is ready yet; this page tries again by itself.",
};

// A failed request. cause: of SENTENCES, or null for a sentence of the server's own.
export class Failure extends Error {
  constructor(cause, sentence) {
    super(sentence ?? SENTENCES[cause]);
    this.cause = cause;
  }
}

async function request(path, options) {
  const headers = { ...options.headers, ...(key.get() ? { authorization: `Bearer ${key.get()}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch {
    throw new Failure("unreachable");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) throw new Failure(key.get() ? "wrongKey" : "noKey");
  const body = await answer.json().catch(() => ({}));
  if (body.error?.code === "shutting_down") throw new Failure("draining");
  throw new Failure(null, body.error?.message ?? `The server answered ${answer.status}; try again.`);
}

export const fetchJson = async (path, options = {}) => (await request(path, options)).json();

export async function fetchSpeech(body) {
  const headers = { "content-type": "application/json" };
  return (await request("/v1/audio/speech", { method: "POST", headers, body: JSON.stringify(body) })).blob();
}

// The load of the server. Throws a Failure that also says when no voice server is ready.
export async function fetchLoad() {
  const load = await fetchJson("/v1/load");
  const ready = load.servers.filter((server) => server.is_ready).length;
  if (!ready) throw new Failure("notReady");
  return { ...load, ready };
}
