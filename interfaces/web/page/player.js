// Sound out of the page: an AudioWorklet at the server's rate, and a copy of the samples for the download.
import { wav } from "/page/wav.js";

export const RATE = 24000;

export class Player {
  constructor(onReport) {
    this.onReport = onReport;
    this.parts = [];
    this.played = 0;
  }

  async open() {
    this.context = new AudioContext({ sampleRate: RATE });
    if (!this.context.audioWorklet) throw new Error("The browser plays live speech only on pages over https or from localhost.");
    await this.context.audioWorklet.addModule("/page/worklet.js");
    this.node = new AudioWorkletNode(this.context, "player", { outputChannelCount: [1] });
    this.node.connect(this.context.destination);
    this.node.port.onmessage = ({ data }) => {
      this.played = data.played;
      if (data.cleared) this.resolveClear?.(data.played);
      else this.onReport(data);
    };
    await this.context.resume();
  }

  push(buffer) {
    this.parts.push(buffer.slice(0));
    this.node.port.postMessage(buffer, [buffer]);
  }

  end() {
    this.node.port.postMessage("end");
  }

  // Silent at once. Returns how many samples were played.
  clear() {
    return new Promise((resolve) => {
      this.resolveClear = resolve;
      this.node.port.postMessage("clear");
    });
  }

  get seconds() {
    return this.parts.reduce((sum, part) => sum + part.byteLength, 0) / 2 / RATE;
  }

  download() {
    return wav(this.parts, RATE);
  }

  async close() {
    await this.context?.close();
  }
}
