// A server whose definitions MCP forbids, and the official clients that must not notice.
//
//   node definitions.mjs              is the server, on stdin and stdout
//   node definitions.mjs --url URL    lists what an usher that hosts the server offers, with each
//                                     client, and prints a line per client

import assert from 'node:assert/strict';
import readline from 'node:readline';
import { parseArgs } from 'node:util';
import { Client as ModernClient, StreamableHTTPClientTransport as ModernTransport } from '@modelcontextprotocol/client';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

// usable are the smallest definitions that MCP allows.
const usable = {
  tools: { inputSchema: { type: 'object' }, outputSchema: { type: 'object' } },
  prompts: {},
  resources: { uri: 'x://y' },
  resourceTemplates: { uriTemplate: 'x://{y}' },
};

const icon = ['src', 'mimeType', 'sizes', 'theme'].map((key) => `icons.0.${key}`);
const common = ['title', 'description', 'icons', ...icon, '_meta'];
const annotations = ['annotations', ...['audience', 'audience.0', 'priority', 'lastModified'].map((key) => `annotations.${key}`)];
const keywords = (
  '$anchor $async $comment $defs $defs.a $dynamicRef $id $ref $schema additionalProperties allOf allOf.0 anyOf anyOf.0 ' +
  'const contains definitions dependencies dependencies.a dependentRequired dependentSchemas deprecated else enum examples ' +
  'exclusiveMaximum exclusiveMinimum format formatMinimum id if items maxItems maxLength maximum minItems minLength minimum ' +
  'multipleOf not nullable oneOf oneOf.0 pattern patternProperties patternProperties.a prefixItems prefixItems.0 properties ' +
  'properties.a propertyNames readOnly required required.0 then title type type.0 uniqueItems'
).split(' ');
const schemas = ['inputSchema', 'outputSchema'].flatMap((schema) =>
  [schema, `${schema}.properties.a`, `${schema}.properties.a.items.not`].flatMap((path) => [path, ...keywords.map((key) => `${path}.${key}`)]),
);

// members are the members of each kind of definition, by paths.
const members = {
  tools: [
    ...common, ...schemas, 'execution', 'execution.taskSupport', 'annotations',
    ...['title', 'readOnlyHint', 'destructiveHint', 'idempotentHint', 'openWorldHint'].map((key) => `annotations.${key}`),
  ],
  prompts: [...common, 'arguments', ...['name', 'title', 'description', 'required'].map((key) => `arguments.0.${key}`)],
  resources: [...common, ...annotations, 'name', 'uri', 'mimeType', 'size'],
  resourceTemplates: [...common, ...annotations, 'name', 'uriTemplate', 'mimeType'],
};

const values = [
  null, true, false, 'text', '', 0, -1, 1.5, 1e300, [], [null], ['text'], [1], [true], {}, { a: null }, { a: 1 }, { type: 'text' },
  '2026-11-28', '#', '#/nowhere', '#a', 'https://example.com/schema', 'string', ['string', 'text'], 'array', ['array'], ['string', 'null'],
  '(?P<a>b)', '(?i)a', 'a\\_b', '\\d\\-\\d', '[\\w-\\.]', '[[:alpha:]]', '\\Aa', 'a{', 'a]', '(', '^*', '[z-a]', 'x/properties/a',
];

// withValue returns a definition with a value at a path.
function withValue(definition, [key, ...path], value) {
  if (key === undefined) return value;
  if (key === '0') return [withValue({ name: 'a', src: 'x:y' }, path, value)];
  return { ...definition, [key]: withValue(definition[key] ?? {}, path, value) };
}

// list returns all definitions of a kind: a usable one, and one with each value of each member.
function list(kind) {
  const all = [{ name: 'usable', ...usable[kind] }];
  for (const path of members[kind]) {
    for (const value of values) {
      const n = all.length;
      const definition = { name: `n${n}`, ...usable[kind] };
      if (kind === 'resources') definition.uri = `x://${n}`;
      if (kind === 'resourceTemplates') definition.uriTemplate = `x://${n}/{y}`;
      all.push(withValue(definition, path.split('.'), value));
    }
  }
  return all;
}

function serve() {
  const lists = { 'tools/list': 'tools', 'prompts/list': 'prompts', 'resources/list': 'resources', 'resources/templates/list': 'resourceTemplates' };
  readline.createInterface({ input: process.stdin }).on('line', (line) => {
    const { id, method } = JSON.parse(line);
    if (id === undefined) return;
    const answer = { jsonrpc: '2.0', id };
    if (lists[method]) answer.result = { [lists[method]]: list(lists[method]) };
    else if (method === 'initialize') {
      const capabilities = { tools: {}, prompts: {}, resources: {} };
      answer.result = { protocolVersion: '2025-11-25', capabilities, serverInfo: { name: 'malformed', version: '1' } };
    } else answer.error = { code: -32601, message: 'unknown method' };
    console.log(JSON.stringify(answer));
  });
}

const info = { name: 'definitions', version: '1.0.0' };
const pinned = { versionNegotiation: { mode: { pin: '2026-07-28' } } };
const clients = {
  'TypeScript SDK 1': (url) => [new Client(info), new StreamableHTTPClientTransport(url)],
  'TypeScript client 2': (url) => [new ModernClient(info), new ModernTransport(url)],
  'TypeScript client 2, 2026-07-28': (url) => [new ModernClient(info, pinned), new ModernTransport(url)],
};

async function checkClients(url) {
  console.warn = () => {}; // the SDK warns of each unknown format
  for (const [name, make] of Object.entries(clients)) {
    const [client, transport] = make(new URL(url));
    await client.connect(transport);
    const { tools } = await client.listTools();
    const { prompts } = await client.listPrompts();
    const { resources } = await client.listResources();
    const { resourceTemplates } = await client.listResourceTemplates();
    for (const offered of [tools, prompts, resources, resourceTemplates]) {
      assert.ok(offered.some((item) => item.name.endsWith('usable')), 'the usable definition is missing');
      assert.ok(offered.length > 300, `only ${offered.length} definitions`);
    }
    assert.ok(tools.filter((tool) => tool.outputSchema).length > 1000, 'few tools have an outputSchema');
    console.log(`${name}: ${tools.length} tools, ${prompts.length} prompts, ${resources.length} resources, ${resourceTemplates.length} templates`);
    await client.close();
  }
}

const { values: options } = parseArgs({ options: { url: { type: 'string' } } });
if (options.url) await checkClients(options.url);
else serve();
