// One utterance over the socket of /v2/speak. Events: audio(buffer), event(object), closed(sentence or null).
export class Speech {
  constructor(voice, key, handlers) {
    const url = new URL("/v2/speak", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    url.search = new URLSearchParams({ model: voice, encoding: "linear16", sample_rate: "24000" });
    this.socket = new WebSocket(url, key ? ["token", key] : []);
    this.socket.binaryType = "arraybuffer";
    this.failure = "The gateway refused the connection, or cannot be reached; check the API key, and try again.";
    this.socket.onmessage = ({ data }) => {
      if (data instanceof ArrayBuffer) handlers.audio(data);
      else this.onEvent(JSON.parse(data), handlers);
    };
    this.socket.onclose = () => handlers.closed(this.failure);
    this.ready = new Promise((resolve) => (this.resolveReady = resolve));
  }

  onEvent(event, handlers) {
    if (event.type === "Connected") {
      this.failure = "The connection was lost.";
      this.resolveReady();
    }
    if (event.type === "Error") this.failure = event.description;
    if (event.type === "SessionMetadata") this.failure = null;
    handlers.event(event);
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  speak(text) {
    this.send({ type: "Speak", text });
  }

  flush() {
    this.send({ type: "Flush" });
  }

  interrupt(playedMs) {
    this.send({ type: "Interrupt", playback_offset: { type: "time_ms", value: Math.floor(playedMs) } });
  }

  close() {
    this.send({ type: "Close" });
  }
}

// As a language model writes: words and parts of words, with the blank before them; one or two characters of Chinese.
export function pieces(text) {
  return text.match(/\s*(?:[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]{1,2}|[^\s\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]{1,6})|\s+$/gu) ?? [];
}
