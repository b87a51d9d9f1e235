// Connects with a claim whose scope contains no module, in two versions of the protocol:
// every list must be empty, and every call and read must fail. It prints the number of
// checks.
//
//   node hidden.mjs URL

import assert from 'node:assert/strict'

const url = process.argv[2]
const client = { name: 'hidden', version: '1' }
const own = 'io.modelcontextprotocol/'
const eras = {
  '2025-11-25': { headers: {}, meta: undefined },
  '2026-07-28': {
    headers: {},
    meta: { [own + 'protocolVersion']: '2026-07-28', [own + 'clientInfo']: client, [own + 'clientCapabilities']: {} },
  },
}

async function post(era, message) {
  const { headers, meta } = eras[era]
  if (meta) {
    message.params._meta = meta
    headers['mcp-method'] = message.method
    delete headers['mcp-name']
    const name = message.params.name ?? message.params.uri
    if (name) headers['mcp-name'] = name
  }
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': era,
      ...headers,
    },
    body: JSON.stringify({ jsonrpc: '2.0', ...message }),
    signal: AbortSignal.timeout(10_000),
  })
  return { response, text: await response.text() }
}

let id = 0
async function ask(era, method, params = {}) {
  const { response, text } = await post(era, { id: ++id, method, params })
  const stream = response.headers.get('content-type')?.startsWith('text/event-stream')
  const events = text.split('\n').filter(line => /^data: *\S/.test(line))
  const lines = stream ? events.map(line => line.slice('data:'.length)) : [text]
  const answer = lines.map(line => JSON.parse(line)).find(message => message.id === id)
  assert(answer, `${era} ${method}: no answer in HTTP ${response.status} ${text}`)
  return { response, ...answer }
}

let checks = 0
for (const era of Object.keys(eras)) {
  if (!eras[era].meta) {
    const { response } = await ask(era, 'initialize', { protocolVersion: era, capabilities: {}, clientInfo: client })
    eras[era].headers['mcp-session-id'] = response.headers.get('mcp-session-id')
    await post(era, { method: 'notifications/initialized' })
  }
  const lists = {
    'tools/list': 'tools',
    'prompts/list': 'prompts',
    'resources/list': 'resources',
    'resources/templates/list': 'resourceTemplates',
  }
  for (const [method, key] of Object.entries(lists)) {
    const { result, error } = await ask(era, method)
    assert.deepEqual(result?.[key], [], `${era} ${method}: ${JSON.stringify(error ?? result)}`)
    checks++
  }
  const refused = [
    ['tools/call', { name: 'test_simple_text', arguments: {} }],
    ['tools/call', { name: 'test_input_required_result_elicitation', arguments: {} }],
    ['resources/read', { uri: 'test://static-text' }],
    ['resources/read', { uri: 'test://template/123/data' }],
    ['prompts/get', { name: 'test_simple_prompt' }],
    ['completion/complete', { ref: { type: 'ref/prompt', name: 'test_prompt_with_arguments' }, argument: { name: 'arg1', value: 'test' } }],
  ]
  for (const [method, params] of refused) {
    const { result, error } = await ask(era, method, params)
    assert(error, `${era} ${method} ${JSON.stringify(params)}: ${JSON.stringify(result)}`)
    checks++
  }
}
console.log(checks)
