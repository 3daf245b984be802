// A reference recording from the microphone or a file, as a WAV file of 16 kHz.
import { pcm16, wav } from "/page/wav.js";

const RATE = 16000;
const MAX_SECONDS = 30;

export async function convert(blob) {
  const decoder = new OfflineAudioContext(1, RATE, RATE);
  const audio = await decoder.decodeAudioData(await blob.arrayBuffer());
  const samples = audio.getChannelData(0).subarray(0, MAX_SECONDS * RATE);
  return wav([pcm16(samples)], RATE);
}

export class Recorder {
  async start() {
    if (!navigator.mediaDevices) throw new Error("The browser gives the microphone only to pages over https or from localhost.");
    const sound = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    this.stream = await navigator.mediaDevices.getUserMedia({ audio: sound });
    this.parts = [];
    this.recorder = new MediaRecorder(this.stream);
    this.recorder.ondataavailable = ({ data }) => this.parts.push(data);
    this.recorder.start();
  }

  async stop() {
    const stopped = new Promise((resolve) => (this.recorder.onstop = resolve));
    this.recorder.stop();
    await stopped;
    this.stream.getTracks().forEach((track) => track.stop());
    return convert(new Blob(this.parts, { type: this.recorder.mimeType }));
  }
}
