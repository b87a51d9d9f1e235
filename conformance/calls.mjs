// The table of calls: every tool of the hosted servers, and what its answer must be. Rows
// run in order, because some need files or data that earlier rows wrote.

import assert from 'node:assert/strict';

// Expectations: each of these returns a function that throws if an answer differs.

// text expects a successful result whose text contains each of the words.
export const text = (...words) => (result) => {
  assert.ok(!result.isError, `it failed: ${textOf(result)}`);
  for (const word of words) assert.ok(textOf(result).includes(word), `no ${JSON.stringify(word)} in: ${textOf(result)}`);
};

// failed expects an error result whose text contains each of the words.
export const failed = (...words) => (result) => {
  assert.equal(result.isError, true, `it did not fail: ${textOf(result)}`);
  for (const word of words) assert.ok(textOf(result).includes(word), `no ${JSON.stringify(word)} in: ${textOf(result)}`);
};

// structured expects structuredContent with these fields, and perhaps others.
const structured = (fields) => (result) => {
  assert.ok(!result.isError, `it failed: ${textOf(result)}`);
  for (const [name, want] of Object.entries(fields)) assert.deepEqual(result.structuredContent?.[name], want);
};

// png expects exactly one image, which must still be a PNG file.
const png = (result) => {
  const images = result.content.filter((block) => block.type === 'image');
  assert.equal(images.length, 1);
  assert.equal(images[0].mimeType, 'image/png');
  assert.equal(Buffer.from(images[0].data, 'base64').subarray(1, 4).toString(), 'PNG');
};

// blocks expects content of these types, in this order.
const blocks = (...types) => (result) => assert.deepEqual(result.content.map((block) => block.type), types);

const all = (...wants) => (result) => wants.forEach((want) => want(result));

export const textOf = (result) => result.content.map((block) => block.text ?? '').join('\n');

// calls returns the table. A row consists of a tool, its arguments and the expectation.
// files is the folder that the filesystem server may use; it contains pixel.png.
export const calls = (files) => [...everything, ...asking, ...filesystem(files), ...memory, ...module];

// unlisted are the tools without a row. checkCancelling calls them, because neither
// returns before a call of the first is cancelled.
export const unlisted = ['loud_wait', 'loud_waited'];

const everything = [
  ['everything_echo', { message: 'grüße\n"\u2028" 🚢' }, text('Echo: grüße\n"\u2028" 🚢')],
  ['everything_get-sum', { a: 2, b: 0.5 }, text('The sum of 2 and 0.5 is 2.5')],
  ['everything_get-sum', { a: 'two', b: 3 }, failed('expected number')],
  ['everything_get-annotated-message', { messageType: 'error', includeImage: true }, all(blocks('text', 'image'), png, annotated)],
  // The variable is set in .mcp.json. The secret is the daemon's, and modules don't get it.
  ['everything_get-env', {}, all(text('"GREETING": "hello from .mcp.json"'), (r) => assert.ok(!textOf(r).includes('WEBHOOK_SECRET')))],
  ['everything_get-resource-links', { count: 2 }, blocks('text', 'resource_link', 'resource_link')],
  ['everything_get-resource-reference', { resourceType: 'Blob', resourceId: 2 }, blocks('text', 'resource', 'text')],
  ['everything_get-structured-content', { location: 'Chicago' }, structured({ temperature: 36, humidity: 82 })],
  ['everything_get-tiny-image', {}, all(blocks('text', 'image', 'text'), png)],
  ['everything_gzip-file-as-resource', { name: 'a.gz', data: 'data:text/plain,abc', outputType: 'resource' }, gzipped],
  ['everything_toggle-simulated-logging', {}, text('Started')],
  ['everything_toggle-simulated-logging', {}, text('Stopped')],
  ['everything_toggle-subscriber-updates', {}, text('Started')],
  ['everything_toggle-subscriber-updates', {}, text('Stopped')],
  ['everything_trigger-long-running-operation', { duration: 0.2, steps: 2 }, text('completed')],
];

function annotated(result) {
  assert.deepEqual(result.content[0].annotations, { priority: 1, audience: ['user', 'assistant'] });
}

