// Text pieces as they are sent, audio as it arrives and as it is played, on one time axis in seconds.
const ROWS = { text: 44, arrived: 96, played: 140 };
const LEFT = 8;

export class Timeline {
  constructor(canvas) {
    this.canvas = canvas;
    this.reset();
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  reset() {
    this.start = performance.now();
    this.pieces = [];
    this.arrivals = [];
    this.playing = [];
    this.interrupted = null;
    this.draw();
  }

  now() {
    return (performance.now() - this.start) / 1000;
  }

  piece(text) {
    this.pieces.push({ at: this.now(), text });
  }

  audio(duration) {
    this.arrivals.push({ at: this.now(), duration });
  }

  // seconds: played in all; gaps: so far.
  report(seconds, gaps) {
    const last = this.playing.at(-1);
    if (!last || gaps > last.gaps) {
      const before = last ? last.seconds : 0;
      this.playing.push({ from: this.now() - (seconds - before), gaps, seconds, to: this.now() });
    } else {
      last.seconds = seconds;
      last.to = this.now();
    }
  }

  interrupt() {
    this.interrupted = this.now();
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (!width) return;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const ends = [4, ...this.pieces.map((p) => p.at + 0.5), ...this.arrivals.map((a) => a.at), ...this.playing.map((p) => p.to)];
    const x = (seconds) => LEFT + (seconds / Math.max(...ends)) * (width - 2 * LEFT);
    this.axis(pen, x, Math.max(...ends), height, color);
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = color("--faint");
    pen.fillText("text sent", LEFT, ROWS.text - 26);
    pen.fillText("audio arrived", LEFT, ROWS.arrived - 14);
    pen.fillText("audio played", LEFT, ROWS.played - 10);
    this.texts(pen, x, color("--text"));
    pen.fillStyle = color("--audio");
    for (const { at, duration } of this.arrivals) pen.fillRect(x(at) - 1, ROWS.arrived - 8, Math.max(3, Math.min(14, duration * 12)), 16);
    this.playing.forEach(({ from, to }, i) => {
      pen.fillStyle = color("--audio");
      pen.fillRect(x(from), ROWS.played - 6, Math.max(2, x(to) - x(from)), 12);
      if (i) {
        pen.fillStyle = color("--gap");
        pen.fillRect(x(this.playing[i - 1].to), ROWS.played - 6, Math.max(2, x(from) - x(this.playing[i - 1].to)), 12);
      }
    });
    if (this.interrupted !== null) {
      pen.fillStyle = color("--gap");
      pen.fillRect(x(this.interrupted) - 1, 14, 2, ROWS.played);
    }
  }

  axis(pen, x, end, height, color) {
    pen.font = "11px system-ui, sans-serif";
    const step = [0.5, 1, 2, 5, 10, 20, 60].find((one) => end / one <= 10) ?? 120;
    for (let second = 0; second <= end; second += step) {
      pen.fillStyle = color("--line");
      pen.fillRect(x(second), 8, 1, height - 28);
      pen.fillStyle = color("--faint");
      const label = `${second} s`;
      pen.fillText(label, Math.min(x(second), this.canvas.clientWidth - LEFT - pen.measureText(label).width), height - 6);
    }
  }

  texts(pen, x, ink) {
    pen.fillStyle = ink;
    let free = -Infinity;
    for (const { at, text } of this.pieces) {
      pen.fillRect(x(at), ROWS.text - 4, 2, 14);
      const label = text.trim().slice(0, 12);
      if (label && x(at) >= free) {
        pen.fillText(label, x(at), ROWS.text - 8);
        free = x(at) + pen.measureText(label).width + 6;
      }
    }
  }
}
