// The official client against an usher that hosts the official servers: it calls all
// tools and uses the other features of the protocol. It prints a line per check, and at
// the end the number of checks.
//
//   node clients.mjs --workspace DIR --files DIR --url URL [--sse]
//   node clients.mjs --workspace DIR --files DIR -- usher stdio …
//
// It edits the workspace. mcp_real_test.go writes the workspace's files.

import assert from 'node:assert/strict';
import { appendFile, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  CallToolResultSchema,
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  LoggingMessageNotificationSchema,
  PromptListChangedNotificationSchema,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { calls, failed, text, textOf, unlisted } from './calls.mjs';

const patience = 10_000; // ms; a check that takes longer has failed
const buildPatience = 60_000; // ms, for the build of a Go module on a busy machine

const { values: options, positionals: command } = parseArgs({
  allowPositionals: true,
  options: { workspace: { type: 'string' }, files: { type: 'string' }, url: { type: 'string' }, sse: { type: 'boolean' } },
});

let passed = 0;
const failures = [];

// check runs one check and prints its line.
async function check(name, run, limit = patience) {
  const start = performance.now();
  let why = '';
  try {
    await within(limit, run());
    passed++;
  } catch (error) {
    why = `: ${error.message}`;
    failures.push(name);
  }
  console.log(`${why ? 'FAIL' : 'ok  '} ${name} (${Math.round(performance.now() - start)} ms)${why}`);
}

// within returns the outcome of a promise. It throws if that takes longer than limit.
async function within(limit, promise) {
  const timer = new AbortController();
  const late = sleep(limit, undefined, { signal: timer.signal }).then(() => {
    throw new Error(`nothing after ${limit} ms`);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    timer.abort();
    late.catch(() => {});
  }
}

// rejected throws unless the promise fails with this code and a matching message.
async function rejected(promise, code, words) {
  const error = await promise.then(
    (value) => assert.fail(`it succeeded: ${JSON.stringify(value).slice(0, 200)}`),
    (reason) => reason,
  );
  if (code !== undefined) assert.equal(error.code, code, error.message);
  assert.match(error.message, words);
}

function transport(sessionId) {
  if (options.sse) return new SSEClientTransport(new URL(options.url));
  if (options.url) return new StreamableHTTPClientTransport(new URL(options.url), { sessionId });
  const [program, ...args] = command;
  return new StdioClientTransport({ command: program, args, env: process.env, stderr: 'inherit' });
}

// wiretap records the progress notifications by their total, in the order in which they
// and the answers arrive. The client itself can't do this: it handles a notification
// slightly later than an answer that arrived with it, and no longer knows the request.
function wiretap(transport) {
  const answered = new Set();
  const wire = { steps: new Map(), late: 0 };
  transport.onmessage = (message) => {
    if (message.id !== undefined && !message.method) answered.add(message.id);
    if (message.method !== 'notifications/progress') return;
    const { progressToken, progress, total } = message.params;
    if (answered.has(progressToken)) wire.late++; // the client's token is the request's id
    wire.steps.set(total, [...(wire.steps.get(total) ?? []), progress]);
  };
  return wire;
}

// newClient returns a client that answers everything that a server may ask.
function newClient() {
  const client = new Client(
    { name: 'clients.mjs', version: '1.0.0' },
    { capabilities: { roots: { listChanged: true }, sampling: {}, elicitation: { form: {}, url: {} } } },
  );
  client.setRequestHandler(ListRootsRequestSchema, () => ({
    roots: [{ uri: pathToFileURL(options.files).href, name: 'workspace' }],
  }));
  client.setRequestHandler(CreateMessageRequestSchema, () => ({
    model: 'a model of clients.mjs',
    role: 'assistant',
    content: { type: 'text', text: 'ahoy' },
  }));
  client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'decline' }));
  return client;
}

// listen collects a client's notifications of one kind. next waits for another one.
function listen(client, schema) {
  const heard = [];
  let wake = () => {};
  client.setNotificationHandler(schema, (note) => {
    heard.push(note.params);
    wake();
  });
  return {
    heard,
    async next() {
      await new Promise((resolve) => (wake = resolve));
      return heard.at(-1);
    },
  };
}

const toolNames = async (client) => (await client.listTools()).tools.map((tool) => tool.name);

// call calls a tool. If the tool has an output schema, it uses callTool, which validates
// the answer. Otherwise it sends a plain request, because callTool does not send calls
// that it expects to be refused, and these checks need the refusal.
function call(client, name, args, requestOptions) {
  if (client.outputs?.has(name)) return client.callTool({ name, arguments: args }, undefined, requestOptions);
  return client.request({ method: 'tools/call', params: { name, arguments: args } }, CallToolResultSchema, requestOptions);
}

