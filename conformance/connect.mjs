// Checks that real clients connect. Each client lists the tools and calls one, three
// times: without a code, with a code in a header, and with the code in the URL. It prints a
// line per client, and at the end the number of connections.
//
//   node connect.mjs --url URL --claim CODE --go PROGRAM --scratch DIR
//
// The workspace has the tools near_say, which returns its text, and far_say, which is
// outside the claim's scope. PROGRAM is gosdk/connect, built. Clients may write to DIR.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { Client as ModernClient, StreamableHTTPClientTransport as ModernTransport } from '@modelcontextprotocol/client';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { Client as OldClient } from 'sdk-of-2025/client/index.js';
import { SSEClientTransport as OldSSE } from 'sdk-of-2025/client/sse.js';
import { StreamableHTTPClientTransport as OldTransport } from 'sdk-of-2025/client/streamableHttp.js';

const patience = 60_000; // ms; a busy machine starts a dozen Nodes at once
const { values: options } = parseArgs({
  options: { url: { type: 'string' }, claim: { type: 'string' }, go: { type: 'string' }, scratch: { type: 'string' } },
});
const info = { name: 'connect', version: '1.0.0' };
const text = 'ahoy';
const manifest = createRequire(import.meta.url).resolve('@modelcontextprotocol/inspector-cli/package.json');
const modules = manifest.split('@modelcontextprotocol')[0]; // node_modules

// Each client is a function of a URL and headers. It returns the names of the tools, and
// near_say's answer.
const clients = {
  'TypeScript SDK 1.12': sdk(OldClient, OldTransport),
  'TypeScript SDK 1.12, HTTP+SSE': sdk(OldClient, OldSSE),
  'TypeScript SDK 1.32': sdk(Client, StreamableHTTPClientTransport),
  'TypeScript SDK 1.32, HTTP+SSE': sdk(Client, SSEClientTransport),
  'TypeScript client 2.4': sdk(ModernClient, ModernTransport),
  'TypeScript client 2.4, 2026-07-28': sdk(ModernClient, ModernTransport, { versionNegotiation: { mode: { pin: '2026-07-28' } } }),
  'Go SDK': go('gosdk'),
  'Go SDK, HTTP+SSE': go('gosdk-sse'),
  'mcp-go': go('mcp-go'),
  'mcp-remote': bridge('mcp-remote/dist/proxy.js', (url) => [url, '--transport', 'http-only']),
  'mcp-remote, HTTP+SSE': bridge('mcp-remote/dist/proxy.js', (url) => [url, '--transport', 'sse-only']),
  'supergateway': bridge('supergateway/dist/index.js', (url) => ['--streamableHttp', url, '--logLevel', 'none']),
  'supergateway --sse': bridge('supergateway/dist/index.js', (url) => ['--sse', url, '--logLevel', 'none']),
  mcporter,
  Inspector: inspector,
};

function sdk(Client, Transport, more = {}) {
  return async (url, headers) => {
    // The SDKs of 2025 use requestInit for POSTs and eventSourceInit.fetch for the stream
    // of HTTP+SSE.
    const withHeaders = (input, init) => {
      const all = new Headers(init?.headers); // later SDKs add those of requestInit
      for (const [name, value] of Object.entries(headers)) all.set(name, value);
      return fetch(input, { ...init, headers: all });
    };
    const client = new Client(info, more);
    await client.connect(new Transport(new URL(url), { requestInit: { headers }, eventSourceInit: { fetch: withHeaders } }));
    return asked(client);
  };
}

// asked lists the tools, calls near_say and closes the client.
async function asked(client) {
  try {
    const { tools } = await client.listTools();
    const result = await client.callTool({ name: 'near_say', arguments: { text } });
    return { names: tools.map((tool) => tool.name), said: result.content[0].text };
  } finally {
    await client.close();
  }
}

const headerOf = (headers) => Object.entries(headers).map(([name, value]) => `${name}: ${value}`);

