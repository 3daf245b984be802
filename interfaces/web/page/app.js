import { Player, RATE } from "/page/player.js";
import { convert, Recorder } from "/page/recorder.js";
import { pieces, Speech } from "/page/speech.js";
import { Timeline } from "/page/timeline.js";

const at = (id) => document.getElementById(id);
const timeline = new Timeline(at("timeline"));
let current = null; // the utterance that is heard: {speech, player, ...}
let recorded = null;

const seconds = (value) => `${value.toFixed(2)} s`;
const headers = () => (at("key").value ? { authorization: `Bearer ${at("key").value}` } : {});

async function speak() {
  if (current) await finish();
  const text = at("text").value;
  if (!text.trim()) return;
  show("message", "");
  at("heard").replaceChildren();
  timeline.reset();
  const player = new Player((report) => onReport(run, report));
  const run = { player, sentAt: null, gaps: 0, queued: 0, isMade: false };
  current = run;
  setBusy(true);
  try {
    await player.open();
    run.speech = new Speech(at("voice").value, at("key").value, {
      audio: (buffer) => onAudio(run, buffer),
      event: (event) => onEvent(run, event),
      closed: (failure) => onClosed(run, failure),
    });
    await run.speech.ready;
    await send(run, text);
  } catch (error) {
    onClosed(run, error.message);
  }
}

async function send(run, text) {
  timeline.reset();
  run.sentAt = performance.now();
  const parts = at("text").value && document.querySelector("[name=mode]:checked").value === "whole" ? [text] : pieces(text);
  for (const part of parts) {
    if (run !== current || run.isInterrupted) return;
    run.speech.speak(part);
    timeline.piece(part);
    if (parts.length > 1) await new Promise((resolve) => setTimeout(resolve, 1000 / at("rate").valueAsNumber));
  }
  run.speech.flush();
}

function onAudio(run, buffer) {
  if (run !== current || run.isInterrupted) return;
  if (!run.firstAudio) show("first-audio", `${Math.round((run.firstAudio = performance.now() - run.sentAt))} ms`);
  timeline.audio(buffer.byteLength / 2 / RATE);
  at("download").disabled = false;
  run.player.push(buffer);
}

function onEvent(run, event) {
  if (event.type === "SpeechMetadata") {
    run.isMade = true;
    run.player.end();
    if (!event.audio_duration_ms) finish();
  }
  if (event.type === "SpeechInterrupted") showHeard(event.text_spoken ?? "", event.text_remaining ?? "");
  if (event.type === "Warning" && event.code !== "NO_ACTIVE_SPEECH") show("message", event.description);
}

function onReport(run, report) {
  if (run !== current) return;
  if (!run.firstSound) show("first-sound", `${Math.round((run.firstSound = performance.now() - run.sentAt))} ms`);
  Object.assign(run, { queued: report.queued, gaps: report.gaps });
  timeline.report(report.played / RATE, report.gaps);
  show("buffer", seconds(report.queued / RATE));
  show("played", seconds(report.played / RATE));
  show("gaps", report.gaps);
  if (report.isOver) finish();
}

function onClosed(run, failure) {
  if (run !== current || run.isOver) return;
  if (failure) {
    show("message", failure);
    finish();
  }
}

async function interrupt() {
  const run = current;
  if (!run?.speech || run.isInterrupted) return;
  run.isInterrupted = true;
  const played = await run.player.clear();
  timeline.interrupt();
  run.speech.interrupt((1000 * played) / RATE);
  setBusy(false);
  setTimeout(() => run === current && finish(), 1000);
}

async function finish() {
  const run = current;
  if (!run || run.isOver) return;
  run.isOver = true;
  run.speech?.close();
  setBusy(false);
  await run.player.close();
  timeline.draw();
}

