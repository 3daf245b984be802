// One utterance over the socket of /tts/websocket. Handlers: audio(buffer), words(list of {text, start, end}), done(), failed(sentence or null).
// null: the socket closed before an answer, for a reason that a browser does not tell.
const CONTEXT = "page";

export class Speech {
  constructor({ voice, speed, instruction, reading, key }, handlers) {
    const url = new URL("/tts/websocket", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const control = { ...(speed === 1 ? {} : { speed }), ...(instruction ? { instructions: instruction } : {}) };
    this.common = {
      context_id: CONTEXT,
      model_id: "bistream",
      voice: { mode: "id", id: voice },
      output_format: { container: "raw", encoding: "pcm_s16le", sample_rate: 24000 },
      generation_config: control,
      add_timestamps: true,
      ...reading,
    };
    this.handlers = handlers;
    this.isOver = false;
    this.socket = new WebSocket(url, key ? ["token", encodeURIComponent(key)] : []);
    this.socket.onmessage = ({ data }) => this.onMessage(JSON.parse(data));
    this.socket.onclose = () => this.fail(this.wasOpen ? "The connection was lost; speak again." : null);
    this.ready = new Promise((resolve) => {
      this.socket.onopen = () => {
        this.wasOpen = true;
        resolve();
      };
    });
  }

  onMessage(message) {
    if (this.isOver) return;
    if (message.type === "chunk") this.handlers.audio(decode(message.data));
    if (message.type === "timestamps") {
      const { words, start, end } = message.word_timestamps;
      this.handlers.words(words.map((text, i) => ({ text, start: start[i], end: end[i] })));
    }
    if (message.type === "error") this.fail(message.message);
    if (message.type === "done") {
      this.close();
      this.handlers.done();
    }
  }

  fail(sentence) {
    if (this.isOver) return;
    this.close();
    this.handlers.failed(sentence);
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ ...this.common, ...message }));
  }

  speak(text, isLast) {
    this.send({ transcript: text, continue: !isLast });
  }

  interrupt() {
    this.send({ cancel: true });
    this.close();
  }

  close() {
    this.isOver = true;
    this.socket.close();
  }
}

function decode(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

// As a language model writes: words and parts of words, with the blank before them; one or two characters of Chinese.
export function pieces(text) {
  return text.match(/\s*(?:[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]{1,2}|[^\s\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]{1,6})|\s+$/gu) ?? [];
}
