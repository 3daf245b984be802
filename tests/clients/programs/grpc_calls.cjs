// The gate's gRPC from @grpc/grpc-js: what a program for Node would do, and what may go wrong. Prints what it found, as JSON.
//
// Arguments: a JSON object with `address`, `descriptors` (a file with a FileDescriptorSet), `certificate` (a PEM file, or null), `keepalive_ms`,
// `streams` (how many are opened at a time), `share` (how many the address may have open), and for the drain `process` (of the gate). NODE_PATH: where the packages are.
"use strict";

const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");
const { loadFileDescriptorSetFromBuffer } = require("@grpc/proto-loader");

const given = JSON.parse(process.argv[2]);
const MODEL = "cosyvoice2_bistream";
const api = grpc.loadPackageDefinition(loadFileDescriptorSetFromBuffer(fs.readFileSync(given.descriptors), { keepCase: true, arrays: true }));
const credentials = given.certificate ? grpc.credentials.createSsl(fs.readFileSync(given.certificate)) : grpc.credentials.createInsecure();

/** A connection of its own. */
function connect(Service) {
  return new Service(given.address, credentials, {
    "grpc.keepalive_time_ms": given.keepalive_ms,
    "grpc.keepalive_timeout_ms": 60_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.use_local_subchannel_pool": 1,
  });
}

const client = connect(api.inference.GRPCInferenceService);

function unary(caller, method, request) {
  return new Promise((resolve) => caller[method](request, (error, answer) => resolve(error ? { code: error.code, details: error.details } : answer)));
}

/** Contents of a tensor. */
function raw(value) {
  if (typeof value === "boolean") return { datatype: "BOOL", bytes: Buffer.from([value ? 1 : 0]) };
  const text = Buffer.from(value, "utf-8");
  const length = Buffer.alloc(4);
  length.writeUInt32LE(text.length);
  return { datatype: "BYTES", bytes: Buffer.concat([length, text]) };
}

function request(id, values, model = MODEL) {
  const tensors = Object.entries(values).map(([name, value]) => ({ name, ...raw(value) }));
  return {
    model_name: model,
    id,
    parameters: [{ key: "triton_enable_empty_final_response", value: { bool_param: true } }], // a map, which the loader does not know
    inputs: tensors.map(({ name, datatype }) => ({ name, datatype, shape: [1, 1] })),
    raw_input_contents: tensors.map(({ bytes }) => bytes),
  };
}

/** A stream: what it says is taken one by one. */
class Stream {
  constructor(options = {}) {
    this.call = client.ModelStreamInfer(new grpc.Metadata(), options);
    this.heard = [];
    this.wake = () => {};
    this.call.on("data", (response) => this.put(told(response)));
    this.call.on("error", () => {}); // the status says the same
    this.call.on("status", (status) => {
      this.status = status;
      this.wake();
    });
  }

  put(what) {
    this.heard.push(what);
    this.wake();
  }

  /** The next thing that it says; undefined at its end. */
  async take() {
    while (this.heard.length === 0 && this.status === undefined) await new Promise((resolve) => (this.wake = resolve));
    return this.heard.shift();
  }

  /** Everything until one says this, with it, or until the end. */
  async until(wanted) {
    const all = [];
    for (let what = await this.take(); what !== undefined; what = await this.take()) {
      all.push(what);
      if (what === wanted) break;
    }
    return all;
  }

  send(id, values, model) {
    this.call.write(request(id, values, model));
  }

  start(session_id) {
    this.send("start", { target_text: "x", session_id, is_start: true, is_end: false });
  }

  append(session_id, is_end) {
    this.send("more", { target_text: "y", session_id, is_start: false, is_end });
  }
}

/** Request and number of the chunk, code of the error, or "final". */
function told({ error_message, infer_response }) {
  if (error_message) return `${infer_response.id} ${error_message.split(":")[0]}`;
  if (infer_response.outputs.length === 0) return `${infer_response.id} final`;
  const index = infer_response.outputs.findIndex((output) => output.name === "sequence_number");
  return `${infer_response.id} ${infer_response.raw_output_contents[index].readInt32LE()}`;
}

/** A session of three pieces; each of the later ones is sent once the audio before it has come. What was heard, and the status. */
async function speak(session_id, pause = async () => {}) {
  const stream = new Stream();
  stream.start(session_id);
  const heard = await stream.until("start 0");
  await pause();
  stream.append(session_id, false);
  heard.push(...(await stream.until("start 1")));
  stream.append(session_id, true);
  stream.call.end();
  heard.push(...(await stream.until()));
  return { heard: heard.filter((what) => what !== "more final"), code: stream.status.code };
}

async function cancelled() {
  const stream = new Stream();
  stream.start("a");
  await stream.until("start 0");
  stream.send("cancel", { session_id: "a", is_cancel: true });
  const heard = [];
  while (heard.length < 4) heard.push(await stream.take());
  stream.start("b"); // the stream goes on
  await stream.until("start 0");
  stream.call.cancel();
  await stream.until();
  return { heard, code: stream.status.code };
}

async function timedOut() {
  const stream = new Stream({ deadline: Date.now() + 300 });
  stream.start("a");
  await stream.until();
  return stream.status.code;
}

async function refused() {
  const stream = new Stream();
  stream.send("wrong", { target_text: "x" }, "nope");
  const heard = [await stream.take(), await stream.take()];
  stream.start("a");
  stream.append("a", true);
  stream.call.end();
  heard.push(...(await stream.until()));
  return heard;
}

/** One more stream than the address may have. */
async function busy() {
  const open = [];
  for (let number = 0; number < given.share; number += 1) {
    const stream = new Stream();
    stream.start(`s${number}`);
    await stream.until("start 0");
    open.push(stream);
  }
  const late = new Stream();
  await late.until();
  for (const stream of open) stream.call.cancel();
  for (const stream of open) await stream.until();
  return late.status;
}

/** Longer than several pings. */
const silence = () => new Promise((resolve) => setTimeout(resolve, 5 * given.keepalive_ms));

async function all() {
  const health = connect(api.grpc.health.v1.Health);
  const found = { live: (await unary(client, "ServerLive", {})).live, health: await unary(health, "Check", {}) };
  found.session = await speak("a");
  found.silent = await speak("a", silence);
  found.cancelled = await cancelled();
  found.deadline = await timedOut();
  found.many = await Promise.all(Array.from({ length: given.streams }, (_, number) => speak(`s${number}`)));
  found.unknown = await unary(client, "RepositoryIndex", {});
  found.refused = await refused();
  found.busy = await busy();
  do found.after = await speak("a");
  while (found.after.code === grpc.status.RESOURCE_EXHAUSTED); // until the gate has seen that the streams are gone
  return found;
}

/** The gate is asked to end in the midst of a session. */
async function drain() {
  let late;
  const session = await speak("a", async () => {
    process.kill(given.process, "SIGTERM");
    do {
      const stream = new Stream();
      stream.send("late", { target_text: "x" });
      stream.call.end();
      [late] = await stream.until();
    } while (late !== "late SHUTTING_DOWN");
    await silence();
  });
  let end;
  do end = await unary(client, "ServerLive", {});
  while (end.code === undefined);
  return { session, late, end: end.code };
}

(given.process ? drain() : all()).then(
  (found) => {
    process.stdout.write(`${JSON.stringify(found)}\n`);
    process.exit(0);
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
