// The samples of one utterance as bars; a click or an arrow key seeks in those that have come.
const BAR = 3;
const GAP = 1;

export class Waveform {
  // onSeek(seconds)
  constructor(canvas, rate, onSeek) {
    this.canvas = canvas;
    this.rate = rate;
    this.onSeek = onSeek;
    this.reset();
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.onclick = ({ offsetX }) => this.seek((offsetX / canvas.clientWidth) * this.seconds);
    canvas.onkeydown = (event) => {
      const to = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: this.seconds }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.seek(to);
    };
  }

  get seconds() {
    return this.count / this.rate;
  }

  reset(parts = []) {
    this.parts = [];
    this.count = 0;
    this.at = 0;
    for (const part of parts) this.push(part);
    this.draw();
  }

  push(buffer) {
    const samples = new Int16Array(buffer);
    this.parts.push(samples);
    this.count += samples.length;
    this.canvas.setAttribute("aria-valuemax", this.seconds.toFixed(1));
  }

  seek(seconds) {
    if (this.count) this.onSeek(Math.max(0, Math.min(seconds, this.seconds)));
  }

  // The voice is at this second.
  move(seconds) {
    this.at = seconds;
    this.canvas.setAttribute("aria-valuenow", seconds.toFixed(1));
    this.draw();
  }

  peaks(bars) {
    const found = new Float32Array(bars);
    let index = 0;
    for (const part of this.parts) {
      for (let i = 0; i < part.length; i += 8, index += 8) {
        const bar = Math.min(bars - 1, Math.floor((index / this.count) * bars));
        found[bar] = Math.max(found[bar], Math.abs(part[i]) / 32768);
      }
    }
    return found;
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width) return;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const bars = Math.floor(width / (BAR + GAP));
    const peaks = this.count ? this.peaks(bars) : new Float32Array(bars);
    peaks.forEach((peak, bar) => {
      const isSaid = this.count && bar / bars < this.at / this.seconds;
      const size = Math.max(2, peak * (height - 4));
      pen.fillStyle = style.getPropertyValue(isSaid ? "--accent" : "--faint-bar");
      pen.fillRect(bar * (BAR + GAP), (height - size) / 2, BAR, size);
    });
  }
}