async function checkHandshake(client) {
  await check('the handshake', async () => {
    assert.equal(client.getServerVersion().name, 'usher');
    for (const kind of ['tools', 'prompts', 'resources']) {
      assert.equal(client.getServerCapabilities()[kind].listChanged, true, kind);
    }
    for (const module of ['everything', 'filesystem', 'memory', 'loud']) {
      assert.match(client.getInstructions(), new RegExp(`^- ${module}: `, 'm'));
    }
  }, buildPatience);
  await check('ping', () => client.ping());
  await check('logging/setLevel', () => client.setLoggingLevel('debug'));
}

// checkCalls calls every tool. A tool without a row in the table is a failure.
async function checkCalls(client) {
  const rows = calls(options.files);
  await check('every tool has a row in the table', async () => {
    const { tools } = await client.listTools();
    client.outputs = new Set(tools.filter((tool) => tool.outputSchema).map((tool) => tool.name));
    assert.deepEqual(tools.map((tool) => tool.name).sort(), [...new Set([...rows.map(([tool]) => tool), ...unlisted])].sort());
  });
  for (const [tool, args, want] of rows) {
    await check(`${tool} ${JSON.stringify(args).slice(0, 60)}`, async () => want(await call(client, tool, args)));
  }
}

async function checkErrors(client) {
  await check('an unknown tool', () => rejected(call(client, 'nobody_knows', {}), -32602, /unknown tool "nobody_knows"/));
  await check('an unknown tool of a module', () => rejected(call(client, 'memory_nothing', {}), -32602, /unknown tool/));
  await check('a tool by its own name, which one module has', async () => text('entities')(await call(client, 'read_graph', {})));
  await check('an unknown prompt', () => rejected(client.getPrompt({ name: 'nobody_knows' }), -32602, /unknown prompt/));
  await check('an unknown resource', () => rejected(client.readResource({ uri: 'no://where' }), -32002, /unknown resource/));
}

const slowTool = 'everything_trigger-long-running-operation';

async function checkProgress(client, wire) {
  const run = (steps, onprogress) => call(client, slowTool, { duration: 0.6, steps }, { onprogress });
  const upTo = (count) => Array.from({ length: count }, (_, i) => i + 1);
  await check('progress', async () => {
    let seen = 0;
    text('Steps: 4')(await run(4, () => seen++));
    assert.deepEqual(wire.steps.get(4), upTo(4));
    assert.ok(seen >= 3, `onprogress was called ${seen} times`);
  });
  await check('progress of several calls at once, each to its own', async () => {
    await Promise.all([2, 3, 5].map((steps) => run(steps, (p) => assert.equal(p.total, steps))));
    for (const steps of [2, 3, 5]) assert.deepEqual(wire.steps.get(steps), upTo(steps));
    assert.equal(wire.late, 0, 'progress came after the answer');
  });
  await check('100 calls at once, each with its own answer', async () => {
    const answers = await Promise.all(Array.from({ length: 100 }, (_, i) => call(client, 'everything_echo', { message: `n${i}` })));
    answers.forEach((answer, i) => assert.equal(textOf(answer), `Echo: n${i}`));
  });
  await check('an answer of a megabyte', async () => {
    const message = 'ä'.repeat(500_000);
    assert.equal(textOf(await call(client, 'everything_echo', { message })), `Echo: ${message}`);
  });
}

async function checkCancelling(client) {
  await check('cancelling a call', async () => {
    const controller = new AbortController();
    const onprogress = () => controller.abort('enough');
    const start = performance.now();
    await rejected(
      call(client, slowTool, { duration: 60, steps: 300 }, { signal: controller.signal, onprogress, timeout: 90_000 }),
      undefined,
      /enough/,
    );
    assert.ok(performance.now() - start < 5_000, 'it took too long');
  });
  // The client gives up whatever the server does. Only the module can tell whether it
  // received the cancellation.
  await check('a cancelled call ends in the module too', async () => {
    const controller = new AbortController();
    const onprogress = () => controller.abort('enough');
    await rejected(call(client, 'loud_wait', {}, { signal: controller.signal, onprogress }), undefined, /enough/);
    text('context canceled')(await call(client, 'loud_waited', {}));
  });
  await check('the session continues after a cancelled call', async () => text('Echo: on')(await call(client, 'everything_echo', { message: 'on' })));
}

async function checkLogging(client) {
  const log = listen(client, LoggingMessageNotificationSchema);
  await check('a log message during a call', async () => {
    const heard = log.next();
    await call(client, 'everything_toggle-simulated-logging', {});
    assert.match((await heard).data, /message/);
    await call(client, 'everything_toggle-simulated-logging', {});
  });
}

