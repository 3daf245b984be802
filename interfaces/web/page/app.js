import { Player, RATE } from "/page/player.js";
import { convert, Recorder } from "/page/recorder.js";
import { Failure, fetchJson, fetchLoad, fetchSpeech, key } from "/page/server.js";
import { SNIPPETS } from "/page/snippets.js";
import { pieces, Speech } from "/page/speech.js";
import { Timeline } from "/page/timeline.js";
import { Transcript } from "/page/transcript.js";
import { headersFor, keep as keepSecret } from "/page/secrets.js";
import { sampleOf, VoiceCards } from "/page/voices.js";
import { Waveform } from "/page/waveform.js";

const HISTORY = 8;
const at = (id) => document.getElementById(id);
const show = (id, text) => (at(id).textContent = text);
const seconds = (value) => `${value.toFixed(2)} s`;

const timeline = new Timeline(at("timeline"));
const transcript = new Transcript(at("transcript"));
const waveform = new Waveform(at("waveform"), RATE, seek);
const cards = new VoiceCards(at("voices"), { play: playSample, changed: onChoice });
const recorder = new Recorder();
const history = []; // utterances, the last one first
let current = null; // the utterance that is heard or shown
let recorded = null;
let snippet = "curl";

// -- one utterance --------------------------------------------------------------------------------------------------

async function speak() {
  await finish();
  const text = at("text").value;
  if (!text.trim()) return show("message", "There is no text to speak; write some above.");
  if (!cards.chosen) return show("message", "This server has no voice yet; record one, or register one.");
  show("message", "");
  at("heard").replaceChildren();
  transcript.reset();
  waveform.reset();
  timeline.reset();
  const player = new Player((report) => onReport(run, report));
  const run = { player, voice: cards.chosen.name, sent: "", words: [], gaps: 0, at: 0, sentAt: null, isMade: false, isOver: false };
  current = run;
  setBusy(true);
  try {
    await player.open();
    run.speech = new Speech({ ...choice(), voice: cards.chosen.id, key: key.get() }, handlersOf(run));
    await run.speech.ready;
    await send(run, text);
  } catch (error) {
    onFailed(run, error.message);
  }
}

function handlersOf(run) {
  return {
    audio: (buffer) => onAudio(run, buffer),
    words: (words) => onWords(run, words),
    done: () => onMade(run),
    failed: (sentence) => onFailed(run, sentence),
  };
}

async function send(run, text) {
  timeline.reset();
  run.sentAt = performance.now();
  const isWhole = document.querySelector("[name=mode]:checked").value === "whole";
  const parts = isWhole ? [text] : pieces(text);
  for (const [number, part] of parts.entries()) {
    if (run !== current || run.isOver || run.isInterrupted) return;
    run.speech.speak(part, number === parts.length - 1);
    run.sent += part;
    transcript.add(part);
    timeline.piece(part);
    if (number < parts.length - 1) await new Promise((resolve) => setTimeout(resolve, 1000 / at("rate").valueAsNumber));
  }
}

function onAudio(run, buffer) {
  if (run !== current || run.isInterrupted) return;
  if (!run.firstAudio) show("first-audio", `${Math.round((run.firstAudio = performance.now() - run.sentAt))} ms`);
  timeline.audio(buffer.byteLength / 2 / RATE);
  waveform.push(buffer.slice(0));
  run.player.push(buffer);
}

function onWords(run, words) {
  if (run !== current) return;
  run.words.push(...words);
  transcript.time(words);
}

function onMade(run) {
  if (run !== current) return;
  run.isMade = true;
  if (run.player.parts.length) return run.player.end();
  show("message", "Nothing in this text can be spoken.");
  finish();
}

function onReport(run, report) {
  if (run !== current || run.isOver) return;
  if (!run.firstSound) show("first-sound", `${Math.round((run.firstSound = performance.now() - run.sentAt))} ms`);
  run.gaps = report.gaps;
  timeline.report(report.played / RATE, report.gaps);
  show("buffer", seconds(report.queued / RATE));
  show("gaps", report.gaps);
  move(report.played / RATE);
  if (report.isOver) finish();
}

async function onFailed(run, sentence) {
  if (run !== current || run.isOver) return;
  await finish();
  if (sentence) show("message", sentence);
  else await check(); // a browser does not say why a socket was refused
}