function gzipped(result) {
  assert.equal(result.content[0].resource.mimeType, 'application/gzip');
  assert.ok(result.content[0].resource.blob.startsWith('H4sI'));
}

// asking are the tools that ask the client during the call. clients.mjs answers them.
const asking = [
  ['everything_get-roots-list', {}, text('workspace')],
  ['everything_trigger-sampling-request', { prompt: 'sail', maxTokens: 9 }, text('a model of clients.mjs')],
  ['everything_trigger-elicitation-request', {}, text('declined')],
  ['everything_trigger-url-elicitation', { url: 'https://example.com/' }, text('declined')],
  // usher leaves out everything_simulate-research-query, which can only be called as a task.
];

const filesystem = (files) => [
  ['filesystem_write_file', { path: `${files}/log.txt`, content: 'one\ntwo\nthree\n' }, text('Successfully wrote')],
  ['filesystem_read_file', { path: `${files}/log.txt` }, structured({ content: 'one\ntwo\nthree\n' })],
  ['filesystem_read_text_file', { path: `${files}/log.txt`, head: 1 }, text('one')],
  ['filesystem_read_text_file', { path: `${files}/none.txt` }, failed('ENOENT')],
  ['filesystem_read_text_file', { path: `${files}/../secret.txt` }, failed('Access denied')],
  ['filesystem_read_media_file', { path: `${files}/pixel.png` }, png],
  ['filesystem_edit_file', { path: `${files}/log.txt`, edits: [{ oldText: 'two', newText: 'zwei' }] }, text('-two', '+zwei')],
  ['filesystem_create_directory', { path: `${files}/a/b` }, text('Successfully created')],
  ['filesystem_move_file', { source: `${files}/log.txt`, destination: `${files}/a/b/log.txt` }, text('Successfully moved')],
  ['filesystem_read_multiple_files', { paths: [`${files}/a/b/log.txt`, `${files}/none.txt`] }, text('zwei', 'ENOENT')],
  ['filesystem_list_directory', { path: files }, text('[DIR] a', '[FILE] pixel.png')],
  ['filesystem_list_directory_with_sizes', { path: files, sortBy: 'size' }, text('Total: 1 files, 1 directories')],
  ['filesystem_directory_tree', { path: files }, text('"log.txt"')],
  ['filesystem_search_files', { path: files, pattern: '**/*.txt' }, text('log.txt')],
  ['filesystem_get_file_info', { path: `${files}/pixel.png` }, text('isFile: true')],
  ['filesystem_list_allowed_directories', {}, text(files)],
];

const ship = { name: 'Beagle', entityType: 'ship', observations: ['brig'] };
const man = { name: 'Darwin', entityType: 'naturalist', observations: [] };
const sailed = { from: 'Darwin', to: 'Beagle', relationType: 'sailed on' };

const memory = [
  ['memory_create_entities', { entities: [ship, man] }, structured({ entities: [ship, man] })],
  ['memory_create_relations', { relations: [sailed] }, structured({ relations: [sailed] })],
  ['memory_add_observations', { observations: [{ entityName: 'Darwin', contents: ['seasick'] }] }, text('seasick')],
  ['memory_read_graph', {}, structured({ entities: [ship, { ...man, observations: ['seasick'] }], relations: [sailed] })],
  ['memory_search_nodes', { query: 'seasick' }, text('Darwin')],
  ['memory_open_nodes', { names: ['Beagle'] }, structured({ entities: [ship] })],
  ['memory_delete_observations', { deletions: [{ entityName: 'Darwin', observations: ['seasick'] }] }, text('deleted')],
  ['memory_delete_relations', { relations: [sailed] }, text('deleted')],
  ['memory_delete_entities', { entityNames: ['Beagle', 'Darwin'] }, structured({ success: true })],
  ['memory_read_graph', {}, structured({ entities: [], relations: [] })],
];

// The Go module that mcp_real_test.go writes.
const module = [
  ['loud_shout', { Text: 'land ahoy' }, text('LAND AHOY')],
  ['loud_shout', {}, failed('"Text" is required')],
  ['loud_shout', { Text: 7 }, failed('"Text"')],
];