function showHeard(spoken, remaining) {
  const unheard = document.createElement("span");
  unheard.className = "unheard";
  unheard.textContent = remaining;
  at("heard").replaceChildren("Heard: ", spoken || "nothing yet, for certain. ", unheard);
}

function setBusy(isBusy) {
  at("interrupt").disabled = !isBusy;
  if (isBusy) for (const id of ["first-audio", "first-sound", "buffer", "played", "gaps"]) show(id, "–");
}

function show(id, text) {
  at(id).textContent = text;
}

async function fetchJson(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers() });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error?.message ?? `The gateway answered ${answer.status}.`);
  return body;
}

async function listVoices(chosen) {
  try {
    const { voices } = await fetchJson("/v1/audio/voices");
    const own = voices.filter((voice) => !voice.is_alias);
    at("voice").replaceChildren(...own.map(({ id, name }) => new Option(name, id, false, id === chosen)));
    if (!own.length) show("message", "This gateway has no voice yet; record one below.");
  } catch (error) {
    show("message", error.message);
  }
}

async function showLoad() {
  if (document.hidden) return;
  try {
    const load = await fetchJson("/v1/load");
    const ready = load.servers.filter((server) => server.is_ready).length;
    show("server", `${ready} of ${load.servers.length} server${load.servers.length > 1 ? "s" : ""} ready`);
    at("server").classList.toggle("ready", ready > 0);
    at("utterances").max = load.max_utterances;
    at("utterances").value = load.utterances;
    const rows = { speaking: load.utterances, sockets: load.sockets, "all so far": load.speeches, refused: load.refused, audio: seconds(load.audio_s) };
    at("load-numbers").replaceChildren(...Object.entries(rows).map(([name, value]) => number(name, value)));
  } catch {
    show("server", "not reachable");
    at("server").classList.remove("ready");
  }
}

function number(name, value) {
  const [box, term, detail] = ["div", "dt", "dd"].map((kind) => document.createElement(kind));
  term.textContent = name;
  detail.textContent = value;
  box.append(term, detail);
  return box;
}

const recorder = new Recorder();

async function record() {
  const isRecording = at("record").getAttribute("aria-pressed") === "true";
  try {
    if (!isRecording) await recorder.start();
    else keep(await recorder.stop());
    at("record").setAttribute("aria-pressed", String(!isRecording));
    at("record").textContent = isRecording ? "Record again" : "Stop";
  } catch (error) {
    show("voice-message", error.message);
  }
}

function keep(blob) {
  recorded = blob;
  at("recording").src = URL.createObjectURL(blob);
  at("recording").hidden = false;
  at("save").disabled = false;
}

async function save(event) {
  event.preventDefault();
  const form = new FormData();
  form.set("name", at("voice-name").value);
  form.set("transcript", at("transcript").value);
  form.set("audio_sample", recorded, "recording.wav");
  try {
    const voice = await fetchJson("/v1/audio/voices", { method: "POST", body: form });
    show("voice-message", `${voice.name} is saved and chosen.`);
    await listVoices(voice.id);
  } catch (error) {
    show("voice-message", error.message);
  }
}

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(current.player.download());
  link.download = "bistream.wav";
  link.click();
}

at("speak").onclick = speak;
at("interrupt").onclick = interrupt;
at("download").onclick = download;
at("record").onclick = record;
at("voice-form").onsubmit = save;
at("file").onchange = async ({ target }) => {
  try {
    keep(await convert(target.files[0]));
  } catch {
    show("voice-message", "This file cannot be decoded as audio; choose another.");
  }
};
at("rate").oninput = () => show("rate-shown", at("rate").value);
at("key").onchange = () => listVoices();
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") interrupt();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) speak();
});
window.bistream = { state: () => current && { played: current.player.played, gaps: current.gaps, isMade: current.isMade, isOver: Boolean(current.isOver) } };
setInterval(() => current && !current.isOver && timeline.draw(), 100);
setInterval(showLoad, 2000);
listVoices();
showLoad();