async function interrupt() {
  const run = current;
  if (!run?.speech || run.isInterrupted || run.isOver) return;
  run.isInterrupted = true;
  const played = (await run.player.clear()) / RATE;
  run.speech.interrupt();
  timeline.interrupt();
  const [spoken, remaining] = transcript.heard(played);
  const unheard = document.createElement("span");
  unheard.className = "unheard";
  unheard.textContent = remaining;
  at("heard").replaceChildren("Heard: ", spoken || "not a word yet. ", unheard);
  await finish();
}

async function finish() {
  const run = current;
  if (!run || run.isOver) return;
  run.isOver = true;
  run.speech?.close();
  setBusy(false);
  await run.player.close();
  timeline.draw();
  if (!run.player.parts.length) return;
  remember(run);
  move(0);
  transcript.light(null);
}

function setBusy(isBusy) {
  at("interrupt").disabled = !isBusy;
  for (const id of ["replay", "download"]) at(id).disabled = isBusy || !current.player.parts.length;
  if (isBusy) for (const id of ["first-audio", "first-sound", "buffer", "gaps", "clock"]) show(id, "–");
}

// The voice is at this second, live or in a replay.
function move(second) {
  waveform.move(second);
  transcript.light(second);
  show("clock", `${second.toFixed(1)} of ${waveform.seconds.toFixed(1)} s`);
}

// -- what was spoken before -----------------------------------------------------------------------------------------

const replayer = new Audio();
replayer.ontimeupdate = () => !replayer.paused && move(replayer.currentTime);
replayer.onplay = () => show("replay", "Pause");
replayer.onpause = () => show("replay", "Play again");
replayer.onended = () => transcript.light(null);

function remember(run) {
  run.url = URL.createObjectURL(run.player.download());
  history.unshift(run);
  for (const old of history.splice(HISTORY)) URL.revokeObjectURL(old.url);
  replayer.src = run.url;
  at("history").replaceChildren(...history.map(row));
}

function row(run) {
  const [item, button, about] = ["li", "button", "span"].map((tag) => document.createElement(tag));
  button.textContent = run.sent.trim().slice(0, 80) || "–";
  button.className = "again";
  about.className = "faint";
  about.textContent = `${run.voice} · ${run.player.seconds.toFixed(1)} s · first audio ${Math.round(run.firstAudio)} ms`;
  button.onclick = () => choose(run);
  item.append(button, about);
  return item;
}

async function choose(run) {
  await finish();
  current = run;
  at("heard").replaceChildren();
  transcript.show(run);
  waveform.reset(run.player.parts);
  replayer.src = run.url;
  setBusy(false);
  move(0);
  await replayer.play();
}

function replay() {
  if (replayer.paused) replayer.play();
  else replayer.pause();
}

function seek(second) {
  if (!current?.isOver) return;
  replayer.currentTime = second;
  move(second);
  replayer.play();
}

function download() {
  const link = document.createElement("a");
  link.href = current.url;
  link.download = "bistream.wav";
  link.click();
}

// -- choices --------------------------------------------------------------------------------------------------------

function choice() {
  const { kind, id, can_be_instructed: isInstructed } = cards.chosen ?? {};
  const instruction = isInstructed ? at("instruction").value.trim() : "";
  return { text: at("text").value.trim(), voice: id ?? "alloy", kind, speed: at("speed").valueAsNumber, instruction, reading: reading() };
}

// How the text is read, as fields of a request.
function reading() {
  const entries = at("lexicon").value.split(",").map((entry) => entry.split("=").map((side) => side.trim()));
  const lexicon = Object.fromEntries(entries.filter(([word, said]) => word && said));
  return { ...(at("ssml").checked && { text_type: "ssml" }), ...(Object.keys(lexicon).length && { lexicon }) };
}

function onChoice() {
  at("instruction-field").hidden = !cards.chosen?.can_be_instructed;
  show("rate-shown", at("rate").value);
  show("speed-shown", at("speed").valueAsNumber.toFixed(1));
  show("snippet", SNIPPETS[snippet](choice()));
}

function makeTabs() {
  at("snippet-tabs").replaceChildren(
    ...Object.keys(SNIPPETS).map((name) => {
      const tab = document.createElement("button");
      tab.textContent = name;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-selected", String(name === snippet));
      tab.onclick = () => {
        snippet = name;
        for (const one of at("snippet-tabs").children) one.setAttribute("aria-selected", String(one === tab));
        onChoice();
      };
      return tab;
    }),
  );
}

async function copy() {
  const text = at("snippet").textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(at("snippet")); // without https the browser lets only people copy
    return show("copy", "Selected: press Ctrl C");
  }
  show("copy", "Copied");
  setTimeout(() => show("copy", "Copy"), 2000);
}

