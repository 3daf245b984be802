// Plays 16 bit samples in the order of their arrival, and counts what it has played and how often it ran dry.
const START_FRAMES = 1920; // 80 ms before the first sound
const REPORT_FRAMES = 1200;

class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    this.clear();
    this.total = 0;
    this.gaps = 0;
    this.lastReport = 0;
    this.port.onmessage = ({ data }) => this.onMessage(data);
  }

  clear() {
    this.queue = [];
    this.offset = 0;
    this.queued = 0;
    this.isPlaying = false;
    this.hasEnded = false;
  }

  onMessage(message) {
    if (message instanceof ArrayBuffer) {
      const samples = new Int16Array(message);
      this.queue.push(samples);
      this.queued += samples.length;
    } else if (message === "end") {
      this.hasEnded = true;
    } else if (message === "clear") {
      this.clear();
      this.port.postMessage({ cleared: true, played: this.total });
    }
  }

  process(inputs, [[output]]) {
    if (!this.isPlaying && this.queued && (this.queued >= START_FRAMES || this.hasEnded)) this.isPlaying = true;
    let filled = 0;
    while (this.isPlaying && filled < output.length && this.queue.length) {
      const head = this.queue[0];
      const count = Math.min(output.length - filled, head.length - this.offset);
      for (let i = 0; i < count; i++) output[filled + i] = head[this.offset + i] / 32768;
      filled += count;
      this.offset += count;
      if (this.offset === head.length) {
        this.queue.shift();
        this.offset = 0;
      }
    }
    this.total += filled;
    this.queued -= filled;
    if (this.isPlaying && filled < output.length) {
      this.isPlaying = false;
      if (!this.hasEnded) this.gaps += 1;
    }
    this.report(filled);
    return true;
  }

  report(filled) {
    const isOver = this.hasEnded && !this.queued && filled > 0;
    if (!filled || (this.total - this.lastReport < REPORT_FRAMES && this.lastReport && !isOver)) return;
    this.lastReport = this.total;
    this.port.postMessage({ played: this.total, queued: this.queued, gaps: this.gaps, isOver });
  }
}

registerProcessor("player", Player);
