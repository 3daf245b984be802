// The text of one utterance: it appears as it is sent, and each word lights up as it is spoken.
export class Transcript {
  constructor(box) {
    this.box = box;
    this.reset();
  }

  reset() {
    this.sent = "";
    this.words = []; // {start, end, from, to, span}
    this.rest = document.createElement("span");
    this.rest.className = "coming";
    this.box.replaceChildren(this.rest);
  }

  // Show an utterance that was spoken before.
  show({ sent, words }) {
    this.reset();
    this.add(sent);
    this.time(words);
  }

  add(piece) {
    this.sent += piece;
    this.showRest();
  }

  // words: {text, start, end} in the order of the text; times in seconds.
  time(words) {
    for (const { text, start, end } of words) {
      const last = this.words.at(-1)?.to ?? 0;
      const at = this.sent.indexOf(text, last);
      if (at < 0) continue;
      const span = document.createElement("span");
      span.className = "word";
      span.textContent = this.sent.slice(at, at + text.length);
      this.box.insertBefore(document.createTextNode(this.sent.slice(last, at)), this.rest);
      this.box.insertBefore(span, this.rest);
      this.words.push({ text, start, end, from: at, to: at + text.length, span });
    }
    this.showRest();
  }

  showRest() {
    this.rest.textContent = this.sent.slice(this.words.at(-1)?.to ?? 0);
  }

  // The voice is at this second of the speech; null: it does not speak.
  light(seconds) {
    for (const { start, end, span } of this.words) {
      span.classList.toggle("said", seconds === null || start <= seconds);
      span.classList.toggle("now", seconds !== null && start <= seconds && seconds < end);
    }
  }

  // What was heard up to this second, and what was not.
  heard(seconds) {
    const to = this.words.findLast((word) => word.end <= seconds)?.to ?? 0;
    return [this.sent.slice(0, to), this.sent.slice(to)];
  }
}