async function playSample(voice, button) {
  button.disabled = true;
  try {
    voice.sample ??= URL.createObjectURL(await fetchSpeech({ model: "bistream", voice: voice.id, input: sampleOf(voice), response_format: "wav" }));
    at("sample").src = voice.sample;
    await at("sample").play();
  } catch (error) {
    tell(error);
  }
  button.disabled = false;
}

async function listVoices(chosen) {
  const { voices } = await fetchJson("/v1/audio/voices");
  const found = voices.filter((voice) => !voice.is_alias);
  const isNew = JSON.stringify(found.map(({ id }) => id)) !== JSON.stringify(cards.voices.map(({ id }) => id));
  if (isNew || chosen) cards.show(found, chosen);
}

// -- the server -----------------------------------------------------------------------------------------------------

// What is wrong stands above all else until it is over.
function tell(error) {
  const cause = error instanceof Failure ? error.cause : null;
  if (error && !cause) return show("message", error.message);
  at("problem").hidden = !error;
  at("key-field").hidden = cause !== "noKey" && cause !== "wrongKey";
  if (error && at("problem-text").textContent !== error.message) show("problem-text", error.message);
  if (error) show("server", cause === "noKey" || cause === "wrongKey" ? "needs a key" : "not reachable");
  at("server").classList.toggle("ready", !error);
}

async function check() {
  try {
    showLoad(await fetchLoad());
    await listVoices();
    tell(null);
  } catch (error) {
    tell(error);
  }
}

function showLoad(load) {
  show("server", load.servers.length > 1 ? `${load.ready} of ${load.servers.length} servers ready` : "ready");
  at("utterances").max = load.max_utterances || 1;
  at("utterances").value = load.utterances;
  const rows = { speaking: load.utterances, "spoken so far": load.speeches, "turned away": load.refused, "speech made": seconds(load.audio_s) };
  at("load-numbers").replaceChildren(...Object.entries(rows).map(([name, value]) => number(name, value)));
}

function number(name, value) {
  const [box, term, detail] = ["div", "dt", "dd"].map((kind) => document.createElement(kind));
  term.textContent = name;
  detail.textContent = value;
  box.append(term, detail);
  return box;
}

// -- one's own voice ------------------------------------------------------------------------------------------------

async function record() {
  const isRecording = at("record").getAttribute("aria-pressed") === "true";
  try {
    if (!isRecording) await recorder.start();
    else keep(await recorder.stop());
    at("record").setAttribute("aria-pressed", String(!isRecording));
    show("record", isRecording ? "Record again" : "Stop");
  } catch (error) {
    show("voice-message", error.message);
  }
}

function keep(blob) {
  recorded = blob;
  at("recording").src = URL.createObjectURL(blob);
  at("recording").hidden = false;
  at("save").disabled = false;
  show("voice-message", "");
}

async function save(event) {
  event.preventDefault();
  const form = new FormData();
  const name = at("voice-name").value.trim();
  form.set("name", name);
  form.set("transcript", at("transcript-said").value);
  form.set("audio_sample", recorded, "recording.wav");
  try {
    const voice = await fetchJson("/v1/audio/voices", { method: "POST", body: form, headers: headersFor(name) });
    keepSecret(voice);
    await listVoices(voice.id);
    show("voice-message", `${voice.name} is saved and chosen.`);
  } catch (error) {
    show("voice-message", error.message);
  }
}

at("speak").onclick = speak;
at("interrupt").onclick = interrupt;
at("replay").onclick = replay;
at("download").onclick = download;
at("copy").onclick = copy;
at("record").onclick = record;
at("voice-form").onsubmit = save;
at("file").onchange = async ({ target }) => {
  try {
    keep(await convert(target.files[0]));
  } catch {
    show("voice-message", "This file cannot be decoded as audio; choose another.");
  }
};
at("text").oninput = () => {
  show("message", "");
  onChoice();
};
for (const id of ["rate", "speed", "instruction", "ssml", "lexicon"]) at(id).oninput = onChoice;
at("key").value = key.get();
at("key").onchange = () => {
  key.set(at("key").value.trim());
  check();
};
at("key-field").onsubmit = (event) => event.preventDefault(); // Enter changes the field
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") interrupt();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) speak();
});
window.bistream = {
  state: () => current && { played: current.player.played, gaps: current.gaps, isMade: current.isMade, isOver: current.isOver, words: current.words.length },
};
setInterval(() => current && !current.isOver && timeline.draw(), 100);
setInterval(() => document.hidden || check(), 2000);
makeTabs();
onChoice();
check();
