// The voices of the server as cards, each with a sample to hear.
const SAMPLES = { zh: "你好，这是我的声音。", en: "Hello. This is how I sound when I read something to you." };
const KINDS = { preset: "built in", registered: "registered", recording: "a recording", upload: "uploaded" };

export class VoiceCards {
  // play(voice, button): a sample was asked for. changed(): another voice was chosen.
  constructor(box, { play, changed }) {
    this.box = box;
    this.play = play;
    this.changed = changed;
    this.voices = [];
    this.chosen = null;
  }

  // Keeps the choice where its voice is still there.
  show(voices, chosen) {
    this.voices = voices;
    const wanted = chosen ?? this.chosen?.id;
    this.chosen = voices.find(({ id }) => id === wanted) ?? voices.find((voice) => voice.is_default) ?? voices[0] ?? null;
    this.box.replaceChildren(...voices.map((voice) => this.card(voice)));
    this.changed();
  }

  card(voice) {
    const [label, choice, name, kind, sample] = ["label", "input", "span", "span", "button"].map((tag) => document.createElement(tag));
    Object.assign(choice, { type: "radio", name: "voice", value: voice.id, checked: voice === this.chosen });
    choice.onchange = () => {
      this.chosen = voice;
      this.changed();
    };
    name.textContent = voice.name;
    name.className = "name";
    kind.textContent = [KINDS[voice.kind] ?? voice.kind, ...(voice.languages ?? [])].join(" · ");
    kind.className = "faint";
    Object.assign(sample, { type: "button", className: "sample", textContent: "▶", title: `Hear ${voice.name}` });
    sample.setAttribute("aria-label", `Hear a sample of ${voice.name}`);
    sample.onclick = () => this.play(voice, sample);
    label.append(choice, name, kind);
    const card = document.createElement("div");
    card.className = "voice";
    card.append(label, sample);
    return card;
  }
}

export const sampleOf = ({ languages = [] }) => (languages.length && !languages.includes("en") && languages.includes("zh") ? SAMPLES.zh : SAMPLES.en);
