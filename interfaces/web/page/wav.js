// 16 bit mono samples as a WAV file. parts: ArrayBuffers of little-endian samples.
export function wav(parts, rate) {
  const size = parts.reduce((sum, part) => sum + part.byteLength, 0);
  const view = new DataView(new ArrayBuffer(44));
  const ascii = (offset, text) => [...text].forEach((letter, i) => view.setUint8(offset + i, letter.charCodeAt(0)));
  ascii(0, "RIFF");
  view.setUint32(4, 36 + size, true);
  ascii(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  ascii(36, "data");
  view.setUint32(40, size, true);
  return new Blob([view.buffer, ...parts], { type: "audio/wav" });
}

// Floats in [-1, 1] as 16 bit samples.
export function pcm16(floats) {
  return Int16Array.from(floats, (value) => Math.round(Math.max(-1, Math.min(1, value)) * 32767)).buffer;
}
