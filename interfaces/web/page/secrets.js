// Secrets of the voices that were uploaded from this browser: with its secret a voice can be replaced or deleted.
const SECRETS = "bistream-voice-secrets";
const all = () => JSON.parse(localStorage.getItem(SECRETS) ?? "{}");

// voice: the answer to an upload; with an API key it has no secret.
export function keep({ name, id, secret }) {
  if (secret) localStorage.setItem(SECRETS, JSON.stringify({ ...all(), [name]: { id, secret } }));
}

// The header to send with an upload of this name.
export const headersFor = (name) => (all()[name] ? { "x-voice-secret": all()[name].secret } : {});