async function checkPromptsAndResources(client) {
  await check('prompts', async () => {
    const { prompts } = await client.listPrompts();
    assert.ok(prompts.some((prompt) => prompt.name === 'everything_simple-prompt'), prompts.map((p) => p.name).join());
    const { messages } = await client.getPrompt({ name: 'everything_args-prompt', arguments: { city: 'Porto' } });
    assert.match(messages[0].content.text, /Porto/);
  });
  await check('completion of a prompt', async () => {
    const ref = { type: 'ref/prompt', name: 'everything_completable-prompt' };
    const { completion } = await client.complete({ ref, argument: { name: 'department', value: 'S' } });
    assert.deepEqual(completion.values, ['Sales', 'Support']);
  });
  await check('resources', async () => {
    const { resources } = await client.listResources();
    assert.ok(resources.some((resource) => resource.uri === 'memory://knowledge-graph'), resources.map((r) => r.uri).join());
    const { contents } = await client.readResource({ uri: 'memory://knowledge-graph' });
    assert.match(contents[0].text, /entities/);
  });
  await check('a resource by its template', async () => {
    const { resourceTemplates } = await client.listResourceTemplates();
    assert.ok(resourceTemplates.some((template) => template.uriTemplate === 'demo://resource/dynamic/text/{resourceId}'));
    const { contents } = await client.readResource({ uri: 'demo://resource/dynamic/text/1' });
    assert.match(contents[0].text, /Resource 1/);
  });
  const updates = listen(client, ResourceUpdatedNotificationSchema);
  await check('a subscription to a resource', async () => {
    const uri = 'demo://resource/dynamic/text/1';
    await client.subscribeResource({ uri });
    const updated = updates.next();
    await call(client, 'everything_toggle-subscriber-updates', {});
    assert.equal((await updated).uri, uri);
    await call(client, 'everything_toggle-subscriber-updates', {});
    await client.unsubscribeResource({ uri });
  });
  await check('a resource that a call makes is in no list', async () => {
    const made = await call(client, 'everything_gzip-file-as-resource', { name: 'made.gz', data: 'data:text/plain,abc' });
    const { uri } = made.content[0];
    assert.ok(!(await client.listResources()).resources.some((resource) => resource.uri === uri));
  });
}

// checkEdits edits the workspace while the client is connected.
async function checkEdits(client) {
  const tools = listen(client, ToolListChangedNotificationSchema);
  const prompts = listen(client, PromptListChangedNotificationSchema);
  const source = path.join(options.workspace, 'loud.usher.go');
  const config = path.join(options.workspace, '.mcp.json');
  await check('an edit of a Go module is announced', async () => {
    const changed = tools.next();
    await appendFile(source, '\n// Hush makes it quiet.\nfunc Hush(p struct{ Text string }) string { return strings.ToLower(p.Text) }\n');
    await changed;
    assert.ok((await toolNames(client)).includes('loud_hush'));
    text('psst')(await call(client, 'loud_hush', { Text: 'PSST' }));
  }, buildPatience);
  await check('an edit does not affect other modules', async () => {
    assert.equal(prompts.heard.length, 0, 'got prompts/list_changed, but no prompt has changed');
    failed('"Text" is required')(await call(client, 'loud_shout', {}));
  });
  await check('a server removed from .mcp.json is gone', async () => {
    const changed = tools.next();
    const { mcpServers } = JSON.parse(await readFile(config, 'utf8'));
    delete mcpServers.memory;
    await writeFile(config, JSON.stringify({ mcpServers }));
    await changed;
    assert.ok(!(await toolNames(client)).some((name) => name.startsWith('memory_')));
    await rejected(call(client, 'memory_read_graph', {}), -32602, /unknown tool/);
  });
  await check('the other servers of .mcp.json keep running', async () => {
    const { contents } = await client.readResource({ uri: 'demo://resource/dynamic/text/1' });
    assert.equal(contents.length, 1);
  });
}

// checkSession checks features that only streamable HTTP has.
async function checkSession(client) {
  await check('two sessions at once', async () => {
    const other = newClient();
    await other.connect(transport());
    const { sessionId } = other.transport;
    assert.notEqual(sessionId, client.transport.sessionId);
    text('Echo: two')(await call(other, 'everything_echo', { message: 'two' }));
    await other.transport.terminateSession();
    await other.close();
    const late = transport(sessionId); // the client forgets the id of a session that it ended
    await late.start();
    await rejected(late.send({ jsonrpc: '2.0', id: 1, method: 'ping' }), 404, /session/);
    await late.close();
    text('Echo: one')(await call(client, 'everything_echo', { message: 'one' }));
  });
}

async function main() {
  const client = newClient();
  const connection = transport();
  const wire = wiretap(connection);
  const errors = [];
  client.onerror = (error) => errors.push(error.message);
  await check('connecting', () => client.connect(connection), buildPatience);
  if (passed) {
    await checkHandshake(client);
    await checkCalls(client);
    await checkErrors(client);
    await checkProgress(client, wire);
    await checkCancelling(client);
    await checkLogging(client);
    await checkPromptsAndResources(client);
    if (options.url && !options.sse) await checkSession(client);
    await checkEdits(client);
    await check('the client understood every message', async () => {
      assert.deepEqual(errors.filter((message) => !message.includes('progress notification for an unknown token')), []); // see wiretap
    });
    await check('closing', () => client.close());
  }
  console.log(`${passed} passed, ${failures.length} failed`);
  process.exitCode = failures.length ? 1 : 0;
}

await main();
