// The request as programs: what to copy into one's own code. A choice is {text, voice, kind, speed, instruction, reading}.
const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const quoted = (text) => JSON.stringify(text);

function body({ text, voice, speed, instruction, reading }) {
  const chosen = { model: "bistream", voice, input: text, response_format: "wav" };
  return { ...chosen, ...(speed === 1 ? {} : { speed }), ...(instruction ? { instructions: instruction } : {}), ...reading };
}

function curl(choice) {
  return [
    `curl ${location.origin}/v1/audio/speech \\`,
    `  -H "authorization: Bearer $BISTREAM_API_KEY" -H "content-type: application/json" \\`,
    `  -d ${shell(JSON.stringify(body(choice)))} \\`,
    "  --output speech.wav",
  ].join("\n");
}

function python(choice) {
  const { model, voice, input, ...rest } = body({ ...choice, reading: Object.keys(choice.reading).length ? { extra_body: choice.reading } : {} });
  const more = Object.entries(rest).map(([name, value]) => `        ${name}=${quoted(value)},`);
  return [
    "import os",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${quoted(`${location.origin}/v1`)}, api_key=os.environ.get("BISTREAM_API_KEY", "none"))`,
    "with client.audio.speech.with_streaming_response.create(",
    `        model=${quoted(model)}, voice=${quoted(voice)},`,
    `        input=${quoted(input)},`,
    ...more,
    ") as response:",
    '    response.stream_to_file("speech.wav")',
  ].join("\n");
}

function javascript(choice) {
  return [
    'import { writeFile } from "node:fs/promises";',
    'import OpenAI from "openai";',
    "",
    `const client = new OpenAI({ baseURL: ${quoted(`${location.origin}/v1`)}, apiKey: process.env.BISTREAM_API_KEY ?? "none" });`,
    `const speech = await client.audio.speech.create(${JSON.stringify(body(choice), null, 2)});`,
    'await writeFile("speech.wav", Buffer.from(await speech.arrayBuffer()));',
  ].join("\n");
}

const onServer = (kind) => kind === "preset" || kind === "registered"; // known to the server itself, not to these interfaces alone

// How our own client and plugin name the voice and what else was chosen.
function speaker({ voice, kind, speed, instruction, reading }) {
  const given = { ...(speed === 1 ? {} : { speed }), ...(instruction ? { instruct_text: instruction } : {}), ...reading };
  const options = Object.entries(given).map(([name, value]) => `, ${name}=${quoted(value)}`).join("");
  return onServer(kind) ? `Speaker(speaker_id=${quoted(voice)}${options})` : `Speaker.recorded("recording.wav", "What is said in it."${options})`;
}

function livekit(choice) {
  return [
    "from livekit.plugins import bistream  # pip install . ./plugins/livekit",
    "",
    `tts = bistream.TTS("${location.hostname}:8001", bistream.${speaker(choice)})`,
  ].join("\n");
}

function client(choice) {
  return [
    "import asyncio",
    "from bistream.client.asyncio_client import AsyncBistreamClient",
    "from bistream.client.speaker import Speaker",
    "",
    "async def main():",
    `    speaker = ${speaker(choice)}`,
    `    client = AsyncBistreamClient("${location.hostname}:8001")`,
    "    async with client.start(**speaker.arguments()) as session:",
    `        await session.end_text(${quoted(choice.text)})  # or push_text, piece by piece, while you listen`,
    "        async for chunk in session:",
    "            print(len(chunk.waveform))  # float32, 24 kHz",
    "    await client.close()",
    "",
    "asyncio.run(main())",
  ].join("\n");
}

export const SNIPPETS = { curl, "OpenAI Python": python, "OpenAI JavaScript": javascript, LiveKit: livekit, "our client": client };