// run runs a program and returns its output.
function run(program, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd: modules, env: environment(), stdio: ['ignore', 'pipe', 'pipe'] });
    let out = '', err = '';
    child.stdout.on('data', (data) => (out += data));
    child.stderr.on('data', (data) => (err += data));
    child.on('error', reject);
    child.on('close', (status) => (status === 0 ? resolve(out) : reject(new Error(`status ${status}: ${err}${out}`))));
  });
}

function environment() {
  const home = mkdtempSync(path.join(options.scratch, 'home-'));
  return { ...process.env, HOME: home, MCP_REMOTE_CONFIG_DIR: home };
}

function go(which) {
  return async (url, headers) => {
    const header = headerOf(headers).flatMap((line) => ['-header', line]);
    const lines = (await run(options.go, ['-url', url, '-with', which, ...header, 'near_say'])).trim().split('\n');
    return { said: lines.pop(), names: lines };
  };
}

// bridge returns a client that runs a bridge: a program with MCP on stdio and HTTP to the
// server.
function bridge(script, argsOf) {
  return async (url, headers) => {
    const client = new Client(info);
    const args = [path.join(modules, script), ...argsOf(url), ...headerOf(headers).flatMap((line) => ['--header', line])];
    await client.connect(new StdioClientTransport({ command: process.execPath, args, env: environment(), stderr: 'ignore' }));
    return asked(client);
  };
}

async function mcporter(url, headers) {
  const config = path.join(mkdtempSync(path.join(options.scratch, 'mcporter-')), 'config.json');
  writeFileSync(config, JSON.stringify({ mcpServers: { usher: { baseUrl: url, headers } } }));
  const ask = (...args) => run(process.execPath, [path.join(modules, 'mcporter/dist/cli.js'), '--config', config, ...args]);
  const list = JSON.parse(await ask('list', 'usher', '--json'));
  const said = (await ask('call', 'usher.near_say', `text=${text}`)).trim();
  return { names: list.tools.map((tool) => tool.name), said };
}

async function inspector(url, headers) {
  const ask = async (...args) => {
    const script = path.join('@modelcontextprotocol', 'inspector-cli', 'build', 'cli.js');
    const header = headerOf(headers).flatMap((line) => ['--header', line]);
    const out = await run(process.execPath, [script, '--cli', url, '--transport', 'http', ...header, '--method', ...args]);
    return JSON.parse(out);
  };
  const list = await ask('tools/list');
  const called = await ask('tools/call', '--tool-name', 'near_say', '--tool-arg', `text=${text}`);
  return { names: list.tools.map((tool) => tool.name), said: called.content[0].text };
}

const ways = {
  plain: [options.url, {}],
  header: [options.url, { 'Mcp-Claim-Code': options.claim }],
  '?claim=': [`${options.url}?claim=${options.claim}`, {}],
};

async function connects(client, way) {
  const late = AbortSignal.timeout(patience);
  const { names, said } = await Promise.race([
    clients[client](...ways[way]),
    new Promise((_, reject) => late.addEventListener('abort', () => reject(new Error(`no answer after ${patience} ms`)))),
  ]);
  assert.deepEqual(names.sort(), way === 'plain' ? ['far_say', 'near_say'] : ['near_say']);
  assert.equal(said, text);
  return 'ok';
}

let connections = 0, failures = 0;
const rows = Object.keys(clients);
async function work() {
  for (let client = rows.shift(); client; client = rows.shift()) {
    const cells = [];
    for (const way of Object.keys(ways)) {
      let cell;
      try {
        cell = await connects(client, way);
        if (cell === 'ok') connections++;
      } catch (error) {
        cell = `FAIL: ${error.message.replaceAll(/\s+/g, ' ').slice(0, 400)}`;
        failures++;
      }
      cells.push(`${way} ${cell}`);
    }
    console.log(`${client.padEnd(34)} ${cells.join('  ')}`);
  }
}
await Promise.all(Array.from({ length: Math.max(2, os.availableParallelism()) }, work));
console.log(`${connections} connections, ${failures} failures`);
process.exit(failures ? 1 : 0);
